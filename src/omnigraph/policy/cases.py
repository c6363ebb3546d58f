"""Tests of a policy: questions with the answers their author expects."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from omnigraph.core.permission import Action, Question
from omnigraph.policy.bundle import InvalidBundle, NodeReader
from omnigraph.policy.matching import matching_rules

if TYPE_CHECKING:
    import yaml

    from omnigraph.core.permission import Decision, Policy
    from omnigraph.policy.bundle import Bundle

_KEYS: Final = frozenset({"id", "actor", "action", "branch", "target_branch", "query", "expect", "rule"})


@dataclass(frozen=True, slots=True)
class Case:
    """One expectation."""

    id: str
    actor: str
    question: Question
    allowed: bool
    rule: str | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one."""

    case: Case
    decision: Decision

    @property
    def held(self) -> bool:
        """Whether the policy answers as expected."""
        same_rule = self.case.rule is None or self.case.rule == self.decision.rule
        return self.decision.allowed is self.case.allowed and same_rule

    def to_dict(self) -> dict[str, Any]:
        """JSON members."""
        return {
            "id": self.case.id,
            "expected": word(self.case.allowed),
            "actual": word(self.decision.allowed),
            "matched_rule": self.decision.rule,
            "message": self.decision.message,
        }


def word(allowed: bool) -> str:  # noqa: FBT001  the one thing it is about
    """The answer in the words of a test file."""
    return "allow" if allowed else "deny"


def parse_cases(text: str, name: str) -> tuple[Case, ...]:
    """The cases of a test file. Raises InvalidBundle with all problems; nothing has run then."""
    reader = NodeReader()
    tree = reader.tree(text)
    cases: list[Case] = []
    if tree is not None:
        members = reader.members(tree, "", frozenset({"version", "cases"}))
        reader.version_one(members, tree)
        nodes = reader.items(members.get("cases"), "cases")
        cases = [_case(reader, each, f"cases.{n}") for n, each in enumerate(nodes)]
        for case_id, count in Counter(each.id for each in cases).items():
            if count > 1:
                reader.wrong(tree, "cases", f"the case id '{case_id}' is given twice")
    if reader.problems:
        raise InvalidBundle(name, tuple(reader.problems))
    return tuple(cases)


def _case(reader: NodeReader, node: yaml.Node, path: str) -> Case:
    members = reader.members(node, path, _KEYS)
    given = {key: reader.text(each, f"{path}.{key}", node) for key, each in members.items() if key in _KEYS}
    for key in ("id", "actor", "action", "expect"):
        if key not in given:
            reader.wrong(node, path, f"'{key}' is missing")
    action, expected = given.get("action", ""), given.get("expect", "")
    if action not in set(Action):
        reader.wrong(node, path, f"'{action}' is not an action")
    if expected not in {"allow", "deny"}:
        reader.wrong(node, path, "expect is allow or deny")
    chosen = Action(action) if action in set(Action) else Action.READ
    question = Question(chosen, given.get("branch"), given.get("target_branch"), given.get("query"))
    return Case(given.get("id", ""), given.get("actor", ""), question, expected == "allow", given.get("rule"))


def run_cases(policy: Policy, cases: tuple[Case, ...]) -> tuple[Outcome, ...]:
    """Ask the policy about each."""
    return tuple(Outcome(case, policy.decide(case.actor, case.question)) for case in cases)


def rules_without_a_case(bundle: Bundle, cases: tuple[Case, ...]) -> tuple[str, ...]:
    """The rules that allow none of what the cases ask for, in the order of the file."""
    met = {name for case in cases for name in matching_rules(bundle, case.actor, case.question)}
    return tuple(rule.id for rule in bundle.rules if rule.id not in met)
