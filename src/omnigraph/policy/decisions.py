"""Every answer of a bundle, asked of Cedar once when it is loaded and looked up afterwards.

What decides is only: the groups of the actor, the action, of each branch whether it is given and whether it
is protected, and which of the stored queries that rules name is invoked. That is a small table, and a
property test compares it with Cedar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnigraph.core.permission import Action, Decision, Question, refusal_text
from omnigraph.policy.bundle import parse_bundle, read_text
from omnigraph.policy.cedar import Cedar

if TYPE_CHECKING:
    from pathlib import Path

    from omnigraph.policy.bundle import Bundle


_NONE, _PROTECTED, _UNPROTECTED = range(3)
"""What a policy sees of a branch. Numbers: members of an enumeration are looked up more slowly."""


class BundlePolicy:
    """The decisions of one bundle. Thread-safe; a decision is a look into a table."""

    tells_actors_apart = True

    def __init__(self, bundle: Bundle) -> None:
        self.bundle: Final = bundle
        self._protected: Final = bundle.protected
        self._queries: Final = bundle.named_queries
        cedar = Cedar(bundle)
        groups = {actor: bundle.groups_of(actor) for actor in sorted(bundle.actors)}
        alike = {each: self._allowed(cedar, actor) for actor, each in groups.items()}
        self._tables: Final = {actor: alike[each] for actor, each in groups.items()}

    def decide(self, actor: str | None, question: Question) -> Decision:
        """Whether this actor may do this. An actor that the bundle does not know may do nothing."""
        table = self._tables.get(actor)  # type: ignore[arg-type]  nobody is not there either
        if actor is None or table is None:
            who = actor or "anonymous"
            return Decision(False, None, f"{refusal_text(who, question)}: the policy does not know '{who}'")
        branch, target, query, protected = question.branch, question.target, question.query, self._protected
        found = table.get(
            (
                question.action,
                _NONE if branch is None else _PROTECTED if branch in protected else _UNPROTECTED,
                _NONE if target is None else _PROTECTED if target in protected else _UNPROTECTED,
                query if query in self._queries else None,
            )
        )
        return Decision(False, None, refusal_text(actor, question)) if found is None else found

    def _allowed(self, cedar: Cedar, actor: str) -> dict[tuple[Action, int, int, str | None], Decision]:
        """Everything that an actor, and each other one of the same groups, may do."""
        allowed: dict[tuple[Action, int, int, str | None], Decision] = {}
        examples = self._examples()
        for action in Action:
            for query in (None, *(self._queries if action is Action.INVOKE_QUERY else ())):
                for one, branch in examples.items():
                    for two, target in examples.items():
                        rules = cedar.rules_that_allow(actor, Question(action, branch, target, query))
                        if rules:
                            allowed[action, one, two, query] = Decision(True, rules[0], "")
        return allowed

    def _examples(self) -> dict[int, str | None]:
        """A branch of each kind; every other branch of the kind is decided alike."""
        free = "topic"
        while free in self._protected:
            free += "-"
        found: dict[int, str | None] = {_NONE: None, _UNPROTECTED: free}
        if self._protected:
            found[_PROTECTED] = min(self._protected)
        return found


def load_policy(file: str | Path) -> BundlePolicy:
    """The policy of a file. Raises IoFailure, InvalidBundle, PolicyEvaluationFailed."""
    return BundlePolicy(parse_bundle(read_text(file), str(file))[0])
