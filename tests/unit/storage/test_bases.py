"""Tables of a graph that was moved: no version leads back to the place it was written in."""

import pickle
from pathlib import Path

import boto3
import lance
import pytest

from omnigraph.core.errors import StoragePermanent
from omnigraph.core.ids import BranchName
from omnigraph.storage.bases import BaseOutsideGraph, base_here
from omnigraph.storage.indexes import IndexKind, IndexPlan
from omnigraph.storage.layout import GraphRoot
from omnigraph.storage.manifest_files import manifest_object, with_base_paths
from omnigraph.storage.tables import TableStorage
from omnigraph.storage.version_files import base_roots
from stores import PERSON, PLACE, STAMP, Store, content, filled, local_store, rows, s3_store

REVIEW = BranchName("review/one")
CHILD = BranchName("child")
THIRD = BranchName("third")


def grown(tables: TableStorage) -> dict[BranchName, int]:
    """A fork and a fork of it, with rows and deletions of their own; the newest version of each."""
    base = filled(tables, ["a", "b"], ["c"])
    made = tables.create_branch(PERSON, PLACE, REVIEW, None, base.version)
    made = tables.commit_staged(made, tables.stage_append(made, rows(["r"]), STAMP))
    made = tables.commit_staged(made, tables.stage_delete(made, STAMP, predicate="id IN ('a')"))
    kid = tables.create_branch(PERSON, PLACE, CHILD, REVIEW, made.version)
    kid = tables.commit_staged(kid, tables.stage_append(kid, rows(["k"]), STAMP))
    return {REVIEW: made.version, CHILD: kid.version}


STATES = {REVIEW: {"b": 0, "c": 0, "r": 0}, CHILD: {"b": 0, "c": 0, "r": 0, "k": 0}}


def moved_away(store: Store, tmp_path: Path) -> Store:
    """The same files in another place; nothing is left in the old one."""
    if store.root.is_local:
        Path(store.uri).rename(tmp_path / "else where")
        return Store(str(tmp_path / "else where"))
    target = s3_store()
    client = boto3.resource(
        "s3",
        endpoint_url=store.storage_options["aws_endpoint"],
        aws_access_key_id="test",
        aws_secret_access_key="test",
        region_name="us-east-1",
    )
    name, _, prefix = store.uri.removeprefix("s3://").partition("/")
    bucket = client.Bucket(name)
    for each in list(bucket.objects.filter(Prefix=f"{prefix}/")):
        new = each.key.replace(prefix, target.uri.removeprefix(f"s3://{name}/"), 1)
        bucket.Object(new).copy({"Bucket": name, "Key": each.key})
        each.delete()
    client.meta.client.close()
    return target


def test_moved_tables_are_read_and_written_where_they_lie(table_store: Store, tmp_path: Path) -> None:
    versions = grown(table_store.tables())
    here = moved_away(table_store, tmp_path)
    tables = here.tables()
    for _ in range(2):  # again, now that the graph is known to have moved
        for branch, version in versions.items():
            assert content(tables, tables.open_version(PERSON, PLACE, branch, version)) == STATES[branch]
        tables = here.tables()
    head = tables.open_head(PERSON, PLACE, CHILD)
    after = tables.commit_staged(head, tables.stage_append(head, rows(["later"]), STAMP))
    after = tables.commit_staged(after, tables.stage_delete(after, STAMP, predicate="id IN ('b', 'r')"))
    index = tables.stage_indexes(after, [IndexPlan(IndexKind.BTREE, "id")], STAMP)
    assert index is not None
    after = tables.commit_staged(after, index)
    assert content(tables, after) == {"c": 0, "k": 0, "later": 0}
    raw = lance.dataset(here.root.dataset_uri(PLACE, CHILD), storage_options=here.storage_options or None)
    assert raw.version == after.version
    assert all(path.startswith(here.uri) for path in base_roots(raw).values()), "new manifests, new paths"


def test_a_restore_in_a_moved_graph_shows_this_place(table_store: Store, tmp_path: Path) -> None:
    versions = grown(table_store.tables())
    tables = moved_away(table_store, tmp_path).tables()
    head = tables.open_head(PERSON, PLACE, CHILD)
    after = tables.commit_staged(head, tables.stage_append(head, rows(["later"]), STAMP))
    back = tables.restore(after, versions[CHILD], operation_id=STAMP.operation_id)
    assert content(tables, back) == STATES[CHILD]
    assert content(tables, tables.open_head(PERSON, PLACE, CHILD)) == STATES[CHILD]


