"""Every method of a graph is there over a server with the same signature, or says that it cannot be."""

import inspect
import io
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from graphs import make_graph
from omnigraph.api.branches import Branches, Commits
from omnigraph.api.graph import Graph
from omnigraph.api.history import Feed, Tags
from omnigraph.client.parts import RemoteBranches, RemoteCommits, RemoteFeed, RemoteTags
from omnigraph.client.remote import RemoteGraph
from omnigraph.core.cancel import Cancellation
from omnigraph.core.errors import (
    ActorNotSettable,
    BadRequest,
    Cancelled,
    EntityNotFound,
    MergeConflicts,
    NotRemote,
    OmnigraphError,
    PreconditionFailed,
)
from omnigraph.core.permission import WRITERS
from omnigraph.server.served import GraphToServe
from server.conftest import ADD, BY_IMO, RENAME, SHIPS, Running, Serve

LOCAL_ONLY = {
    # What needs the storage, the files or the Spark of this process.
    "session",
    "frames",
    "clone",
    "export_to",
    "load_frames",
    "resumable_loads",
    "catalog",
    "plan_schema",
    "embed",
    # What an operator does beside the server.
    "ensure_indices",
    "erase",
    "repair",
    "verify",
    "pending",
    "refresh",
    "recoveries",
}
PAIRS = (
    (Graph, RemoteGraph),
    (Branches, RemoteBranches),
    (Commits, RemoteCommits),
    (Tags, RemoteTags),
    (Feed, RemoteFeed),
)
MANY = """
node Paper { slug: String @key  scan: Blob? }
node Day { on: Date @key  note: String?  seen: DateTime?  share: F64?  tags: [String]? }
node Seat { row: I32  letter: String  @key(row, letter) }
edge Cites: Paper -> Paper { page: I32? }
"""


def raised(call: Any) -> OmnigraphError:
    with pytest.raises(OmnigraphError) as caught:
        call()
    return caught.value


@pytest.fixture
def server(serve: Serve, tmp_path: Path) -> Running:
    with make_graph(tmp_path / "many.omni", MANY) as graph:
        graph.load(
            io.BytesIO(
                b'{"type":"Paper","data":{"slug":"p1","scan":"base64:aGVsbG8gd29ybGQ="}}\n'
                b'{"type":"Paper","data":{"slug":"p2"}}\n'
                b'{"type":"Day","data":{"on":"2026-01-02","note":"\xc3\xa9","seen":"2026-01-02T03:04:05Z",'
                b'"share":0.1,"tags":["a"]}}\n'
                b'{"type":"Seat","data":{"row":12,"letter":"C"}}\n'
                b'{"edge":"Cites","from":"p1","to":"p2","data":{"page":3}}\n'
            ),
            mode="append",
            engine="local",
        )
    other = GraphToServe("many", str(tmp_path / "many.omni"), WRITERS)
    return serve({"act-ines": "t1"}, others=[other])


@pytest.fixture
def remote(server: Running) -> Iterator[RemoteGraph]:
    with omnigraph.connect(server.url, graph="harbor", token="t1") as graph:
        yield graph


@pytest.fixture
def many(server: Running) -> Iterator[RemoteGraph]:
    with omnigraph.connect(server.url, graph="many", token="t1") as graph:
        yield graph


def test_every_method_is_there_with_the_same_signature_or_cannot_be_remote(remote: RemoteGraph) -> None:
    for here, there in PAIRS:
        for name in dir(here):
            if name.startswith("_") or (here is Graph and name in LOCAL_ONLY):
                continue
            member = inspect.getattr_static(here, name)
            if not inspect.isfunction(member):
                assert hasattr(remote, name), name
                continue
            mine = inspect.signature(member).parameters
            told = inspect.signature(inspect.getattr_static(there, name)).parameters
            assert list(mine) == list(told), f"{here.__name__}.{name}"
            for each in mine:
                assert mine[each].kind == told[each].kind, (name, each)
                if (name, each) != ("load", "engine"):  # a server never has Spark
                    assert mine[each].default == told[each].default, (name, each)


def test_what_cannot_be_remote_is_named_and_raises_its_kind(remote: RemoteGraph) -> None:
    assert set(dir(Graph)) >= LOCAL_ONLY
    for name in LOCAL_ONLY:
        assert isinstance(raised(lambda name=name: getattr(remote, name)), NotRemote)
    for part in (remote.branches, remote.commits, remote.tags, remote.feed):
        assert isinstance(raised(lambda part=part: part.no_such_name), NotRemote)
    for call in (
        lambda: remote.load("people.csv", mode="merge"),
        lambda: remote.load("people.jsonl.gz", mode="merge"),
        lambda: remote.load(io.BytesIO(), mode="merge", rejects="aside"),
        lambda: remote.load(io.BytesIO(), mode="merge", delimiter=";"),
        lambda: list(remote.export_chunks(format="csv")),
    ):
        assert isinstance(raised(call), NotRemote)


