"""Which rules of a bundle allow something, and which would if one thing were different.

It is for people who ask why; what decides is the table made from Cedar's answers. A property test holds the
two against each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omnigraph.core.permission import Action
from omnigraph.policy.bundle import BRANCH_ACTIONS, TARGET_ACTIONS, Problem, Scope

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from omnigraph.core.permission import Question
    from omnigraph.policy.bundle import Bundle, Rule


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A rule that one thing keeps from allowing it: the group, the action, the scope or the query."""

    rule: str
    part: str
    message: str

    def to_dict(self) -> dict[str, Any]:
        """JSON members."""
        return {"rule": self.rule, "part": self.part, "message": self.message}


def matching_rules(bundle: Bundle, actor: str, question: Question) -> tuple[str, ...]:
    """The rules that allow it, by name."""
    return tuple(sorted(rule.id for rule in bundle.rules if not _differing(bundle, rule, actor, question)))


def near_misses(bundle: Bundle, actor: str, question: Question) -> tuple[NearMiss, ...]:
    """The rules that fail on one thing only, by name. A rule that could not hold the action is none."""
    found: list[NearMiss] = []
    for rule in sorted(bundle.rules, key=lambda each: each.id):
        differing = _differing(bundle, rule, actor, question)
        if len(differing) == 1 and _could_hold(rule, question.action):
            found.append(NearMiss(rule.id, *differing[0]))
    return tuple(found)


def _differing(bundle: Bundle, rule: Rule, actor: str, question: Question) -> list[tuple[str, str]]:
    """What keeps the rule from allowing it: the part, and a sentence about it."""
    return [
        *_of_group(bundle, rule, actor),
        *_of_action(rule, question),
        *_of_scope(bundle, rule.branch_scope, "branch", question.branch),
        *_of_scope(bundle, rule.target_scope, "target branch", question.target),
        *_of_query(rule, question),
    ]


def _of_group(bundle: Bundle, rule: Rule, actor: str) -> Iterator[tuple[str, str]]:
    if actor not in bundle.groups[rule.group]:
        yield "group", f"it is for the group '{rule.group}', and '{actor}' is not in it"


def _of_action(rule: Rule, question: Question) -> Iterator[tuple[str, str]]:
    if question.action not in rule.actions:
        yield "action", f"it allows {', '.join(rule.actions)}, and not {question.action}"


def _of_scope(
    bundle: Bundle, scope: Scope | None, what: str, branch: str | None
) -> Iterator[tuple[str, str]]:
    if scope is None or scope is Scope.ANY:
        return
    if branch is None:
        yield "scope", f"it is about {scope} branches, and the question names no {what}"
    elif (branch in bundle.protected) is not (scope is Scope.PROTECTED):
        found = Scope.PROTECTED if branch in bundle.protected else Scope.UNPROTECTED
        yield "scope", f"it is about {scope} branches, and the {what} '{branch}' is {found}"


def _of_query(rule: Rule, question: Question) -> Iterator[tuple[str, str]]:
    if rule.queries is not None and question.query not in rule.queries:
        asked = "names none" if question.query is None else f"names '{question.query}'"
        yield "query", f"it is about the queries {', '.join(rule.queries)}, and the question {asked}"


def _could_hold(rule: Rule, action: Action) -> bool:
    """Whether a rule with these scopes and queries may name the action at all."""
    return (
        (rule.branch_scope is None or action in BRANCH_ACTIONS)
        and (rule.target_scope is None or action in TARGET_ACTIONS)
        and (rule.queries is None or action is Action.INVOKE_QUERY)
    )


def query_oddities(bundle: Bundle, stored: Collection[str]) -> Iterator[Problem]:
    """Warnings about a graph with these stored queries: names nobody has, and readers who may call none."""
    for number, rule in enumerate(bundle.rules):
        for name in rule.queries or ():
            if name not in stored:
                text = f"rule '{rule.id}' names the query '{name}', which is not stored"
                yield Problem(f"rules.{number}", rule.line, text, rule.id, "warning")
    callers = {
        actor
        for rule in bundle.rules
        if Action.INVOKE_QUERY in rule.actions
        for actor in bundle.groups[rule.group]
    }
    for number, rule in enumerate(bundle.rules):
        if stored and Action.READ in rule.actions and not callers.issuperset(bundle.groups[rule.group]):
            text = f"rule '{rule.id}' allows read, and no rule lets all of '{rule.group}' call stored queries"
            yield Problem(f"rules.{number}", rule.line, text, rule.id, "warning")
