"""A bundle as Cedar understands it, and Cedar's own answer to a question."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import cedarpy

from omnigraph.core.errors import PolicyEvaluationFailed
from omnigraph.policy.bundle import Scope

if TYPE_CHECKING:
    from omnigraph.core.permission import Question
    from omnigraph.policy.bundle import Bundle, Rule

SCHEMA: Final = """
namespace Omnigraph {
  type Ref = { given: Bool, name: String, guarded: Bool };
  type Where = { branch: Ref, target: Ref, query: String };
  entity Graph, Group;
  entity Actor in [Group];
  action read, export, change, invoke_query, schema_apply, branch_create, branch_delete, branch_merge, admin
    appliesTo { resource: [Graph], principal: [Actor], context: Where };
}
"""
_GRAPH: Final = "graph"
_ENGINE: Final[Any] = cedarpy
"""The package is typed in part only."""


def quoted(text: str) -> str:
    """A text as Cedar spells it."""
    spelled = "".join(
        f"\\{character}"
        if character in '\\"'
        else character
        if ord(character) >= 32 and ord(character) != 127
        else f"\\u{{{ord(character):x}}}"
        for character in text
    )
    return f'"{spelled}"'


def cedar_text(bundle: Bundle) -> str:
    """One permit for each action of each rule."""
    return "\n".join(_permit(rule, action) for rule in bundle.rules for action in rule.actions)


def _permit(rule: Rule, action: str) -> str:
    conditions = {"branch": rule.branch_scope, "target": rule.target_scope}
    tests = [
        f"context.{name}.given && {'' if scope is Scope.PROTECTED else '!'}context.{name}.guarded"
        for name, scope in conditions.items()
        if scope is not None and scope is not Scope.ANY
    ]
    if rule.queries is not None:
        tests.append(f"[{', '.join(map(quoted, rule.queries))}].contains(context.query)")
    body = " && ".join(tests)
    return (
        f"@id({quoted(f'{rule.id}:{action}')})\n"
        f"permit(principal in Omnigraph::Group::{quoted(rule.group)},"
        f' action == Omnigraph::Action::"{action}",'
        f" resource == Omnigraph::Graph::{quoted(_GRAPH)})" + (f" when {{ {body} }};" if body else ";")
    )


class Cedar:
    """The engine with one bundle loaded. Slow compared with a table of its answers, and always right."""

    def __init__(self, bundle: Bundle) -> None:
        self._protected: Final = bundle.protected
        text = cedar_text(bundle)
        try:
            self._schema: Final = cedarpy.Schema.from_str(SCHEMA)
            checked = _ENGINE.validate_policies(text, SCHEMA)
            self._policies: Final = cedarpy.PolicySet.from_str(text)
            self._entities: Final = _ENGINE.Entities.from_json_str(json.dumps(_entities(bundle)), SCHEMA)
        except ValueError as error:
            raise PolicyEvaluationFailed(f"Cedar does not take the policy: {error}") from error
        if not checked.validation_passed:
            raise PolicyEvaluationFailed(f"Cedar does not take the policy: {checked.errors}")

    def rules_that_allow(self, actor: str, question: Question) -> tuple[str, ...]:
        """The rules that allow it, by name; none when it is refused. Raises PolicyEvaluationFailed."""
        result = _ENGINE.is_authorized(
            {
                "principal": {"type": "Omnigraph::Actor", "id": actor},
                "action": {"type": "Omnigraph::Action", "id": str(question.action)},
                "resource": {"type": "Omnigraph::Graph", "id": _GRAPH},
                "context": {
                    "branch": self._named(question.branch),
                    "target": self._named(question.target),
                    "query": question.query or "",
                },
            },
            self._policies,
            self._entities,
            self._schema,
        )
        if result.decision is cedarpy.Decision.NoDecision or result.diagnostics.errors:
            raise PolicyEvaluationFailed("the policy could not be evaluated; nothing was permitted")
        if result.decision is not cedarpy.Decision.Allow:
            return ()
        names: dict[str, str] = result.diagnostics.id_annotations_by_reason
        return tuple(sorted({name.rpartition(":")[0] for name in names.values()}))

    def _named(self, branch: str | None) -> dict[str, Any]:
        return {"given": branch is not None, "name": branch or "", "guarded": branch in self._protected}


def _entities(bundle: Bundle) -> list[dict[str, Any]]:
    def entity(kind: str, name: str, parents: frozenset[str] = frozenset()) -> dict[str, Any]:
        return {
            "uid": {"type": f"Omnigraph::{kind}", "id": name},
            "attrs": {},
            "parents": [{"type": "Omnigraph::Group", "id": each} for each in sorted(parents)],
        }

    return [
        entity("Graph", _GRAPH),
        *(entity("Group", name) for name in bundle.groups),
        *(entity("Actor", actor, bundle.groups_of(actor)) for actor in sorted(bundle.actors)),
    ]
