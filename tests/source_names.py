"""Which names a source tree defines and which of them it uses, read from the syntax alone.

A name of a module is used where another module imports it (directly or through a package that hands it on)
and mentions it, where it is reached through its module, or where its own module mentions it outside its own
definition. A method is used where any object's member of that name is mentioned: types are not followed.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

_NO_CONTRACT = {"abc", "enum", "typing", "msgspec"}
"""Packages whose base classes call nothing that a subclass adds."""

Name = tuple[str, str]
"""A module and a name in it."""


@dataclass(frozen=True)
class Definition:
    """A public name: of a module, or a method (`owner` is its class)."""

    module: str
    name: str
    owner: str | None
    first: int
    last: int
    decorators: tuple[str, ...] = ()
    foreign_base: bool = False
    """A method of a class that follows a contract from outside: its caller is not here."""

    def __str__(self) -> str:
        return f"{self.module}.{self.owner}.{self.name}" if self.owner else f"{self.module}.{self.name}"

    def holds(self, module: str, line: int) -> bool:
        return module == self.module and self.first <= line <= self.last


@dataclass
class _Module:
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    """What a local name stands for: a module, or a name of one."""
    mentions: dict[str, list[int]] = field(default_factory=dict)
    members: list[tuple[ast.expr, str, int]] = field(default_factory=list)
    outside: dict[str, str] = field(default_factory=dict)
    """Local names that come from other packages, and from which."""
    classes: dict[str, list[ast.expr]] = field(default_factory=dict)
    """The bases of its classes."""


def unused(sources: Mapping[str, str], package: str) -> list[Definition]:
    """Public names of `package` that nothing in the sources (module name to text) uses."""
    trees = {module: ast.parse(text) for module, text in sources.items()}
    read = {module: _read(tree, set(sources)) for module, tree in trees.items()}
    defined = [
        each
        for module, tree in trees.items()
        if module.split(".")[0] == package
        for each in _definitions(module, tree.body, read)
    ]
    own = {(each.module, each.name) for each in defined if each.owner is None}
    reached = set(_reached(read, own))
    members: dict[str, list[tuple[str, int]]] = {}
    for module, about in read.items():
        for _, name, line in about.members:
            members.setdefault(name, []).append((module, line))
    return [each for each in defined if not _is_used(each, read, reached, members)]


def _is_used(
    each: Definition,
    read: Mapping[str, _Module],
    reached: set[Name],
    members: Mapping[str, list[tuple[str, int]]],
) -> bool:
    if each.foreign_base or any(".command" in name or ".callback" in name for name in each.decorators):
        return True
    if each.owner is not None:
        return any(not each.holds(*place) for place in members.get(each.name, ()))
    if (each.module, each.name) in reached:
        return True
    mentioned = read[each.module].mentions.get(each.name, ())
    return any(not each.holds(each.module, line) for line in mentioned)


def _read(tree: ast.Module, known: set[str]) -> _Module:
    about = _Module()
    exported = {id(node) for each in tree.body if _is_all(each) for node in ast.walk(each)}
    for node in ast.walk(tree):
        if id(node) in exported:
            continue
        match node:
            case ast.ImportFrom(module=str(origin), level=0):
                for alias in node.names:
                    whole = f"{origin}.{alias.name}"
                    place = (whole, None) if whole in known else (origin, alias.name)
                    about.imports[alias.asname or alias.name] = place
                    if origin not in known:
                        about.outside[alias.asname or alias.name] = origin.split(".")[0]
            case ast.Import():
                for alias in node.names:
                    first = alias.name.split(".")[0]
                    about.outside[alias.asname or first] = first
            case ast.ClassDef():
                about.classes[node.name] = node.bases
            case ast.Attribute(ctx=ast.Load()):
                about.members.append((node.value, node.attr, node.lineno))
            case ast.Name(ctx=ast.Load()):
                about.mentions.setdefault(node.id, []).append(node.lineno)
            case _:
                pass
    for quoted in _quoted_annotations(tree):
        with suppress(SyntaxError):  # the help of an option stands in its annotation, too
            for node in ast.walk(ast.parse(quoted.value, mode="eval")):
                if isinstance(node, ast.Name):
                    about.mentions.setdefault(node.id, []).append(quoted.lineno)
    return about


def _quoted_annotations(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=found) | ast.AnnAssign(annotation=found):
                annotation = found
            case ast.FunctionDef(returns=found) | ast.AsyncFunctionDef(returns=found):
                annotation = found
            case _:
                continue
        for part in ast.walk(annotation) if annotation is not None else ():
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part


def _is_all(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
    )


def _reached(read: Mapping[str, _Module], own: set[Name]) -> Iterator[Name]:
    """Names that some module takes from another one and mentions."""
    for about in read.values():
        for local, (origin, name) in about.imports.items():
            if name is not None and local in about.mentions:
                yield _home(read, own, (origin, name))
        for value, name, _ in about.members:
            if isinstance(value, ast.Name):
                origin, inner = about.imports.get(value.id, (None, ""))
                if origin is not None and inner is None:
                    yield _home(read, own, (origin, name))


def _home(read: Mapping[str, _Module], own: set[Name], name: Name) -> Name:
    """Where a name that was handed on is defined."""
    while name not in own:
        module, local = name
        origin, inner = read[module].imports.get(local, (None, None)) if module in read else (None, None)
        if origin is None or inner is None or (origin, inner) == name:
            return name
        name = (origin, inner)
    return name


def _definitions(
    module: str,
    body: Iterable[ast.stmt],
    read: Mapping[str, _Module],
    owner: str | None = None,
    *,
    foreign: bool = False,
) -> Iterator[Definition]:
    for node in body:
        match node:
            case ast.If() | ast.Try():
                yield from _definitions(module, [*node.body, *node.orelse], read, owner, foreign=foreign)
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                decorators = tuple(ast.unparse(each) for each in node.decorator_list)
                last = node.end_lineno or node.lineno
                if not node.name.startswith("_"):
                    yield Definition(module, node.name, owner, node.lineno, last, decorators, foreign)
                if isinstance(node, ast.ClassDef):
                    outside = any(_is_foreign(read, module, base) for base in node.bases)
                    methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
                    yield from _definitions(module, methods, read, node.name, foreign=outside)
            case ast.Assign() | ast.AnnAssign():
                for name in _targets(node):
                    if not name.startswith("_"):
                        yield Definition(module, name, owner, node.lineno, node.end_lineno or node.lineno)
            case _:
                pass


def _targets(node: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        for each in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            if isinstance(each, ast.Name):
                yield each.id


def _is_foreign(read: Mapping[str, _Module], module: str, base: ast.expr) -> bool:
    """Whether a base class, or one of its own bases, comes from outside and calls what it declares."""
    about = read.get(module)
    root = base
    while isinstance(root, ast.Attribute | ast.Subscript):
        root = root.value
    if about is None or not isinstance(root, ast.Name):
        return False
    if root.id in about.outside:
        return about.outside[root.id] not in _NO_CONTRACT
    if isinstance(base, ast.Name):
        origin, name = about.imports.get(base.id, (module, base.id))
        bases = read[origin].classes.get(name or "", ()) if origin in read else ()
        return any(_is_foreign(read, origin, each) for each in bases)
    return False
