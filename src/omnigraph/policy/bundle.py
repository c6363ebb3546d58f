"""A policy as its author writes it: groups, protected branches, rules that grant. Read from YAML, whole or
not at all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import yaml

from omnigraph.core.errors import BadRequest, IoFailure
from omnigraph.core.ids import ENGINE_ACTORS
from omnigraph.core.permission import Action

if TYPE_CHECKING:
    from collections.abc import Mapping

Text = TypeVar("Text", bound=str)
BRANCH_ACTIONS: Final = frozenset({Action.READ, Action.EXPORT, Action.CHANGE})
TARGET_ACTIONS: Final = frozenset(
    {Action.SCHEMA_APPLY, Action.BRANCH_CREATE, Action.BRANCH_DELETE, Action.BRANCH_MERGE}
)


class Scope(StrEnum):
    """Which branches a rule is about."""

    ANY = "any"
    PROTECTED = "protected"
    UNPROTECTED = "unprotected"


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a file, and where."""

    path: str
    line: int
    message: str
    rule: str | None = None
    severity: str = "error"

    def to_dict(self) -> dict[str, Any]:
        """JSON members."""
        named = {} if self.rule is None else {"rule": self.rule}
        return {
            "path": self.path,
            "line": self.line,
            **named,
            "message": self.message,
            "severity": self.severity,
        }


@dataclass(frozen=True, slots=True)
class Rule:
    """One grant."""

    id: str
    group: str
    actions: tuple[Action, ...]
    branch_scope: Scope | None = None
    target_scope: Scope | None = None
    queries: tuple[str, ...] | None = None
    """The stored queries it is about; all of them unless named."""
    line: int = field(default=1, compare=False)
    """Where the file has it."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """One file. It governs one graph."""

    groups: Mapping[str, tuple[str, ...]]
    protected: frozenset[str]
    rules: tuple[Rule, ...]

    def groups_of(self, actor: str) -> frozenset[str]:
        """The groups an actor belongs to."""
        return frozenset(name for name, actors in self.groups.items() if actor in actors)

    @property
    def named_queries(self) -> frozenset[str]:
        """The stored queries that rules name."""
        return frozenset(name for rule in self.rules for name in rule.queries or ())

    @property
    def actors(self) -> frozenset[str]:
        """Everybody who is in a group."""
        return frozenset(actor for actors in self.groups.values() for actor in actors)


class InvalidBundle(BadRequest):
    """The file is no policy; `problems` says why, all of it."""

    def __init__(self, name: str, problems: tuple[Problem, ...]) -> None:
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(
            f"{name}:{first.line}: {first.message}{more}",
            hint="`omnigraph policy validate` lists every problem",
            details={"problems": [each.to_dict() for each in problems]},
        )
        self.problems = problems


def read_text(file: str | Path) -> str:
    """The text of a file. Raises IoFailure."""
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise IoFailure(f"'{file}' cannot be read") from error


def parse_bundle(text: str, name: str) -> tuple[Bundle, tuple[Problem, ...]]:
    """The bundle of a text, and warnings about it. Raises InvalidBundle with all errors."""
    reader = NodeReader()
    bundle = _bundle(reader, text)
    errors = reader.problems_that("error")
    if errors or bundle is None:
        raise InvalidBundle(name, errors)
    return bundle, reader.problems_that("warning")


class NodeReader:
    """Reads a YAML tree and remembers everything that is wrong with it."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def wrong(self, node: yaml.Node, path: str, message: str, rule: str | None = None) -> None:
        """Remember a problem."""
        self.problems.append(Problem(path, node.start_mark.line + 1, message, rule))

    def odd(self, node: yaml.Node, path: str, message: str, rule: str | None = None) -> None:
        """Remember what is right and perhaps not meant."""
        self.problems.append(Problem(path, node.start_mark.line + 1, message, rule, "warning"))

    def once(
        self, node: yaml.Node, path: str, values: list[Text], rule: str | None = None
    ) -> tuple[Text, ...]:
        """The values without repetitions, which are odd and harmless."""
        for value in (each for each, count in Counter(values).items() if each and count > 1):
            self.odd(node, path, f"'{value}' is listed twice", rule)
        return tuple(dict.fromkeys(values))

    def problems_that(self, severity: str) -> tuple[Problem, ...]:
        """Those of one severity, from the first line to the last."""
        return tuple(sorted((p for p in self.problems if p.severity == severity), key=lambda p: p.line))

    def tree(self, text: str) -> yaml.Node | None:
        """The tree of a text."""
        try:
            found: yaml.Node | None = cast("Any", yaml).compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = 1 if mark is None else mark.line + 1
            self.problems.append(
                Problem("", line, f"this is not YAML: {getattr(error, 'problem', None) or error}")
            )
            return None
        if found is None:
            self.problems.append(Problem("", 1, "the file is empty"))
        return found

    def members(self, node: yaml.Node, path: str, known: frozenset[str] | None) -> dict[str, yaml.Node]:
        """The members of a mapping. Unknown and repeated keys are problems."""
        found: dict[str, yaml.Node] = {}
        if not isinstance(node, yaml.MappingNode):
            self.wrong(node, path, "a mapping is expected here")
            return found
        for key, value in node.value:
            name = str(key.value)
            if name in found:
                self.wrong(key, path, f"the key '{name}' is given twice")
            elif known is not None and name not in known:
                self.wrong(key, path, f"the key '{name}' is unknown")
            found[name] = value
        return found

    def items(self, node: yaml.Node | None, path: str) -> list[yaml.Node]:
        """The items of a list; none for a missing one."""
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            self.wrong(node, path, "a list is expected here")
            return []
        return list(node.value)

    def text(self, node: yaml.Node | None, path: str, owner: yaml.Node) -> str:
        """A text that is not blank; an empty one after a problem."""
        if node is None:
            self.wrong(owner, path, f"'{path.rpartition('.')[2]}' is missing")
            return ""
        if not isinstance(node, yaml.ScalarNode) or not str(node.value).strip():
            self.wrong(node, path, "a text that is not blank is expected here")
            return ""
        return str(node.value)

    def version_one(self, members: dict[str, yaml.Node], owner: yaml.Node) -> None:
        """Only the first version of a file is known."""
        version = members.get("version")
        if version is None or version.value != "1":
            self.wrong(version or owner, "version", "the version has to be 1")


