"""Every answer of a bundle, asked of Cedar once when it is loaded and looked up afterwards.

What decides is only: the groups of the actor, the action, of each branch whether it is given and whether it
is protected, and which of the stored queries that rules name is invoked. That is a small table, and a
property test compares it with Cedar.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from omnigraph.core.permission import Action, Decision, Question, refusal_text
from omnigraph.policy.bundle import parse_bundle, read_text
from omnigraph.policy.cedar import Cedar

if TYPE_CHECKING:
    from pathlib import Path

    from omnigraph.policy.bundle import Bundle


class Kind(Enum):
    """What a policy sees of a branch."""

    NONE = 0
    PROTECTED = 1
    UNPROTECTED = 2


class BundlePolicy:
    """The decisions of one bundle. Thread-safe; a decision is a look into a table."""

    tells_actors_apart = True

    def __init__(self, bundle: Bundle) -> None:
        self.bundle: Final = bundle
        self._groups: Final = {actor: bundle.groups_of(actor) for actor in bundle.actors}
        self._protected: Final = bundle.protected
        cedar = Cedar(bundle)
        examples = self._examples()
        alike = {groups: actor for actor, groups in sorted(self._groups.items())}
        self._queries: Final = bundle.named_queries
        self._rules: Final = {
            (groups, action, one, two, query): next(
                iter(cedar.rules_that_allow(actor, Question(action, b, t, query))), None
            )
            for groups, actor in alike.items()
            for action in Action
            for one, b in examples.items()
            for two, t in examples.items()
            for query in (None, *(self._queries if action is Action.INVOKE_QUERY else ()))
        }

    def decide(self, actor: str | None, question: Question) -> Decision:
        """Whether this actor may do this. An actor that the bundle does not know may do nothing."""
        groups = self._groups.get(actor or "")
        if actor is None or groups is None:
            who = actor or "anonymous"
            return Decision(False, None, f"{refusal_text(who, question)}: the policy does not know '{who}'")
        asked = question.query if question.query in self._queries else None
        rule = self._rules[
            groups, question.action, self._kind(question.branch), self._kind(question.target), asked
        ]
        return Decision(rule is not None, rule, "" if rule is not None else refusal_text(actor, question))

    def _kind(self, branch: str | None) -> Kind:
        if branch is None:
            return Kind.NONE
        return Kind.PROTECTED if branch in self._protected else Kind.UNPROTECTED

    def _examples(self) -> dict[Kind, str | None]:
        """A branch of each kind; every other branch of the kind is decided alike."""
        free = "topic"
        while free in self._protected:
            free += "-"
        found: dict[Kind, str | None] = {Kind.NONE: None, Kind.UNPROTECTED: free}
        if self._protected:
            found[Kind.PROTECTED] = min(self._protected)
        return found


def load_policy(file: str | Path) -> BundlePolicy:
    """The policy of a file. Raises IoFailure, InvalidBundle, PolicyEvaluationFailed."""
    return BundlePolicy(parse_bundle(read_text(file), str(file))[0])
