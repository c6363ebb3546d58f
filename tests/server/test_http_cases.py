"""Cases of the protocol that clients see, each on a real server. The numbers are those of the list of cases."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from graphs import FAST
from omnigraph.api.graph import Graph
from omnigraph.core.permission import WRITERS
from omnigraph.policy.bundle import parse_bundle
from omnigraph.policy.decisions import BundlePolicy
from omnigraph.server.served import GraphToServe, ServedGraph, ServedGraphs, open_all
from omnigraph.server.tokens import Tokens, read_tokens
from omnigraph.server.workers import Admission
from server.conftest import ADD, BY_IMO, RENAME, Running, Serve

POLICY = """\
version: 1
groups: { crew: [ines, tomas], masters: [tomas] }
protected_branches: [main]
rules:
  - { id: r, allow: { actors: { group: crew }, actions: [read, export], branch_scope: any } }
  - { id: c, allow: { actors: { group: crew }, actions: [change], branch_scope: unprotected } }
  - { id: m, allow: { actors: { group: masters }, actions: [branch_merge], target_branch_scope: any } }
  - { id: d, allow: { actors: { group: masters }, actions: [branch_delete], target_branch_scope: protected } }
"""
LINES = {"Content-Type": "application/x-ndjson"}


@pytest.fixture
def open_server(serve: Serve) -> Running:
    return serve()


def got(server: Running, path: str, who: str | None = None, **named: Any) -> httpx2.Response:
    return server.ask("GET", f"/graphs/harbor{path}", who, **named)


def failed(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["kind"]


def test_http_s13_a_commit_is_told_alike_by_its_write_and_by_its_page(open_server: Running) -> None:
    done = open_server.post("/mutate", {"query": ADD, "params": {"imo": "S9", "name": "x"}}).json()
    commit = done["commit"]["graph_commit_id"]
    assert got(open_server, f"/commits/{commit}").json() == done["commit"]


@pytest.mark.slow
def test_http_s19_the_first_write_on_a_fresh_branch_may_name_the_commit_of_a_read(
    open_server: Running,
) -> None:
    assert open_server.post("/branches", {"name": "topic"}).status_code == 200
    read = open_server.post("/query", {"query": BY_IMO, "params": {"imo": "S1"}, "branch": "topic"}).json()
    change = {"query": RENAME, "params": {"imo": "S1", "name": "Alba"}, "branch": "topic"}
    done = open_server.post("/mutate", {**change, "if_commit": read["graph_commit_id"]})
    assert done.status_code == 200, done.text


@pytest.mark.slow
def test_http_s21_inserts_at_once_all_succeed(open_server: Running, harbor: Graph) -> None:
    def add(number: int) -> int:
        body = {"query": ADD, "params": {"imo": f"N{number}", "name": "x"}}
        return open_server.post("/mutate", body).status_code

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(add, range(8))) == [200] * 8
    assert len(harbor.query("query q() { match { $s: Ship } return { $s.imo } }")) == 10


@pytest.mark.slow
def test_http_s26_a_load_larger_than_any_other_body_is_one_commit(
    open_server: Running, harbor: Graph
) -> None:
    before = len(harbor.commits.list(upkeep=False))
    line = json.dumps({"type": "Ship", "data": {"imo": "BIG", "name": "x" * 2**20}}) + "\n"
    content = (line.replace("BIG", f"B{number}").encode() for number in range(6))
    done = open_server.ask("POST", "/graphs/harbor/load", content=content, headers=LINES)
    assert (done.status_code, done.json()["total_entities"]) == (200, 6)
    assert len(harbor.commits.list(upkeep=False)) == before + 1


@pytest.mark.slow
def test_http_s27_a_refused_load_is_answered_before_its_body_is_sent(serve: Serve) -> None:
    server = serve({"ines": "t1"}, BundlePolicy(parse_bundle(POLICY, "p")[0]))
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(
            b"POST /graphs/harbor/load HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t1\r\n"
            b"Content-Type: application/x-ndjson\r\nContent-Length: 1000000000000\r\n\r\n"
        )
        # Not a byte of the body is sent, and the answer is there.
        assert sock.recv(65_536).startswith(b"HTTP/1.1 403")


@pytest.mark.slow
def test_http_s35_a_merge_stands_when_its_branch_may_not_be_deleted(
    serve: Serve, harbor: Graph, logged: list[str]
) -> None:
    server = serve({"ines": "t1", "tomas": "t2"}, BundlePolicy(parse_bundle(POLICY, "p")[0]))
    harbor.branches.create("topic")
    harbor.mutate(RENAME, {"imo": "S1", "name": "Alba"}, branch="topic")
    done = server.post("/branches/merge", {"source": " topic ", "delete_branch": True}, "tomas")
    told = done.json()
    assert (done.status_code, told["outcome"], told["branch_deleted"]) == (200, "fast_forward", False)
    assert told["branch_delete_error"] == "'tomas' may not branch_delete with target branch 'topic'"
    assert harbor.branches.list() == ["main", "topic"]
    assert harbor.query(BY_IMO, {"imo": "S1"})[0]["s.name"] == "Alba"
    asked = [json.loads(line) for line in logged if '"decision"' in line]
    assert [(each["action"], each["target"], each["allowed"]) for each in asked] == [
        ("branch_merge", "main", True),
        ("branch_delete", "topic", False),
    ]
    refused = server.post("/branches/merge", {"source": "topic", "delete_branch": True}, "ines")
    assert failed(refused) == (403, "forbidden")


def test_a_merge_deletes_its_branch_when_it_is_told_to(open_server: Running, harbor: Graph) -> None:
    harbor.branches.create("topic")
    harbor.branches.create("below", from_branch="topic")
    stays = open_server.post("/branches/merge", {"source": "topic", "delete_branch": True}).json()
    assert stays["branch_deleted"] is False
    harbor.branches.delete("below")
    gone = open_server.post("/branches/merge", {"source": "topic", "delete_branch": True}).json()
    assert gone["branch_deleted"] is True
    assert harbor.branches.list() == ["main"]
    preview = {"source": "main", "target": "main", "delete_branch": True}
    assert failed(open_server.post("/branches/preview", preview)) == (400, "bad_request")


@pytest.fixture
def writers_stand_still(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[threading.Semaphore, threading.Event]]:
    """Mutations that have begun, and what lets them go on."""
    begun, go_on = threading.Semaphore(0), threading.Event()
    mutate = Graph.mutate

    def held(*given: Any, **named: Any) -> Any:
        begun.release()
        assert go_on.wait(60)
        return mutate(*given, **named)

    monkeypatch.setattr(Graph, "mutate", held)
    yield begun, go_on
    go_on.set()


@pytest.mark.slow
def test_http_s37_one_actor_may_not_take_every_place(
    serve: Serve, writers_stand_still: tuple[threading.Semaphore, threading.Event]
) -> None:
    server = serve({"ines": "t1", "tomas": "t2"}, admission=Admission(2))
    begun, go_on = writers_stand_still

    def add(who: str, number: int) -> httpx2.Response:
        return server.post("/mutate", {"query": ADD, "params": {"imo": f"A{number}", "name": "x"}}, who)

    with ThreadPoolExecutor(4) as pool:
        under_way = [pool.submit(add, "ines", number) for number in range(2)]
        assert all(begun.acquire(timeout=60) for _ in under_way)
        over = add("ines", 2)
        assert failed(over) == (429, "too_many_requests")
        assert over.headers["retry-after"] == "1"
        other = pool.submit(add, "tomas", 3)
        assert begun.acquire(timeout=60)
        # Reads have workers of their own, and the server is ready.
        assert server.post("/query", {"query": BY_IMO, "params": {"imo": "S1"}}, "ines").status_code == 200
        assert server.ask("GET", "/readyz").status_code == 200
        go_on.set()
        assert [each.result(60).status_code for each in (*under_way, other)] == [200] * 3
    assert add("ines", 4).status_code == 200


def test_a_server_whose_places_are_taken_says_when_to_come_again(
    serve: Serve, writers_stand_still: tuple[threading.Semaphore, threading.Event], monkeypatch: Any
) -> None:
    monkeypatch.setattr("omnigraph.server.workers.SERVER_WAITING_PER_WORKER", 0)
    server = serve(writers=1)
    begun, go_on = writers_stand_still
    body = {"query": ADD, "params": {"imo": "A1", "name": "x"}}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.post, "/mutate", body)
        assert begun.acquire(timeout=60)
        busy = server.post("/mutate", body)
        assert failed(busy) == (503, "resource_busy")
        assert (busy.headers["retry-after"], busy.json()["retry"]) == ("1", "after_delay")
        go_on.set()
        assert first.result(60).status_code == 200


@pytest.mark.slow
def test_an_admitted_write_is_carried_out_though_its_client_has_left(
    serve: Serve, harbor: Graph, writers_stand_still: tuple[threading.Semaphore, threading.Event]
) -> None:
    server = serve()
    begun, go_on = writers_stand_still
    host, _, port = server.url.removeprefix("http://").partition(":")
    body = json.dumps({"query": ADD, "params": {"imo": "LEFT", "name": "x"}}).encode()
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(
            b"POST /graphs/harbor/mutate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        assert begun.acquire(timeout=60)
    go_on.set()
    server.server.stop()  # it ends when what was admitted has ended
    server.stopped()
    assert harbor.query(BY_IMO, {"imo": "LEFT"})["s.name"] == ["x"]
    assert harbor.pending() == ()
    assert harbor.verify().ok


def test_a_load_that_is_cut_anywhere_leaves_nothing(
    open_server: Running, harbor: Graph, tmp_path: Any, monkeypatch: Any
) -> None:
    spools = tmp_path / "spools"
    spools.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spools))
    monkeypatch.setattr("omnigraph.server.requests.SPOOLED_IN_MEMORY", 16)
    root, before = tmp_path / "harbor.omni", harbor.commits.head().id
    files = {str(each) for each in root.rglob("*")}
    lines = b"".join(b'{"type":"Ship","data":{"imo":"C%d","name":"x"}}\n' % number for number in range(20))
    host, _, port = open_server.url.removeprefix("http://").partition(":")
    head = (
        b"POST /graphs/harbor/load HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        b"Content-Length: %d\r\n\r\n" % len(lines)
    )
    for cut in range(0, len(lines), 97):
        with socket.create_connection((host, int(port)), timeout=60) as sock:
            sock.sendall(head + lines[:cut])
    open_server.server.stop()
    open_server.stopped()
    assert harbor.commits.head().id == before
    assert {str(each) for each in root.rglob("*")} == files
    assert list(spools.iterdir()) == []


@pytest.mark.slow
def test_http_s43_s44_changes_of_a_commit_have_bounds(open_server: Running, harbor: Graph) -> None:
    commits = harbor.commits.list()
    assert failed(got(open_server, f"/commits/{commits[-1].id}/changes")) == (409, "parentless_commit")
    over = got(open_server, f"/commits/{commits[0].id}/changes?limit=8193")
    assert failed(over) == (413, "resource_limit")
    assert over.json()["resource_limit"]["resource"] == "commit_changes_page_changes"
    assert failed(got(open_server, "/changes?limit=8193")) == (413, "resource_limit")
    assert failed(got(open_server, "/changes?commits=513")) == (413, "resource_limit")
    for wrong in ("limit=0", "max_bytes=1", "kind=table", "op=upsert", "limit=1&limit=2"):
        assert got(open_server, f"/commits/{commits[0].id}/changes?{wrong}").status_code == 400, wrong


@pytest.mark.slow
def test_http_s46_s47_a_feed_goes_on_page_by_page_with_its_own_filters(
    open_server: Running, harbor: Graph
) -> None:
    first = got(open_server, "/changes?start=now").json()
    assert (first["blocks"], first["caught_up"]) == ([], True)
    lines = b"".join(b'{"type":"Ship","data":{"imo":"F%d","name":"x"}}\n' % number for number in range(2))
    open_server.ask("POST", "/graphs/harbor/load", content=lines, headers=LINES)
    page = got(open_server, "/changes", params={"cursor": first["cursor"], "limit": 1}).json()
    assert (len(page["blocks"][0]["changes"]), "cursor" in page, "caught_up" in page) == (1, False, False)
    last = got(open_server, "/changes", params={"page_token": page["next_page_token"]}).json()
    assert ([each["id"] for each in last["blocks"][0]["changes"]], last["caught_up"]) == (["F1"], True)
    both = {"cursor": first["cursor"], "page_token": page["next_page_token"]}
    for params in (both, {"cursor": first["cursor"], "start": "now"}):
        assert got(open_server, "/changes", params=params).status_code == 400
    narrow = got(open_server, "/changes?start=now&op=insert").json()["cursor"]
    other = got(open_server, "/changes", params={"cursor": narrow})
    assert failed(other) == (400, "change_cursor_rejected")
    assert other.json()["error"].startswith("change cursor rejected")


@pytest.mark.slow
def test_http_s48_a_baseline_ends_with_the_cursor_that_goes_on(open_server: Running, harbor: Graph) -> None:
    lines = open_server.post("/changes/baseline", {}).text.splitlines()
    assert [("baseline" in json.loads(line)) for line in lines] == [False] * (len(lines) - 1) + [True]
    harbor.mutate(ADD, {"imo": "S9", "name": "x"})
    cursor = json.loads(lines[-1])["baseline"]["resume_cursor"]
    page = got(open_server, "/changes", params={"cursor": cursor}).json()
    assert [each["cause"]["graph_commit_id"] for each in page["blocks"]] == [harbor.commits.head().id]


@pytest.mark.slow
def test_http_s60_commits_are_those_of_main_and_go_on_page_by_page(
    open_server: Running, harbor: Graph
) -> None:
    harbor.mutate(ADD, {"imo": "S9", "name": "x"})
    every = got(open_server, "/commits").json()
    assert every == got(open_server, "/commits?branch=main").json()
    assert "next" not in every
    seen: list[Any] = []
    params: dict[str, Any] = {"limit": 1}
    while True:
        page = got(open_server, "/commits", params=params).json()
        seen += page["commits"]
        if "next" not in page:
            break
        params["before"] = page["next"]
    assert seen == every["commits"]


@pytest.mark.slow
def test_a_schema_is_sent_again_only_when_it_is_another_one(open_server: Running, harbor: Graph) -> None:
    whole = got(open_server, "/schema")
    tag = whole.headers["etag"]
    assert whole.json() == {"schema_source": harbor.schema_source()}
    text = got(open_server, "/schema", headers={"Accept": "text/plain"})
    assert (text.text, text.headers["content-type"]) == (harbor.schema_source(), "text/plain; charset=utf-8")
    for known in (tag, f'"other", {tag}', f"W/{tag}", "*"):
        same = got(open_server, "/schema", headers={"If-None-Match": known})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag), known
    assert got(open_server, "/schema", headers={"If-None-Match": '"other"'}).status_code == 200
    wider = harbor.schema_source() + "node Crew { name: String @key }\n"
    assert open_server.post("/schema/apply", {"schema_source": wider}).status_code == 200
    other = got(open_server, "/schema", headers={"If-None-Match": tag})
    assert (other.status_code, other.headers["etag"] == tag) == (200, False)


def test_http_e49_a_stream_that_fails_on_the_way_has_no_end(
    open_server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_graph: Graph, **_named: Any) -> Iterator[bytes]:
        yield b'{"type":"Ship"}\n' * 1_000
        raise OSError(5, "the disk of /secret/place is gone")

    monkeypatch.setattr(Graph, "export_chunks", broken)
    host, _, port = open_server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(
            b"POST /graphs/harbor/export HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 2\r\n\r\n{}"
        )
        answer = b"".join(iter(lambda: sock.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert not answer.endswith(b"0\r\n\r\n")
    assert b"secret" not in answer


def test_decisions_about_the_server_itself_are_written_down(serve: Serve, logged: list[str]) -> None:
    server = serve({"ines": "t1"}, BundlePolicy(parse_bundle(POLICY, "p")[0]))
    assert server.ask("GET", "/graphs", "ines").json() == {"graphs": [{"graph_id": "harbor"}]}
    assert server.ask("POST", "/admin/reload", "ines").status_code == 403
    asked = [json.loads(line) for line in logged if '"decision"' in line]
    assert [(each["actor"], each["action"], each["graph"], each["allowed"]) for each in asked] == [
        ("ines", "read", "harbor", True),
        ("ines", "admin", "harbor", False),
    ]


def test_work_that_blocks_and_bodies_that_are_long_do_not_hold_others_up(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop never runs a handler, and never reads a body that takes long."""
    seen: dict[str, set[str]] = {}

    def watched(name: str, call: Any) -> Any:
        def run(*given: Any, **named: Any) -> Any:
            seen.setdefault(name, set()).add(threading.current_thread().name)
            return call(*given, **named)

        return run

    from omnigraph.server import app, requests

    monkeypatch.setattr(requests, "parsed", watched("parsed", requests.parsed))
    monkeypatch.setattr(app, "_done", watched("done", app._done))
    monkeypatch.setattr(app, "_homes_of", watched("homes", app._homes_of))
    server = serve({"ines": "t1"}, BundlePolicy(parse_bundle(POLICY, "p")[0]))
    loops = {each.name for each in threading.enumerate() if "run" in each.name}
    body = {"query": BY_IMO, "params": {"imo": "x" * 5_000}, "at": "main"}
    assert server.post("/query", body, "ines").status_code == 200
    assert set(seen) == {"parsed", "done", "homes"}
    assert loops.isdisjoint(set.union(*seen.values()))
    assert server.post("/query", {"query": BY_IMO, "params": {"imo": "S1"}}, "ines").status_code == 200
    assert not loops.isdisjoint(seen["parsed"]), "a short body costs no thread"


