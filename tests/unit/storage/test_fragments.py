"""A fragment is one value, from the task that wrote it to the commit that numbers it."""

import pickle
from dataclasses import replace

import orjson

from omnigraph.storage.fragments import remove_fragments, write_uncommitted_fragments
from omnigraph.storage.handles import NO_NUMBER, Fragment
from stores import PLACE, STAMP, Store, content, filled, rows


def written(table_store: Store, ids: list[str]) -> tuple[Fragment, ...]:
    tables = table_store.tables()
    handle = filled(tables, ["a"])
    return write_uncommitted_fragments(
        table_store.root, tables, handle, rows(ids), operation_id="op", replaces_all=False
    )


def test_a_fragment_survives_a_pickle_and_a_journal(table_store: Store) -> None:
    (fragment,) = written(table_store, ["x", "y"])
    assert (fragment.id, fragment.live_rows, fragment.deletions) == (NO_NUMBER, 2, None)
    assert pickle.loads(pickle.dumps(fragment)) == fragment
    read = Fragment.from_members(orjson.loads(orjson.dumps(fragment)))
    assert (read, read.metadata, read.bytes) == (fragment, fragment.metadata, fragment.bytes)


def test_a_committed_fragment_names_the_files_its_task_wrote(table_store: Store) -> None:
    (fragment,) = written(table_store, ["x", "y"])
    tables = table_store.tables()
    base = tables.open_head(STAMP.table_key, PLACE, None)
    after = tables.commit_staged(base, tables.stage_fragments(base, [fragment], "append", STAMP))
    assert content(tables, after) == {"a": 0, "x": 0, "y": 0}
    (adopted,) = tables.fragments(after, above=0)
    assert adopted.holds_rows_of(fragment)
    assert adopted.bytes == fragment.bytes > 0
    assert adopted == replace(fragment, id=adopted.id)


def test_the_files_of_an_unwanted_fragment_are_removed_from_a_disk(table_store: Store) -> None:
    fragments = written(table_store, ["x"])
    remove_fragments(table_store.root, fragments)
    remove_fragments(table_store.root, fragments)
    tables = table_store.tables()
    base = tables.open_head(STAMP.table_key, PLACE, None)
    assert content(tables, base) == {"a": 0}
    left = [name for each in fragments for name in each.files if table_store.adapter().exists(name)]
    assert len(left) == (0 if table_store.root.is_local else 1)


def test_a_fragment_that_left_a_version_keeps_the_place_of_its_rows() -> None:
    fragment = Fragment(3, ("f",), 5, "d", 2)
    gone = fragment.gone()
    assert gone.holds_rows_of(fragment)
    assert (gone.id, gone.live_rows) == (NO_NUMBER, 0)
