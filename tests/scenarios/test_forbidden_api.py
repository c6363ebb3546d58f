"""No side door: outside the rooms that know Lance nothing can write to a table around the storage surface."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import omnigraph

SOURCES = Path(omnigraph.__file__).parent
ALLOWED_ROOMS = {"storage", "manifest"}
MARKER = "# lance-allowed:"
"""Exempts its line; a reason follows."""

BEHIND_HANDLES = {"lance_dataset", "staged_work"}
BEHIND_THE_SURFACE = {f"omnigraph.storage.{name}" for name in ("commit", "datasets", "residual", "staging")}
PRIVATE_MEMBERS = {"_dataset", "_work", "_pool", "_residual"}
ALWAYS = {
    "write_dataset",
    "write_fragments",
    "merge_insert",
    "create_index",
    "create_scalar_index",
    "create_index_uncommitted",
    "commit_batch",
    "commit_existing_index_segments",
    "truncate_table",
    "add_columns",
    "alter_columns",
    "drop_columns",
    "cleanup_old_versions",
    "compact_files",
    "optimize_indices",
    "checkout_version",
    "shallow_clone",
    "delete_rows",
}
"""Members that only a dataset has: nobody mentions them."""
HARMLESS_WITHOUT_CALL = {"commit"}
"""Also fields of our own values: only a call is one of Lance's."""
SHARED = {"delete", "update", "insert"}
"""Members that others have, too: who is asked decides."""
OWNERS = {
    "delete": {
        "np",
        "self",
        "run",
        "self.staging",
        "self._adapter",
        "session.adapter",
        "context.adapter",
        "graph.branches",
        "graph.tags",
        "self._session.manifest.tags",
        "self.session.manifest.tags",
    },
    "insert": {"np", "run", "sys.meta_path"},
    "update": {"run", "os.environ", "error.__dict__", "self._bar"},
    "restore": {"context.storage", "graph.branches"},
    "create_branch": {"session.storage"},
    "delete_branch": {"session.storage", "context.storage", "session.manifest"},
}
"""Whom the product asks for these: arrays, text objects, branches and tags, a bar, its own accumulators."""
CONTAINERS = {"set", "dict", "list", "Counter", "defaultdict", "OrderedDict", "hashlib", "_Types"}
RESTORING_ROOMS = {"recovery"}
BRANCH_HANDLES = {"graph.branches"}
"""They restore a branch by a commit of its own, never a table."""
RESIDUAL_ROOMS = {"maintenance"}
HEAD_MOVERS = {"commit.py", "datasets.py", "residual.py"}
"""The only modules of the storage room that call Lance's commit, or something that commits."""


def violations(text: str, room: str) -> Iterator[str]:
    """Lines of a module outside the allowed rooms that reach around the storage surface."""
    lines = text.splitlines()
    tree = ast.parse(text)
    containers = set(_containers(tree))
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        found = _imported(node) or _fetched(node, room)
        if found is None and isinstance(node, ast.Attribute):
            found = _mentioned(node, room, containers, called=id(node) in called)
        if found is not None and MARKER not in lines[node.lineno - 1]:
            yield f"{node.lineno}: {found}"