def _bundle(reader: NodeReader, text: str) -> Bundle | None:
    tree = reader.tree(text)
    if tree is None:
        return None
    members = reader.members(tree, "", frozenset({"version", "groups", "protected_branches", "rules"}))
    reader.version_one(members, tree)
    groups = _groups(reader, members.get("groups"))
    protected = [
        reader.text(each, f"protected_branches.{n}", each)
        for n, each in enumerate(reader.items(members.get("protected_branches"), "protected_branches"))
    ]
    nodes = reader.items(members.get("rules"), "rules")
    rules = [_rule(reader, each, f"rules.{n}", groups) for n, each in enumerate(nodes)]
    ids = Counter(each.id for each in rules)
    for node, rule in zip(nodes, rules, strict=True):
        if rule.id and ids[rule.id] > 1:
            reader.wrong(node, "rules", f"the rule id '{rule.id}' is given twice", rule.id)
    bundle = Bundle(groups, frozenset(protected), tuple(rules))
    if not reader.problems_that("error"):
        _look_for_oddities(reader, bundle, members)
    return bundle


def _look_for_oddities(reader: NodeReader, bundle: Bundle, members: Mapping[str, yaml.Node]) -> None:
    """Warn of what takes no effect: groups without a rule, scopes without a branch, rules behind others."""
    used = {rule.group for rule in bundle.rules}
    listed = members.get("groups")
    for key, _ in listed.value if isinstance(listed, yaml.MappingNode) else ():
        if key.value not in used:
            reader.odd(key, f"groups.{key.value}", f"no rule uses the group '{key.value}'")
    nodes = reader.items(members.get("rules"), "rules")
    for number, (node, rule) in enumerate(zip(nodes, bundle.rules, strict=True)):
        path = f"rules.{number}"
        if not bundle.protected and Scope.PROTECTED in {rule.branch_scope, rule.target_scope}:
            reader.odd(
                node,
                path,
                f"rule '{rule.id}' is about protected branches, and no branch is protected",
                rule.id,
            )
        wider = shadowing(bundle.rules, rule)
        if wider is not None:
            text = f"rule '{rule.id}' adds nothing: rule '{wider.id}' allows all of it to the same group"
            reader.odd(node, path, text, rule.id)


def _groups(reader: NodeReader, node: yaml.Node | None) -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for name, listed in ({} if node is None else reader.members(node, "groups", None)).items():
        path = f"groups.{name}"
        actors = [reader.text(each, path, each) for each in reader.items(listed, path)]
        if not name.strip():
            reader.wrong(listed, path, "the name of a group is blank")
        if not actors:
            reader.wrong(listed, path, f"the group '{name}' has no actor")
        for actor in actors:
            if actor.startswith(ENGINE_ACTORS):
                reader.wrong(listed, path, f"the actor '{actor}' is reserved")
        groups[name] = reader.once(listed, path, actors)
    return groups