def test_forks_in_a_moved_graph_show_this_place(table_store: Store, tmp_path: Path) -> None:
    versions = grown(table_store.tables())
    tables = moved_away(table_store, tmp_path).tables()
    made = tables.create_branch(PERSON, PLACE, THIRD, CHILD, versions[CHILD])
    assert content(tables, made) == STATES[CHILD]
    made = tables.commit_staged(made, tables.stage_append(made, rows(["t"]), STAMP))
    assert content(tables, made) == STATES[CHILD] | {"t": 0}


def test_an_inline_write_in_a_moved_graph_keeps_to_this_place(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    grown(store.tables())
    tables = moved_away(store, tmp_path).tables()
    after = tables.storage_inline_residual().delete_where(tables.open_head(PERSON, PLACE, CHILD), "id = 'b'")
    assert content(tables, after) == {"c": 0, "r": 0, "k": 0}


def test_rows_staged_before_the_fork_find_their_base_after_a_move(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    grown(store.tables())
    tables = moved_away(store, tmp_path).tables()
    staged = tables.stage_append(tables.open_head(PERSON, PLACE, None), rows(["early"]), STAMP)
    made = tables.open_head(PERSON, PLACE, CHILD)
    after = tables.commit_staged(made, tables.rebase(staged, made))
    assert content(tables, after) == STATES[CHILD] | {"early": 0}


def test_a_base_outside_the_graph_is_refused_by_name(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    versions = grown(store.tables())
    file = Path(store.uri) / manifest_object(PLACE, REVIEW, versions[REVIEW])
    whole = file.read_bytes()
    foreign = str(tmp_path / "elsewhere" / "nodes" / "another")
    old = f"{store.uri}/{PLACE}"
    length = len(old.encode())
    assert length < 128, "one byte holds it"
    assert whole.count(bytes([length]) + old.encode()) == 1
    padded = foreign.ljust(length, "x")[:length]
    file.write_bytes(whole.replace(old.encode(), padded.encode()))
    with pytest.raises(BaseOutsideGraph) as caught:
        store.tables().open_version(PERSON, PLACE, REVIEW, versions[REVIEW])
    assert (caught.value.file, caught.value.base) == (str(file), padded)
    assert isinstance(caught.value, StoragePermanent)
    assert caught.value.kind == "storage_permanent"
    assert str(file) in str(caught.value)
    assert padded in str(caught.value)
    assert caught.value.hint is not None
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.file, again.base, str(again)) == (str(file), padded, str(caught.value))


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/new/nodes/ab", "/new/nodes/ab"),
        ("/new/nodes/ab/tree/x/y", "/new/nodes/ab/tree/x/y"),
        ("/old/place/nodes/ab", "/new/nodes/ab"),
        ("/old/place/nodes/ab/tree/x/y", "/new/nodes/ab/tree/x/y"),
        ("/new/nodes/ab/nodes/ab", "/new/nodes/ab"),
        ("s3://bucket/nodes/ab/tree/tree/b", "/new/nodes/ab/tree/tree/b"),
        ("/old/nodes/cd", None),
        ("/old/nodes/ab/tree/", None),
        ("/old/nodes/ab/data", None),
        ("/old/xnodes/ab", None),
        ("nodes/ab", None),
        ("", None),
    ],
)
def test_where_a_base_lies_now(path: str, found: str | None) -> None:
    assert base_here(GraphRoot("/new"), "nodes/ab", path) == found


@pytest.mark.parametrize(
    "message",
    [
        b"\x92\x01\x05abc",
        b"\x92",
        b"\x0b",
        b"\x92\x01\x03\x22\x05a",
        b"\x92\x01\x03\x22\x01\xff",
        b"\x09\x01",
    ],
    ids=["cut member", "cut tag", "unknown kind", "cut inside", "no text", "cut number"],
)
def test_what_is_no_manifest_message_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError):
        with_base_paths(message, lambda path: path)


def test_long_paths_get_long_lengths() -> None:
    short = b"\x08\x07\x92\x01\x06\x18\x01\x22\x02/a\xb8\x01\x00"
    long = "/" + "x" * 300
    grown = with_base_paths(short, lambda _: long)
    assert grown == b"\x08\x07\x92\x01\xb2\x02\x18\x01\x22\xad\x02" + long.encode() + b"\xb8\x01\x00"
    assert with_base_paths(grown, lambda _: "/a") == short