def _imported(node: ast.AST) -> str | None:
    names: list[str] = []
    match node:
        case ast.Import():
            names = [alias.name for alias in node.names]
        case ast.ImportFrom(module=str(module)):
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            if BEHIND_HANDLES & {alias.name for alias in node.names}:
                return "imports what is behind a handle"
        case ast.Call(func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module")):
            names = [_text(argument) for argument in node.args[:1]]
        case _:
            pass
    if any(name.split(".")[0] == "lance" for name in names):
        return "imports lance"
    return "imports what is behind the surface" if BEHIND_THE_SURFACE & set(names) else None


def _fetched(node: ast.AST, room: str) -> str | None:
    """A member that is asked for by its name as a text."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"):
        return None
    wanted = _text(node.args[1]) if len(node.args) > 1 else ""
    forbidden = ALWAYS | SHARED | PRIVATE_MEMBERS | {"commit", "restore"}
    if room not in RESIDUAL_ROOMS:
        forbidden |= {"storage_inline_residual"}
    return f"asks for {wanted}" if wanted in forbidden else None


def _mentioned(node: ast.Attribute, room: str, containers: set[str], *, called: bool) -> str | None:
    name, asked = node.attr, ast.unparse(node.value)
    if name in PRIVATE_MEMBERS and asked not in {"self", "cls"}:
        return f"reaches for {name}"
    if name in ALWAYS or (name in HARMLESS_WITHOUT_CALL and called):
        return f"mentions {name}"
    if name == "storage_inline_residual" and room not in RESIDUAL_ROOMS:
        return "reaches for the residual surface"
    if isinstance(node.value, ast.Attribute) and node.value.attr == "optimize":
        return "reaches for Lance's maintenance"
    if name == "restore" and room not in RESTORING_ROOMS and asked not in BRANCH_HANDLES:
        return "restores a table"
    if name in OWNERS and asked not in OWNERS[name] and not (name in SHARED and asked in containers):
        return f"asks '{asked}' to {name}"
    return None


def _containers(tree: ast.Module) -> Iterator[str]:
    """What a module makes, or declares, as a set, a dictionary or a list (or a hash, which is fed, too)."""
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                pairs = [(target, annotation), *([] if value is None else [(target, value)])]
            case ast.arg(annotation=ast.expr() as annotation):
                pairs = [(ast.Name(node.arg), annotation)]
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pairs = list(zip(targets, values, strict=True))
            case ast.Assign(targets=[target], value=value):
                pairs = [(target, value)]
            case _:
                continue
        for target, made in pairs:
            if _is_container(made):
                yield ast.unparse(target)
                yield f"self.{ast.unparse(target)}"


def _is_container(made: ast.expr) -> bool:
    match made:
        case ast.Dict() | ast.Set() | ast.List() | ast.DictComp() | ast.SetComp() | ast.ListComp():
            return True
        case ast.Name(id=name):
            return name in CONTAINERS
        case (
            ast.Call(func=inner) | ast.Subscript(value=inner) | ast.BinOp(left=inner) | ast.IfExp(body=inner)
        ):
            return _is_container(inner)
        case ast.Attribute(value=inner):
            return _is_container(inner)
        case _:
            return False


def _text(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def moves_head(text: str) -> Iterator[int]:
    movers = {"commit", "restore", "delete", "update", "insert", "create_index", "optimize", "write_dataset"}
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        target = ast.unparse(node.func.value)
        about_rows = ".branches" not in target and any(
            n in target for n in ("LanceDataset", "dataset", "lance")
        )
        if node.func.attr in movers and about_rows:
            yield node.lineno


@pytest.mark.slow
def test_forbidden_api_guard_clean() -> None:
    found = {
        str(path.relative_to(SOURCES)): list(violations(path.read_text(encoding="utf-8"), room))
        for path in sorted(SOURCES.rglob("*.py"))
        if (room := path.relative_to(SOURCES).parts[0]) not in ALLOWED_ROOMS
    }
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert len(found) > 20, "the walk found the product"


@pytest.mark.parametrize(
    "seeded",
    [
        "import lance",
        "import lance.fragment as f",
        "from lance import LanceDataset",
        "def f():\n    from lance.fragment import write_fragments",
        "import importlib\nimportlib.import_module('lance')",
        "from omnigraph.storage.handles import lance_dataset",
        "from omnigraph.storage.commit import restore",
        "from omnigraph.storage import commit",
        "from omnigraph.storage.residual import InlineCommitResidual",
        "def f(handle):\n    return handle._dataset",
        "def f(tables):\n    tables._pool.at_head('x', None)",
        "def f(ds):\n    ds.merge_insert('id').execute(rows)",
        "def f(ds):\n    ds.drop_columns(['a'])",
        "def f(ds):\n    ds.delete('id = 1')",
        "def f(ds):\n    ds.update({'a': '1'}, where='id = 1')",
        "def f(ds):\n    ds.insert(rows)",
        "def f(ds):\n    ds.commit(uri, operation)",
        "def f(ds):\n    ds.create_index('v', 'IVF_FLAT')",
        "def f(ds):\n    ds.optimize.compact_files()",
        "def f(ds):\n    ds.optimize.whatever()",
        "def f(ds):\n    remove = ds.delete\n    remove('id = 1')",
        "def f(ds):\n    getattr(ds, 'delete')('id = 1')",
        "def f(session, head):\n    session.storage.restore(head, 3, operation_id='x')",
        "def f(dataset):\n    dataset.create_branch('b')",
        "def f(tables):\n    tables.storage_inline_residual().delete_where(h, 'x')",
        "def f(tables):\n    residual = tables.storage_inline_residual\n    residual().delete_where(h, 'x')",
        "def f(tables):\n    getattr(tables, 'storage_inline_residual')()",
        "def f(tables):\n    tables._residual.delete_where(h, 'x')",
    ],
)
def test_forbidden_api_guard_finds_seeded_violations(seeded: str) -> None:
    assert list(violations(seeded, "engine")) != []
    exempted = "\n".join(f"{line}  {MARKER} shown by a test" for line in seeded.splitlines())
    assert list(violations(exempted, "engine")) == []


@pytest.mark.parametrize(
    "harmless",
    [
        "def f():\n    found: set[str] = set()\n    found.update(['a'])",
        "found = {'a': 1}\nfound.update(b=2)",
        "def f(names: list[str]):\n    names.insert(0, 'a')",
        "def f(report):\n    return report.commit",
        "def f(session):\n    session.adapter.delete('name')",
    ],
)
def test_the_guard_lets_containers_texts_and_fields_pass(harmless: str) -> None:
    assert list(violations(harmless, "engine")) == []


@pytest.mark.slow
def test_inside_the_storage_room_few_modules_move_a_head() -> None:
    found = {
        path.name
        for path in (SOURCES / "storage").glob("*.py")
        if list(moves_head(path.read_text(encoding="utf-8")))
    }
    assert found == HEAD_MOVERS