def _rule(reader: NodeReader, node: yaml.Node, path: str, groups: Mapping[str, Any]) -> Rule:
    members = reader.members(node, path, frozenset({"id", "allow"}))
    rule_id = reader.text(members.get("id"), f"{path}.id", node)
    allow = members.get("allow")
    if allow is None:
        reader.wrong(node, path, "'allow' is missing", rule_id)
        return Rule(rule_id, "", (), line=node.start_mark.line + 1)
    keys = frozenset({"actors", "actions", "branch_scope", "target_branch_scope", "queries"})
    given = reader.members(allow, f"{path}.allow", keys)
    named = given.get("actors")
    who = {} if named is None else reader.members(named, f"{path}.allow.actors", frozenset({"group"}))
    group = reader.text(who.get("group"), f"{path}.allow.actors.group", allow)
    if group and group not in groups:
        reader.wrong(
            allow, path, f"rule '{rule_id}' names the group '{group}', which is not declared", rule_id
        )
    actions = _actions(reader, given.get("actions"), allow, path, rule_id)
    scopes = {
        key: _scope(reader, given[key], path, rule_id)
        for key in ("branch_scope", "target_branch_scope")
        if key in given
    }
    if len(scopes) > 1:
        reader.wrong(allow, path, f"rule '{rule_id}' has both scope keys", rule_id)
    for key, fitting in (("branch_scope", BRANCH_ACTIONS), ("target_branch_scope", TARGET_ACTIONS)):
        for action in actions if key in scopes else ():
            if action not in fitting:
                reader.wrong(allow, path, f"rule '{rule_id}': {key} does not go with '{action}'", rule_id)
    queries = _queries(reader, given.get("queries"), f"{path}.allow.queries")
    if queries is not None and actions != (Action.INVOKE_QUERY,):
        reader.wrong(
            allow, path, f"rule '{rule_id}': queries goes with '{Action.INVOKE_QUERY}' alone", rule_id
        )
    return Rule(
        rule_id,
        group,
        actions,
        scopes.get("branch_scope"),
        scopes.get("target_branch_scope"),
        queries,
        node.start_mark.line + 1,
    )


def _queries(reader: NodeReader, node: yaml.Node | None, path: str) -> tuple[str, ...] | None:
    if node is None:
        return None
    names = [reader.text(each, path, each) for each in reader.items(node, path)]
    if not names:
        reader.wrong(node, path, "a list of stored queries is expected here")
    return reader.once(node, path, names)


def _actions(
    reader: NodeReader, node: yaml.Node | None, owner: yaml.Node, path: str, rule_id: str
) -> tuple[Action, ...]:
    actions: list[Action] = []
    items = reader.items(node, f"{path}.allow.actions")
    if not items:
        reader.wrong(node or owner, path, f"rule '{rule_id}' allows no action", rule_id)
    for each in items:
        if each.value in set(Action):
            actions.append(Action(each.value))
        else:
            reader.wrong(each, path, f"rule '{rule_id}': '{each.value}' is not an action of a graph", rule_id)
    return reader.once(node or owner, path, actions, rule_id)


def _scope(reader: NodeReader, node: yaml.Node, path: str, rule_id: str) -> Scope | None:
    if node.value in set(Scope):
        return Scope(node.value)
    reader.wrong(node, path, f"rule '{rule_id}': a scope is any, protected or unprotected", rule_id)
    return None


def shadowing(rules: tuple[Rule, ...], rule: Rule) -> Rule | None:
    """Another rule that allows everything this one does, to the same group; of two alike the later has it."""
    place = rules.index(rule)
    for number, other in enumerate(rules):
        if number != place and _covers(other, rule) and not (number > place and _covers(rule, other)):
            return other
    return None


def _covers(wide: Rule, narrow: Rule) -> bool:
    return (
        wide.group == narrow.group
        and {*narrow.actions} <= {*wide.actions}
        and _scope_covers(wide.branch_scope, narrow.branch_scope)
        and _scope_covers(wide.target_scope, narrow.target_scope)
        and (wide.queries is None or (narrow.queries is not None and {*narrow.queries} <= {*wide.queries}))
    )


def _scope_covers(wide: Scope | None, narrow: Scope | None) -> bool:
    return wide is None or wide is Scope.ANY or wide is narrow
