"""Deltas and three-way merges of one table against dictionaries."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphs import FAST, hear
from omnigraph.arrays.addresses import ABSENT
from omnigraph.branching import changes as deltas
from omnigraph.branching import rows_in_memory as held
from omnigraph.branching.agreement import agreed
from omnigraph.branching.changes import table_delta
from omnigraph.branching.equality import rows_differ
from omnigraph.branching.merge_plan import RowMerge, three_way
from omnigraph.branching.mixed_rows import mixed_rows
from omnigraph.branching.property_merge import Sides, divide
from omnigraph.branching.settling import Choice, Resolution, settle
from omnigraph.core.events import StorageCall
from omnigraph.core.ids import BranchName, TableKey
from omnigraph.core.limits import MERGE_HELD_ROWS_MAX
from omnigraph.storage.handles import Stamp
from omnigraph.storage.layout import GraphRoot
from omnigraph.storage.objects import open_adapter
from omnigraph.storage.tables import TableStorage

pytestmark = pytest.mark.slow

KEY = TableKey("node:T")
STAMP = Stamp("op", KEY)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("n", pa.int32()),
        pa.field("texts", pa.list_(pa.string())),
    ]
)


class Table:
    """One table with branches, written like a dictionary."""

    def __init__(self, home):
        self.store = TableStorage(GraphRoot(str(home)), FAST, open_adapter(str(home)))
        self.handle = self.store.create_table(KEY, "nodes/t", SCHEMA, STAMP)

    def fork(self, name, handle):
        return self.store.create_branch(KEY, "nodes/t", BranchName(name), handle.branch, handle.version)

    def put(self, handle, rows):
        data = table_of(rows)
        return self.store.commit_staged(handle, self.store.stage_merge_insert(handle, data, STAMP))

    def drop(self, handle, ids):
        wanted = self.store.addresses_of(handle, pa.array(sorted(ids), pa.string()))
        staged = self.store.stage_delete(handle, STAMP, addresses=wanted)
        return handle if staged is None else self.store.commit_staged(handle, staged)

    def rows(self, handle):
        return {row["id"]: value(row) for row in self.store.read(handle).to_pylist()}

    def at(self, handle, addresses):
        return self.store.take(handle, addresses).to_pylist() if len(addresses) else []


def table_of(rows):
    """Rows of the schema; a value is a number, or a number and a list of texts."""
    pairs = [each if isinstance(each, tuple) else (each, None) for each in rows.values()]
    numbers, texts = zip(*pairs, strict=True) if pairs else ((), ())
    return pa.table({"id": list(rows), "n": list(numbers), "texts": list(texts)}, schema=SCHEMA)


def value(row):
    texts = row["texts"]
    return row["n"], None if texts is None else tuple(texts)


def described(table, old, new):
    delta = table_delta(table.store, old, new)
    inserted = {row["id"]: value(row) for row in table.at(new, delta.inserted.addresses)}
    updated = {row["id"]: value(row) for row in table.at(new, delta.updated.after)}
    before = {row["id"]: value(row) for row in table.at(old, delta.updated.before)}
    deleted = {row["id"]: value(row) for row in table.at(old, delta.deleted.addresses)}
    assert list(inserted) == delta.inserted.ids.to_pylist() == sorted(inserted)
    assert list(updated) == list(before) == delta.updated.ids.to_pylist() == sorted(updated)
    assert list(deleted) == delta.deleted.ids.to_pylist() == sorted(deleted)
    return delta, inserted, before, updated, deleted


def check(table, old, new):
    """The delta is the difference of two dictionaries, and `relocate` finds every row."""
    was, now = table.rows(old), table.rows(new)
    delta, inserted, before, updated, deleted = described(table, old, new)
    assert inserted == {key: now[key] for key in now if key not in was}
    assert deleted == {key: was[key] for key in was if key not in now}
    changed = [key for key in was if key in now and was[key] != now[key]]
    assert before == {key: was[key] for key in changed}
    assert updated == {key: now[key] for key in changed}
    assert delta.empty == (was == now)
    scanned = table.store.read(old, columns=["id"], with_row_address=True)
    moved = delta.relocate(scanned["_rowaddr"].to_numpy())
    for key, address in zip(scanned["id"].to_pylist(), moved, strict=True):
        if key in now:
            assert table.at(new, [address])[0]["id"] == key
        else:
            assert address == ABSENT


writes = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.dictionaries(
                st.sampled_from("abcdefgh"),
                st.tuples(
                    st.integers(0, 2) | st.none(), st.sampled_from([None, (), ("x",), ("x", "y"), (None,)])
                ),
                min_size=1,
            ),
        ),
        st.tuples(st.just("drop"), st.sets(st.sampled_from("abcdefgh"), min_size=1)),
    ),
    max_size=4,
)


def run(table, handle, operations):
    for name, what in operations:
        handle = table.put(handle, what) if name == "put" else table.drop(handle, what)
    return handle


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    return lambda: tmp_path_factory.mktemp("delta")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(first=writes, left=writes, right=writes, crossed=writes)
@pytest.mark.parametrize("held_rows", [MERGE_HELD_ROWS_MAX, 0])
def test_deltas_and_merges_like_dictionaries(homes, monkeypatch, held_rows, first, left, right, crossed):
    """Whether the rows are few and read whole, or many and read piece by piece."""
    for module in (held, deltas):
        monkeypatch.setattr(module, "MERGE_HELD_ROWS_MAX", held_rows)
    table = Table(homes())
    base = run(table, table.handle, first)
    theirs = run(table, table.fork("left", base), left)
    ours = run(table, base, right)
    for old, new in ((base, theirs), (base, ours), (theirs, ours), (theirs, base)):
        check(table, old, new)
    other = run(table, table.fork("crossed", base), crossed)
    for bases in ([base], [base, other], [other, base, other]):
        merge = agreed([merged_from(table, each, theirs, ours) for each in bases])
        for resolution in (Resolution(), Resolution(Choice.OURS), Resolution(Choice.THEIRS)):
            for whole in (False, True):
                judge_merge(table, merge, bases, theirs, ours, resolution, whole)


def merged_from(table, base, theirs, ours):
    return three_way(
        table_delta(table.store, base, theirs),
        table_delta(table.store, base, ours),
        lambda s, t: rows_differ(table.store, theirs, s, ours, t),
    )


def judge_merge(table, merge: RowMerge, bases, theirs, ours, resolution, whole):
    """Value by value as the truth table says, where all bases say the same."""
    former, s, t = [table.rows(base) for base in bases], table.rows(theirs), table.rows(ours)
    expected, conflicts = {}, []
    for key in sorted({*s, *t}):
        was = [side.get(key) for side in former]
        result, kind = expected_row(was, s.get(key), t.get(key), resolution.everything, whole)
        if kind is not None and resolution.everything is None:
            conflicts.append((key, kind))
        if result is not None:
            expected[key] = result
    divided = divide(
        Sides(table.store, theirs, ours, bases),
        merge.collisions,
        together=(),
        whole=np.full(len(merge.collisions), whole),
    )
    settled = settle(KEY, merge, divided, resolution)
    assert [(each.row_id, each.kind.value) for each in settled.conflicts] == conflicts
    assert applied(table, settled.changes, theirs, ours) == expected


def expected_row(was, their, our, choice, whole):
    """What a merge makes of one row, and the kind of its conflict: rows are tuples, None is no row."""
    if their == our or all(each == their for each in was):
        return our, None
    if all(each == our for each in was):
        return their, None
    if their is None or our is None:
        return (their if choice is Choice.THEIRS else our), "delete_vs_update"
    kind = "divergent_update" if any(each is not None for each in was) else "divergent_insert"
    if whole:
        return (their if choice is Choice.THEIRS else our), kind
    values, open_ = [], False
    for column, (mine, yours) in enumerate(zip(their, our, strict=True)):
        base = [None if each is None else (each[column],) for each in was]
        if mine == yours or all(each == (mine,) for each in base):
            values.append(yours)
        elif all(each == (yours,) for each in base):
            values.append(mine)
        else:
            open_ = True
            values.append(mine if choice is Choice.THEIRS else yours)
    return (our if open_ and choice is None else tuple(values)), kind if open_ else None


def applied(table, changes, theirs, ours):
    """The rows of the target after the changes; each is touched once."""
    rows = table.rows(ours)
    for row in table.at(ours, changes.deletes.addresses):
        del rows[row["id"]]
    replaced = [row["id"] for row in table.at(ours, changes.upserts.before)]
    written = table.at(theirs, changes.upserts.after)
    assert replaced == [row["id"] for row in written]
    rows |= {row["id"]: value(row) for row in written}
    for row in table.at(theirs, changes.appends.addresses):
        assert row["id"] not in rows
        rows[row["id"]] = value(row)
    pieces = mixed_rows(table.store, changes.mixed, theirs, ours, list(SCHEMA))
    mixed = [row for piece in pieces for row in piece.to_pylist()]
    assert [row["id"] for row in mixed] == changes.mixed.pairs.ids.to_pylist()
    assert not {row["id"] for row in mixed} & {*replaced}
    return rows | {row["id"]: value(row) for row in mixed}


@pytest.mark.parametrize("above", [0, 1])
def test_rows_are_held_up_to_the_limit(above, tmp_path):
    """Rows in memory are the rows of the table, without those that were deleted, in the order asked for."""
    table = Table(tmp_path)
    before = table.put(table.handle, {"a": 1})
    rows = {f"k{number:04}": number for number in range(MERGE_HELD_ROWS_MAX + 1 + above)}
    after = table.drop(table.put(before, rows), {"k0001"})
    delta = table_delta(table.store, before, after)
    assert len(delta.inserted) == MERGE_HELD_ROWS_MAX + above
    if above:
        assert delta.held is None
        return
    chosen = delta.inserted.addresses[::-3]
    assert delta.held.take(chosen).to_pylist() == table.at(after, chosen)
    assert delta.held.take(delta.inserted.addresses + np.uint64(1)) is None


def test_a_missing_table_is_empty(tmp_path):
    table = Table(tmp_path)
    full = table.put(table.handle, {"a": 1, "b": None})
    assert table_delta(table.store, None, full).inserted.ids.to_pylist() == ["a", "b"]
    assert table_delta(table.store, full, None).deleted.ids.to_pylist() == ["a", "b"]
    assert table_delta(table.store, None, None).empty


def test_a_rewrite_with_equal_values_is_no_change(tmp_path):
    table = Table(tmp_path)
    rows = {f"k{n}": n for n in range(100)}
    before = table.put(table.handle, rows)
    data = table_of(rows)
    after = table.store.commit_staged(before, table.store.stage_overwrite(before, data, STAMP))
    delta = table_delta(table.store, before, after)
    assert delta.empty
    check(table, before, after)


def test_the_cost_of_a_delta_does_not_follow_the_table(tmp_path):
    """Ten times the table, the same calls; no call reads properties of unchanged rows."""
    calls = []
    for size in (200, 2000):
        table = Table(tmp_path / str(size))
        before = table.put(table.handle, {f"k{n}": n for n in range(size)})
        after = table.drop(table.put(before, {"k7": 0, "new": 1}), {"k8"})
        with hear(everywhere=True) as heard:
            delta = table_delta(table.store, before, after)
        assert (len(delta.inserted), len(delta.updated), len(delta.deleted)) == (1, 1, 1)
        calls.append(sorted(each.kind for each in heard.of(StorageCall)))
    assert calls[0] == calls[1]