def test_an_actor_is_never_said_and_a_cancelled_call_is_not_sent(remote: RemoteGraph) -> None:
    assert isinstance(raised(lambda: remote.mutate(ADD, {}, actor="somebody")), ActorNotSettable)
    stop = Cancellation()
    stop.request()
    assert isinstance(raised(lambda: remote.query(BY_IMO, {"imo": "S1"}, cancel=stop)), Cancelled)


@pytest.mark.slow
def test_the_limits_of_a_call_are_kept_by_the_server(remote: RemoteGraph, server: Running) -> None:
    assert remote.query(BY_IMO, {"imo": "S1"}, timeout_s=60.0)[0]["s.name"] == "Aurora"
    every = "query q() { match { $a: Ship $b: Ship } return { $a.imo, $b.imo } }"
    small = raised(lambda: remote.query(every, memory_bytes=1))
    assert small.details["resource_limit"]["limit"] == 1
    for name, value in (("X-Timeout-Ms", "0"), ("X-Memory-Bytes", "-1"), ("X-Timeout-Ms", "1e3")):
        body = {"query": BY_IMO, "params": {"imo": "S1"}}
        answer = server.post("/query", body, "act-ines", headers={name: value})
        assert (answer.status_code, answer.json()["kind"]) == (400, "bad_request")


@pytest.mark.slow
def test_entities_have_the_same_values_and_types(many: RemoteGraph, tmp_path: Path) -> None:
    with omnigraph.open_read_only(tmp_path / "many.omni") as here:
        edge = next(iter(here.diff(here.commits.list()[-1].id, "main", types=["Cites"]))).id
        for named in (
            ("Paper", "p1"),
            ("Paper", "p2"),
            ("Day", date(2026, 1, 2)),
            ("Day", "2026-01-02"),
            ("Seat", {"row": 12, "letter": "C"}),
            ("Cites", edge),
        ):
            assert many.entity(*named) == here.entity(*named)
            assert many.entity(*named, at=here.commits.head().id) == here.entity(*named)
            assert many.at("main").entity(*named) == here.entity(*named)
            assert many.blame(*named).to_dict() == here.blame(*named).to_dict()
        assert isinstance(raised(lambda: many.entity("Paper", "p9")), EntityNotFound)
        assert many.blob("Paper", "p1", "scan") == here.blob("Paper", "p1", "scan")
        assert b"".join(many.blob("Paper", "p1", "scan").chunks(1, 4)) == b"ell"
        for wrong in (("Paper", "p2", "scan"), ("Paper", "p1", "slug"), ("Paper", "p9", "scan")):
            assert raised(lambda wrong=wrong: many.blob(*wrong)).kind == (
                raised(lambda wrong=wrong: here.blob(*wrong)).kind
            )


@pytest.mark.slow
def test_states_and_plans_are_told_alike(remote: RemoteGraph, harbor: Graph) -> None:
    harbor.branches.create("topic")
    harbor.mutate(RENAME, {"imo": "S1", "name": "Alba"}, branch="topic")
    for branch in (None, "main", "topic"):
        assert remote.snapshot(branch=branch).to_dict() == harbor.snapshot(branch=branch).to_dict()
        assert remote.indexes(branch=branch).to_dict() == harbor.indexes(branch=branch).to_dict()
        here, there = harbor.stats(branch=branch), remote.stats(branch=branch)
        assert (there.branches, there.stored) == (here.branches, here.stored)
    explained = remote.explain(BY_IMO, {"imo": "S1"})
    assert str(explained) == str(harbor.explain(BY_IMO, {"imo": "S1"}))
    ran = remote.explain(BY_IMO, {"imo": "S1"}, analyze=True)
    assert (ran.analyzed, ran.rows) == (True, 1)
    assert remote.branches.details() == harbor.branches.details()
    version = harbor.commits.head().manifest_version
    assert remote.at(version).commit_id == harbor.at(version).commit_id == harbor.commits.head().id
    assert remote.at(version).query(BY_IMO, {"imo": "S1"})[0]["s.name"] == "Aurora"
    found, same = remote.diff("main", "topic"), harbor.diff("main", "topic")
    assert (found.to_dict(), found.stats, len(found)) == (same.to_dict(), same.stats, len(same))
    assert list(found) == list(same)
    assert list(remote.diff("main", "topic", ops=["delete"])) == []
    assert [each.id for each in remote.commits.list(merged=True, upkeep=False)] == [
        each.id for each in harbor.commits.list(merged=True, upkeep=False)
    ]


