"""The storage surface: no side door, no hidden commit, honest probes."""

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import omnigraph
from omnigraph.core.errors import OmnigraphError
from omnigraph.core.events import Event, TableStaged, listen
from omnigraph.storage.handles import SnapshotHandle
from omnigraph.storage.indexes import IndexKind, IndexPlan
from omnigraph.storage.residual import InlineCommitResidual
from omnigraph.storage.tables import TableStorage, TableStore
from stores import PERSON, PLACE, STAMP, local_store

SOURCES = Path(omnigraph.__file__).parent

# -- 40: no module outside the allowed rooms touches Lance ------------------------------------------------

ALLOWED_ROOMS = {"storage", "manifest"}
MARKER = "# lance-allowed:"
"""Exempts its line; a reason follows."""

PRIVATE_NAMES = {"lance_dataset", "staged_work"}
PRIVATE_MEMBERS = {"_dataset", "_work", "_pool"}
WRITING_CALLS = {
    "write_dataset",
    "write_fragments",
    "merge_insert",
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
RESIDUAL_ROOMS = {"maintenance"}
HEAD_MOVERS = {"commit.py", "datasets.py", "residual.py"}
"""The only modules of the storage room that call Lance's commit, or something that commits."""


def imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            return [node.module or ""]
        case ast.Call(func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module")):
            return [
                a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)
            ]
        case _:
            return []


def violations(text: str, room: str) -> Iterator[str]:
    """Lines of a module outside the allowed rooms that reach around the storage surface."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        found: str | None = None
        if any(name.split(".")[0] == "lance" for name in imported(node)):
            found = "imports lance"
        elif isinstance(node, ast.ImportFrom) and PRIVATE_NAMES & {alias.name for alias in node.names}:
            found = "imports what is behind a handle"
        elif isinstance(node, ast.Attribute) and node.attr in PRIVATE_MEMBERS and not own(node.value):
            found = f"reaches for {node.attr}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in WRITING_CALLS:
                found = f"calls {node.func.attr}"
            elif node.func.attr == "storage_inline_residual" and room not in RESIDUAL_ROOMS:
                found = "calls storage_inline_residual"
        if found is not None and MARKER not in lines[node.lineno - 1]:
            yield f"{node.lineno}: {found}"


def own(value: ast.expr) -> bool:
    """Whether a private member belongs to the object that uses it."""
    return isinstance(value, ast.Name) and value.id in {"self", "cls"}


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
        "def f(handle):\n    return handle._dataset",
        "def f(tables):\n    tables._pool.at_head('x', None)",
        "def f(ds):\n    ds.merge_insert('id').execute(rows)",
        "def f(ds):\n    ds.drop_columns(['a'])",
        "def f(tables):\n    tables.storage_inline_residual().delete_where(h, 'x')",
    ],
)
def test_forbidden_api_guard_finds_seeded_violations(seeded: str) -> None:
    assert list(violations(seeded, "engine")) != []
    exempted = "\n".join(f"{line}  {MARKER} shown by a test" for line in seeded.splitlines())
    assert list(violations(exempted, "engine")) == []


def test_inside_the_storage_room_few_modules_move_a_head() -> None:
    found = {
        path.name
        for path in (SOURCES / "storage").glob("*.py")
        if list(moves_head(path.read_text(encoding="utf-8")))
    }
    assert found == HEAD_MOVERS


# -- 41: no member of the surface commits on the side -----------------------------------------------------

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("v", pa.list_(pa.float32(), 4)),
    ]
)


def some(first: int, count: int) -> pa.Table:
    flat = np.arange(first * 4, (first + count) * 4, dtype=np.float32)
    return pa.table(
        {
            "id": [f"k{n}" for n in range(first, first + count)],
            "text": [f"word{n}" for n in range(first, first + count)],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(flat), 4),
        },
        schema=SCHEMA,
    )


@pytest.fixture
def tables(tmp_path: Path) -> TableStore:
    return local_store(tmp_path).tables()


@pytest.fixture
def base(tables: TableStore) -> SnapshotHandle:
    made = tables.create_table(PERSON, PLACE, SCHEMA, STAMP)
    return tables.commit_staged(made, tables.stage_append(made, some(0, 64), STAMP))


def outside_fragments(tables: TableStore, base: SnapshotHandle) -> list[dict[str, Any]]:
    uri = tables._root.dataset_uri(base.location)
    return [fragment.to_json() for fragment in lance.fragment.write_fragments(some(900, 1), uri)]


QUIET: dict[str, Callable[[TableStore, SnapshotHandle], object]] = {
    "open_version": lambda t, h: t.open_version(PERSON, PLACE, None, h.version),
    "open_head": lambda t, h: t.open_head(PERSON, PLACE, None),
    "head_version": lambda t, h: t.head_version(PLACE, None),
    "scan": lambda t, h: t.scan(h).read_all(),
    "read": lambda t, h: t.read(h),
    "count_rows": lambda t, h: t.count_rows(h, filter="id = 'k1'"),
    "take": lambda t, h: t.take(h, [0, 1]),
    "addresses_of": lambda t, h: t.addresses_of(h, pa.array(["k1"])),
    "fragments": lambda t, h: t.fragments(h),
    "dead_rows": lambda t, h: t.dead_rows(h, t.fragments(h)[0]),
    "transaction_of": lambda t, h: t.transaction_of(PLACE, None, h.version),
    "stage_append": lambda t, h: t.stage_append(h, some(100, 2), STAMP),
    "stage_append_stream": lambda t, h: t.stage_append_stream(h, some(100, 2).to_reader(), STAMP),
    "stage_merge_insert": lambda t, h: t.stage_merge_insert(h, some(1, 100), STAMP),
    "stage_overwrite": lambda t, h: t.stage_overwrite(h, some(0, 1), STAMP),
    "stage_delete": lambda t, h: t.stage_delete(h, STAMP, predicate="id = 'k1'"),
    "stage_rewrite": lambda t, h: t.stage_rewrite(h, h.fragment_ids, STAMP),
    "stage_fragments": lambda t, h: t.stage_fragments(h, outside_fragments(t, h), "append", STAMP),
    "stage_indexes": lambda t, h: [
        t.stage_indexes(h, [IndexPlan(kind, column)], STAMP)
        for kind, column in ((IndexKind.BTREE, "id"), (IndexKind.INVERTED, "text"), (IndexKind.VECTOR, "v"))
    ],
    "rebase": lambda t, h: t.rebase(t.stage_append(h, some(100, 2), STAMP), h),
    "new_files": lambda t, h: t.new_files(h),
    "make_durable": lambda t, h: t.make_durable([h]),
    "branch_identifier": lambda t, h: t.branch_identifier(PLACE, None),
    "create_branch": lambda t, h: t.create_branch(PERSON, PLACE, "review", None, h.version),
    "delete_branch": lambda t, h: t.delete_branch(PLACE, "review"),
    "index_coverage": lambda t, h: t.index_coverage(h),
}
COMMITTING = {"create_table", "commit_staged", "restore"}
"""Members whose whole purpose is to make or move a HEAD."""


def members(surface: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(surface, callable) if not name.startswith("_")}


def test_storage_surface_has_no_inline_commit(tables: TableStore, base: SnapshotHandle) -> None:
    assert set(QUIET) | COMMITTING == members(TableStorage)
    uri = tables._root.dataset_uri(PLACE)
    content = lance.dataset(uri).to_table()
    for name, call in QUIET.items():
        assert call(tables, base) is not None or name in {"make_durable", "delete_branch"}
        head = lance.dataset(uri)
        assert head.version == base.version, f"{name} moved the HEAD"
    assert lance.dataset(uri).to_table() == content


def test_the_surface_is_sealed() -> None:
    assert TableStorage.__subclasses__() == [TableStore]
    with pytest.raises(TypeError, match=r"only omnigraph\.storage\.tables"):
        type("Other", (TableStorage,), {"__module__": __name__})
    with pytest.raises(TypeError, match=r"only omnigraph\.storage\.tables"):
        type("Deeper", (TableStore,), {"__module__": __name__})
    assert members(TableStore) - members(TableStorage) == {"storage_inline_residual"}


# -- 42: the residual members do move HEAD, and say so ----------------------------------------------------


def test_residual_members_move_head(tables: TableStore, base: SnapshotHandle) -> None:
    residual = tables.storage_inline_residual()
    assert members(InlineCommitResidual) == {"delete_where", "create_vector_index", "optimize_indices"}
    for name in members(InlineCommitResidual):
        assert "HEAD moves" in (getattr(InlineCommitResidual, name).__doc__ or "")

    deleted = residual.delete_where(base, "id = 'k1'")
    assert deleted.version == base.version + 1 == tables.head_version(PLACE, None)
    assert (deleted.row_count, base.row_count) == (63, 64)
    indexed = residual.create_vector_index(deleted, "v", num_partitions=2)
    assert indexed.version == deleted.version + 1 == tables.head_version(PLACE, None)
    assert [c.name for c in tables.index_coverage(indexed)] == ["v_vec"]
    grown = tables.commit_staged(indexed, tables.stage_append(indexed, some(100, 64), STAMP))
    folded = residual.optimize_indices(grown)
    assert folded.version > grown.version
    assert [c.uncovered for c in tables.index_coverage(folded)] == [frozenset()]
    assert tables.open_head(PERSON, PLACE, None).version == folded.version


# -- 43: probes count what succeeded ----------------------------------------------------------------------


def failing_source() -> Iterator[pa.RecordBatch]:
    yield some(100, 1).to_batches()[0]
    raise RuntimeError("the source broke")


def test_probe_counts_only_after_success(tables: TableStore, base: SnapshotHandle) -> None:
    def broken() -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(SCHEMA, failing_source())

    twice = pa.concat_tables([some(100, 1), some(100, 1)])
    heard: list[Event] = []

    def staged() -> list[tuple[str, int]]:
        return [(e.primitive, e.rows) for e in heard if isinstance(e, TableStaged)]

    failures: list[Callable[[], object]] = [
        lambda: tables.stage_append(base, pa.table({"other": [1]}), STAMP),
        lambda: tables.stage_append_stream(base, broken(), STAMP),
        lambda: tables.stage_merge_insert(base, broken(), STAMP),
        lambda: tables.stage_merge_insert(base, twice, STAMP),
        lambda: tables.stage_overwrite(base, broken(), STAMP),
        lambda: tables.stage_delete(base, STAMP, predicate="nosuch = 1"),
        lambda: tables.stage_indexes(base, [IndexPlan(IndexKind.VECTOR, "text")], STAMP),
        lambda: tables.stage_indexes(base, [IndexPlan(IndexKind.BTREE, "nosuch")], STAMP),
    ]
    with listen(heard.append):
        for fails in failures:
            with pytest.raises((OmnigraphError, RuntimeError, KeyError, TypeError)):
                fails()
            assert staged() == []
        tables.stage_append(base, some(100, 2), STAMP)
        tables.stage_append_stream(base, some(100, 3).to_reader(), STAMP)
        tables.stage_merge_insert(base, some(0, 4), STAMP)
        tables.stage_indexes(base, [IndexPlan(IndexKind.VECTOR, "v")], STAMP)
    assert staged() == [
        ("stage_append", 2),
        ("stage_append_stream", 3),
        ("stage_merge_insert", 4),
        ("stage_indexes", 0),
    ]
    heard.clear()
    tables.stage_append(base, some(100, 2), STAMP)
    assert heard == [], "nobody listened"