def test_every_operation_has_a_span_where_somebody_takes_them(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry import trace

    from omnigraph.server import telemetry

    class Provider(trace.NoOpTracerProvider):
        """Takes spans, as that of a program with an exporter does."""

    class Tracer(trace.NoOpTracer):
        def start_as_current_span(self, name: str, *given: Any, **named: Any) -> Any:
            spans.append(name)
            return super().start_as_current_span(name, *given, **named)

    spans: list[str] = []
    monkeypatch.setattr(telemetry, "_TRACER", Tracer())
    server = serve()
    assert got(server, "/branches").status_code == 200
    assert spans == []
    monkeypatch.setattr(trace, "get_tracer_provider", Provider)
    assert got(server, "/branches").status_code == 200
    assert server.ask("GET", "/healthz").status_code == 200
    assert spans == ["listBranches", "health"]


def test_without_tokens_the_places_of_writers_are_not_those_of_one_actor(
    serve: Serve, writers_stand_still: tuple[threading.Semaphore, threading.Event]
) -> None:
    server = serve(admission=Admission(1))
    begun, go_on = writers_stand_still

    def add(number: int) -> httpx2.Response:
        return server.post("/mutate", {"query": ADD, "params": {"imo": f"A{number}", "name": "x"}})

    with ThreadPoolExecutor(3) as pool:
        under_way = [pool.submit(add, number) for number in range(3)]
        assert all(begun.acquire(timeout=60) for _ in under_way)
        go_on.set()
        assert [each.result(60).status_code for each in under_way] == [200] * 3


def test_graphs_that_are_served_no_more_are_closed_after_their_last_request(
    serve: Serve, harbor: Graph, writers_stand_still: tuple[threading.Semaphore, threading.Event]
) -> None:
    def read_again(known: Mapping[str, ServedGraph]) -> tuple[ServedGraphs, Tokens]:
        wanted = [GraphToServe("harbor", harbor.uri, WRITERS, read_only=True)]
        return open_all(wanted, FAST, all_of_them=True, before=known), read_tokens({})

    server = serve(read_again=read_again)
    application = server.application
    begun, go_on = writers_stand_still
    first = application.graphs.by_id["harbor"].graph
    closed = threading.Event()
    close = first.close

    def watched() -> None:
        close()
        closed.set()

    first.close = watched  # type: ignore[method-assign]  nothing else tells of it
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(server.post, "/mutate", {"query": ADD, "params": {"imo": "A1", "name": "x"}})
        assert begun.acquire(timeout=60)
        application.reload()
        assert not closed.is_set(), "a request still writes"
        assert server.post("/query", {"query": BY_IMO, "params": {"imo": "S1"}}).status_code == 200
        go_on.set()
        assert slow.result(60).status_code == 200
    assert closed.wait(60)
    again = application.graphs.by_id["harbor"].graph
    application.reload()
    assert application.graphs.by_id["harbor"].graph is again, "what did not change stays open"
    assert server.post("/query", {"query": BY_IMO, "params": {"imo": "A1"}}).json()["row_count"] == 1
