"""The same program against a directory and against a server."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.api.graph import Graph
from omnigraph.client.remote import RemoteGraph
from omnigraph.client.wire import failure_of
from omnigraph.core.errors import (
    KINDS,
    BadRequest,
    BranchNotFound,
    ExpectedVersionMismatch,
    IoFailure,
    KeyConflict,
    NotThisProduct,
    OmnigraphError,
    ParamError,
    PreconditionFailed,
    QueryTypeError,
    Unauthorized,
)
from server.conftest import ADD, BY_IMO, RENAME, Running, Serve

EVERY = "query all() { match { $s: Ship } return { $s.imo, $s.name, $s.tonnage } order { $s.imo } }"


@pytest.fixture
def server(serve: Serve) -> Running:
    return serve({"act-ines": "t1"})


@pytest.fixture
def remote(server: Running):
    with omnigraph.connect(server.url, graph="harbor", token="t1") as graph:
        yield graph


@pytest.fixture(params=["in process", "over a server"])
def either(request: pytest.FixtureRequest, harbor: Graph) -> Graph | RemoteGraph:
    return harbor if request.param == "in process" else request.getfixturevalue("remote")


def raised(call: Any) -> OmnigraphError:
    with pytest.raises(OmnigraphError) as caught:
        call()
    return caught.value


@pytest.mark.slow
def test_reads_and_writes_are_alike(either: Any, harbor: Graph) -> None:
    rows = either.query(BY_IMO, {"imo": "S1"})
    assert rows[0] == {"s.imo": "S1", "s.name": "Aurora"}
    assert (rows.branch, rows.snapshot, rows.commit_id) == ("main", None, harbor.commits.head().id)
    assert either.query(EVERY).to_arrow().equals(harbor.query(EVERY).to_arrow())
    assert either.query(EVERY).envelope() == harbor.query(EVERY).envelope()
    assert list(either.query('query none() { match { $s: Ship { imo: "no" } } return { $s.imo } }')) == []
    done = either.mutate(ADD, {"imo": "S9", "name": "Noctua"}, if_commit=rows.commit_id)
    assert (done.affected_nodes, done.affected_edges, done.branch) == (1, 0, "main")
    assert done.commit.id == harbor.commits.head().id == either.commits.head().id
    assert [(each.type_name, each.id) for each in done.inserted] == [("Ship", "S9")]
    stale = raised(lambda: either.mutate(ADD, {"imo": "S8", "name": "x"}, if_commit=rows.commit_id))
    assert isinstance(stale, PreconditionFailed)
    assert stale.details["precondition_failure"]["actual"] == done.commit.id
    key = {"idempotency_key": "k1"}
    first, again = (either.mutate(ADD, {"imo": "S7", "name": "Once"}, **key) for _ in range(2))
    assert (first.commit.id, first.repeated, again.repeated) == (again.commit.id, False, True)


@pytest.mark.slow
def test_history_branches_and_tags_are_alike(either: Any, harbor: Graph) -> None:
    base = harbor.commits.head().id
    made = either.branches.create("topic/a")
    assert (made.name, made.from_branch, made.commit.id) == ("topic/a", "main", base)
    assert either.branches.list() == ["main", "topic/a"]
    either.mutate(RENAME, {"imo": "S1", "name": "Alba"}, branch="topic/a")
    assert either.query(BY_IMO, {"imo": "S1"}, branch="topic/a")[0]["s.name"] == "Alba"
    assert either.commits.head(branch="topic/a").parent == base
    assert [each.id for each in either.commits.list(branch="topic/a")] == [
        each.id for each in harbor.commits.list(branch="topic/a")
    ]
    assert either.commits.head(branch="topic/a").requests == 1
    merged = either.branches.merge("topic/a", on_conflict={"Ship": "theirs"})
    assert (merged.outcome, merged.commit.id) == ("fast_forward", harbor.commits.head().id)
    assert either.query(BY_IMO, {"imo": "S1"})[0]["s.name"] == "Alba"
    assert either.query(BY_IMO, {"imo": "S1"}, at=base)[0]["s.name"] == "Aurora"
    either.tags.create("v1", at=base)
    assert either.tags.list() == {"v1": base}
    assert either.commits.show("v1").id == base
    either.tags.delete("v1")
    assert either.branches.delete("topic/a").name == "topic/a"
    assert (either.branches.list(), either.tags.list()) == (["main"], {})


@pytest.mark.slow
def test_loads_and_exports_are_alike(either: Any, harbor: Graph, tmp_path: Path) -> None:
    lines = b'{"type":"Ship","data":{"imo":"S3","name":"Cora"}}\n'
    (tmp_path / "ships.jsonl").write_bytes(lines)
    named = {"engine": "local", "format": "jsonl"} if isinstance(either, Graph) else {}
    report = either.load(io.BytesIO(lines), mode="merge", **named)
    assert (report.total_entities, report.mode, report.branch) == (1, "merge", "main")
    assert report.commit.id == harbor.commits.head().id
    taken = raised(lambda: either.load(tmp_path / "ships.jsonl", mode="append", **named))
    assert isinstance(taken, KeyConflict)
    assert taken.details["key_conflict"] == {"entity_kind": "node", "type_name": "Ship", "entity_id": "S3"}
    made = either.load(tmp_path / "ships.jsonl", mode="merge", branch="review", base="main", **named)
    assert made.branch_created
    assert either.export() == harbor.export()
    sink = io.BytesIO()
    either.export(sink, types=["Port"])
    assert sink.getvalue().decode() == harbor.export(types=["Port"])
    assert either.schema_source() == harbor.schema_source()


@pytest.mark.slow
def test_errors_are_alike(either: Any) -> None:
    for call, kind, cls in (
        (lambda: either.query(BY_IMO, {"imo": "S1"}, branch="nope"), "branch_not_found", BranchNotFound),
        (
            lambda: either.query("query q() { match { $s: Ship } return { $s.nmae } }"),
            "query_type",
            QueryTypeError,
        ),
        (lambda: either.query(BY_IMO, {"imoo": "S1"}), "unknown_parameter", OmnigraphError),
        (lambda: either.query(BY_IMO), "missing_parameter", OmnigraphError),
        (lambda: either.query(ADD, {"imo": "1", "name": "x"}), "wrong_query_kind", OmnigraphError),
        (lambda: either.commits.show("nope"), "commit_not_found", OmnigraphError),
        (lambda: either.commits.head(branch="nope"), "branch_not_found", BranchNotFound),
        (lambda: either.commits.show(7), "bad_request", BadRequest),
        (lambda: either.branches.delete("main"), "bad_request", OmnigraphError),
        (lambda: either.load(io.StringIO("{}"), mode="merge"), "bad_request", BadRequest),
        (lambda: either.load("no/such/file.jsonl", mode="merge"), "io", IoFailure),
        (
            lambda: either.mutate(ADD, {"imo": "1", "name": "x"}, idempotency_key=""),
            "bad_request",
            BadRequest,
        ),
    ):
        error = raised(call)
        assert error.kind == kind
        assert isinstance(error, cls)
        assert error.exit_status == omnigraph.errors.KINDS[kind].exit_status


@pytest.mark.slow
def test_the_whole_history_is_listed_however_many_commits_one_answer_holds(
    either: Any, harbor: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        harbor.mutate(ADD, {"imo": f"T{number}", "name": "x"})
    monkeypatch.setattr("omnigraph.client.parts.COMMITS_AT_ONCE", 2)
    every = [each.id for each in harbor.commits.list()]
    for named in ({}, {"limit": 3}, {"limit": 0}, {"before": every[1]}, {"limit": 4, "before": every[0]}):
        assert [each.id for each in either.commits.list(**named)] == [
            each.id for each in harbor.commits.list(**named)
        ]


def test_a_head_is_that_of_a_branch_and_never_of_a_tag(either: Any, harbor: Graph) -> None:
    either.tags.create("v1")
    assert isinstance(raised(lambda: either.commits.head(branch="v1")), BranchNotFound)


def test_a_number_that_json_lacks_is_refused_and_never_sent_as_a_null(either: Any, harbor: Graph) -> None:
    before = harbor.commits.head().id
    add = 'query add($t: F64?, $all: [F64]?) { insert Ship { imo: "N", name: "x" } }'
    for params in ({"t": float("nan")}, {"t": float("-inf")}, {"all": [1.0, float("inf")]}):
        assert isinstance(raised(lambda params=params: either.mutate(add, params)), BadRequest | ParamError)
    assert harbor.commits.head().id == before


def test_somebody_without_a_token_is_told_so(server: Running) -> None:
    with omnigraph.connect(server.url, graph="harbor") as graph:
        assert isinstance(raised(graph.branches.list), Unauthorized)


def test_a_closed_graph_says_so(either: Any) -> None:
    either.close()
    for call in (either.branches.list, lambda: either.query(EVERY), either.export):
        assert raised(call).message == "the graph is closed"


def test_an_address_or_a_token_that_cannot_be_is_refused_without_telling_it() -> None:
    for url, token in (
        ("ftp://host", None),
        ("host:8080", None),
        ("http://", None),
        ("http://[", None),
        ("http://host:99999", None),
        ("http://ines:hush@host", None),
        ("http://host/?token=hush", None),
        ("http://host", "hush\nX-Other: 1"),
        ("http://host", "hush\N{LATIN SMALL LETTER E WITH ACUTE}"),
        ("http://host", " "),
    ):
        error = raised(lambda url=url, token=token: omnigraph.connect(url, graph="harbor", token=token))
        assert isinstance(error, BadRequest)
        assert "hush" not in f"{error}{error.__cause__}{error.details}"
    for named in (
        {"graph": ""},
        {"graph": "harbor", "timeout_s": 0},
        {"graph": "a", "timeout_s": float("nan")},
    ):
        assert isinstance(raised(lambda named=named: omnigraph.connect("http://host", **named)), BadRequest)
    with omnigraph.connect("http://host", graph="a/b", token="hush") as graph:
        assert repr(graph) == "RemoteGraph('http://host/graphs/a%2Fb')"


@pytest.mark.slow
def test_connecting_imports_no_table_format_and_no_engine() -> None:
    heavy = (
        "lance",
        "obstore",
        "pyspark",
        "starlette",
        "uvicorn",
        "omnigraph.storage",
        "omnigraph.api.graph",
    )
    program = (
        "import sys, omnigraph\n"
        "omnigraph.connect('http://127.0.0.1:1', graph='g').close()\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert shown.stdout.strip() == "[]"


def test_an_error_of_any_kind_comes_back_whole() -> None:
    for kind, known in KINDS.items():
        told = {
            "error": "what happened",
            "kind": kind,
            "hint": "what to do",
            "retry": "never",
            "request_id": "r",
        }
        back = failure_of(400, json.dumps(told).encode())
        assert (type(back), back.kind, str(back)) == (known.cls, kind, "what happened\nhint: what to do")
        assert {**told, "code": back.code} == {"code": None, **back.to_dict()}


def test_a_failure_keeps_its_class_and_its_facts() -> None:
    told = ExpectedVersionMismatch(table_key="node:Ship", expected=7, actual=9).to_dict()
    back = failure_of(409, json.dumps({**told, "request_id": "r"}).encode())
    assert isinstance(back, omnigraph.errors.ManifestConflict)
    assert (back.message, back.hint, back.retry) == (told["error"], told["hint"], "after_refresh")
    assert back.details["manifest_conflict"] == told["manifest_conflict"]
    newer = failure_of(409, b'{"error": "x", "kind": "from_the_future", "code": "conflict", "retry": "soon"}')
    assert (newer.kind, newer.message) == ("from_the_future", "x")
    for strange in (b"<html>", b"[]", b"{}", b'{"error": 7}', b""):
        assert isinstance(failure_of(502, strange), NotThisProduct)