@pytest.mark.slow
def test_a_feed_goes_on_where_it_ended_on_either_side(
    remote: RemoteGraph, harbor: Graph, tmp_path: Path
) -> None:
    begun = remote.feed.start("beginning")
    assert begun == harbor.feed.start("beginning")
    harbor.mutate(ADD, {"imo": "S9", "name": "Noctua"})
    there, here = remote.feed.poll(begun), harbor.feed.poll(begun)
    assert there.to_dict() == here.to_dict()
    assert [each.changes for each in there.blocks] == [each.changes for each in here.blocks]
    head = harbor.commits.head().id
    assert remote.feed.changes(head).to_dict() == harbor.feed.changes(head).to_dict()
    made = remote.feed.baseline(tmp_path / "there.jsonl", types=["Ship"])
    assert made == harbor.feed.baseline(tmp_path / "here.jsonl", types=["Ship"])
    assert (tmp_path / "there.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()
    assert remote.feed.poll(made.resume_cursor, types=["Ship"]).caught_up


@pytest.mark.slow
def test_conflicts_are_listed_edited_and_settled_over_a_server(
    remote: RemoteGraph, harbor: Graph, tmp_path: Path
) -> None:
    remote.branches.create("topic")
    remote.mutate(RENAME, {"imo": "S1", "name": "Theirs"}, branch="topic")
    remote.mutate(RENAME, {"imo": "S1", "name": "Ours"})
    preview = remote.branches.preview("topic")
    assert preview.to_dict() == harbor.branches.preview("topic").to_dict()
    assert preview.conflicts == harbor.branches.preview("topic").conflicts
    assert isinstance(raised(lambda: remote.branches.merge("topic")), MergeConflicts)
    listed = tmp_path / "conflicts.json"
    preview.write_conflicts(listed)
    listed.write_text(listed.read_text().replace('"resolution": null', '"resolution": "theirs"'))
    before = harbor.commits.head().id
    remote.mutate(RENAME, {"imo": "S2", "name": "Later"})
    assert isinstance(raised(lambda: remote.branches.merge("topic", resolve=listed)), PreconditionFailed)
    assert isinstance(raised(lambda: remote.branches.merge("topic", resolve={"a": 1})), BadRequest)
    remote.branches.restore("main", to=before)
    remote.branches.preview("topic").write_conflicts(listed)
    listed.write_text(listed.read_text().replace('"resolution": null', '"resolution": "theirs"'))
    merged = remote.branches.merge("topic", resolve=listed)
    assert remote.query(BY_IMO, {"imo": "S1"})[0]["s.name"] == "Theirs"
    assert merged.commit is not None
    taken_back = remote.revert(merged.commit.id)
    assert taken_back.commit == remote.commits.list(upkeep=False)[0]
    assert remote.query(BY_IMO, {"imo": "S1"})[0]["s.name"] == "Ours"


@pytest.mark.slow
def test_upkeep_and_schema_changes_go_over_a_server(remote: RemoteGraph, harbor: Graph) -> None:
    done = remote.mutate_many(ADD, [{"imo": f"M{n}", "name": "x"} for n in range(3)], idempotency_key="m")
    assert (done.affected_nodes, done.commit and done.commit.id) == (3, harbor.commits.head().id)
    assert remote.mutate_many(
        ADD, [{"imo": f"M{n}", "name": "x"} for n in range(3)], idempotency_key="m"
    ).repeated
    wanted = SHIPS.replace("name: String", "name: String  flag: String?", 1)
    planned = remote.apply_schema(wanted, dry_run=True)
    assert (planned.applied, [step.kind for step in planned.steps]) == (False, ["add_property"])
    applied = remote.apply_schema(wanted)
    assert applied.to_dict() == {**planned.to_dict(), **applied.to_dict()}
    assert (applied.applied, applied.steps[0].to_dict()["property_name"]) == (True, "flag")
    assert remote.schema_source() == wanted == harbor.schema_source()
    assert remote.optimize(types=["Ship"]).tables[0].type_name == "Ship"
    report = remote.cleanup(keep=1, older_than=timedelta(0), dry_run=True)
    assert report.dry_run
    assert report.to_dict(files=True) == harbor.cleanup(
        keep=1, older_than=timedelta(0), dry_run=True
    ).to_dict(files=True)
    assert isinstance(raised(remote.cleanup), BadRequest)


@pytest.mark.slow
def test_a_load_with_a_key_happens_once_over_a_server(
    remote: RemoteGraph, harbor: Graph, tmp_path: Path
) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_text('{"type":"Ship","data":{"imo":"K1","name":"a"}}')
    two.write_text('{"type":"Ship","data":{"imo":"K2","name":"b"}}\n')
    first = remote.load([one, two], mode="append", idempotency_key="k")
    again = remote.load([one, two], mode="append", idempotency_key="k")
    assert first.total_entities == 2
    assert (again.commit and again.commit.id) == (first.commit and first.commit.id)
    assert harbor.query(BY_IMO, {"imo": "K2"})[0]["s.name"] == "b"
