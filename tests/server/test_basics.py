"""The first things a client sees: health, tokens, addresses, queries, writes, streams."""

import io
import json

import pyarrow as pa
import pytest

from graphs import rows_of
from omnigraph.api.graph import Graph
from omnigraph.core.permission import READERS
from server.conftest import ADD, BY_IMO, RENAME, SHIPS, Running, Serve

TOKENS = {"act-ines": "t1-secret", "act-tomas": "t2-secret"}


@pytest.fixture
def server(serve: Serve) -> Running:
    return serve(TOKENS)


def test_health_and_readiness_need_no_token(server: Running) -> None:
    health = server.ask("GET", "/healthz")
    assert health.status_code == 200
    assert health.json()["status"] == "ok"
    assert isinstance(health.json()["internal_schema_version"], int)
    ready = server.ask("GET", "/readyz")
    assert (ready.status_code, ready.json()) == (
        200,
        {"status": "ready", "graphs_ready": 1, "graphs_quarantined": 0},
    )


def test_nobody_gets_in_without_a_token_of_the_server(server: Running) -> None:
    for path in ("/graphs/harbor/branches", "/graphs/nope/branches", "/graphs", "/metrics"):
        refused = server.ask("GET", path)
        assert (refused.status_code, refused.json()["kind"]) == (401, "unauthorized")
        assert refused.headers["www-authenticate"] == "Bearer"
        for header in ("Bearer nope", "Basic t1-secret", "Bearer  t1-secret", "t1-secret"):
            assert server.ask("GET", path, headers={"Authorization": header}).status_code == 401
    assert server.ask("GET", "/graphs/harbor/branches", "act-ines").json() == {"branches": ["main"]}


def test_addresses_that_lead_nowhere_get_typed_errors(server: Running) -> None:
    for method, path, status, kind in (
        ("GET", "/graphs/nope/branches", 404, "graph_not_found"),
        ("GET", "/graphs/bad_id/branches", 400, "bad_request"),
        ("GET", "/branches", 404, "route_not_found"),
        ("GET", "/graphs/harbor/query", 405, "method_not_allowed"),
        ("GET", "/graphs/harbor/branches?a=1", 400, "bad_request"),
        ("GET", "/graphs/harbor/branches?%zz", 400, "bad_request"),
        ("GET", "/graphs/har%ffbor/branches", 400, "bad_request"),
    ):
        answer = server.ask(method, path, "act-ines")
        assert (answer.status_code, answer.json()["kind"]) == (status, kind), path
        assert answer.headers["content-type"] == "application/json"
        assert {"error", "retry", "request_id"} <= set(answer.json())


@pytest.mark.slow
def test_e35_a_query_at_a_state_that_a_cleanup_removed_is_gone(server: Running, harbor: Graph) -> None:
    old = harbor.commits.list()[-1].id
    harbor.mutate(ADD, {"imo": "S77", "name": "Later"})
    harbor.cleanup(keep=1)
    gone = server.post("/query", {"query": BY_IMO, "params": {"imo": "S1"}, "at": old}, "act-ines")
    assert (gone.status_code, gone.json()["kind"]) == (410, "version_reclaimed")
    assert gone.json()["version_reclaimed"]["oldest"] == harbor.commits.head().id


@pytest.mark.slow
def test_a_query_answers_rows_and_the_commit_they_are_from(server: Running, harbor: Graph) -> None:
    body = {"query": BY_IMO, "params": {"imo": "S1"}}
    answer = server.post("/query", body, "act-ines")
    assert answer.status_code == 200
    assert answer.json()["rows"] == [{"s.imo": "S1", "s.name": "Aurora"}]
    assert answer.json()["graph_commit_id"] == harbor.commits.head().id
    direct = harbor.query(BY_IMO, {"imo": "S1"})
    assert answer.json() == direct.envelope()


def test_a_query_answers_an_arrow_stream_when_asked_to(server: Running, harbor: Graph) -> None:
    arrow = {"Accept": "application/vnd.apache.arrow.stream"}
    answer = server.post("/query", {"query": BY_IMO, "params": {"imo": "S1"}}, "act-ines", headers=arrow)
    assert answer.headers["content-type"] == arrow["Accept"]
    table = pa.ipc.open_stream(io.BytesIO(answer.content)).read_all()
    direct = harbor.query(BY_IMO, {"imo": "S1"})
    assert table.equals(direct.to_arrow())
    assert json.loads(table.schema.metadata[b"omnigraph"]) == direct.head()


@pytest.mark.slow
def test_a_long_answer_is_encoded_in_pieces_and_means_the_same(server: Running, harbor: Graph) -> None:
    lines = "".join(
        json.dumps({"type": "Ship", "data": {"imo": f"X{n:05}", "name": f"ship {n}"}}) + "\n"
        for n in range(9_001)
    )
    harbor.load(io.BytesIO(lines.encode()), mode="merge", engine="local", format="jsonl")
    every = "query all() { match { $s: Ship } return { $s.imo, $s.name, $s.tonnage } order { $s.imo } }"
    answer = server.post("/query", {"query": every}, "act-ines")
    assert "content-length" not in answer.headers
    assert answer.json() == harbor.query(every).envelope()
    assert answer.json()["row_count"] == 9_003


def test_a_query_is_never_the_name_of_a_file(server: Running) -> None:
    for text in ("/etc/passwd", "queries.gq", "..", "/"):
        for path in ("/query", "/mutate"):
            answer = server.post(path, {"query": text}, "act-ines")
            assert (answer.status_code, answer.json()["kind"]) == (400, "query_syntax"), text


def test_a_mutation_sent_as_a_query_names_the_other_route(server: Running) -> None:
    answer = server.post("/query", {"query": ADD, "params": {"imo": "S9", "name": "x"}}, "act-ines")
    assert (answer.status_code, answer.json()["kind"]) == (400, "wrong_query_kind")
    assert "mutat" in json.dumps(answer.json())


@pytest.mark.slow
def test_the_actor_of_a_write_is_that_of_the_token(server: Running, harbor: Graph) -> None:
    body = {"query": ADD, "params": {"imo": "S9", "name": "Noctua"}}
    headers = {"X-Actor-Id": "act-ines", "X-Actor": ""}
    done = server.post("/mutate", body, "act-tomas", headers=headers)
    assert done.status_code == 200
    assert done.json()["actor_id"] == "act-tomas"
    assert harbor.commits.head().actor == "act-tomas"
    for told in ({**body, "actor": "act-ines"}, {**body, "actor_id": "act-ines"}):
        refused = server.post("/mutate", told, "act-tomas")
        assert (refused.status_code, refused.json()["kind"]) == (400, "bad_request")


@pytest.mark.slow
def test_a_conditional_write_needs_the_commit_it_was_built_on(server: Running, harbor: Graph) -> None:
    head = server.post("/query", {"query": BY_IMO, "params": {"imo": "S1"}}, "act-ines").json()[
        "graph_commit_id"
    ]
    change = {"query": RENAME, "params": {"imo": "S1", "name": "Alba"}, "if_commit": head}
    assert server.post("/mutate", change, "act-tomas").status_code == 200
    stale = server.post("/mutate", change, "act-tomas")
    assert stale.status_code == 412
    assert "code" not in stale.json()
    assert stale.json()["precondition_failure"] == {"expected": head, "actual": harbor.commits.head().id}


@pytest.mark.slow
def test_a_load_is_one_commit_and_a_bad_record_changes_nothing(server: Running, harbor: Graph) -> None:
    lines = {"Content-Type": "application/x-ndjson"}
    good = b'{"type":"Ship","data":{"imo":"S3","name":"Cora"}}\n{"edge":"CallsAt","from":"S3","to":"LIS"}\n'
    before = len(harbor.commits.list(upkeep=False))
    done = server.ask("POST", "/graphs/harbor/load?mode=merge", "act-tomas", content=good, headers=lines)
    assert done.status_code == 200, done.text
    assert done.json()["total_entities"] == 2
    assert len(harbor.commits.list(upkeep=False)) == before + 1
    dangling = b'{"edge":"CallsAt","from":"S3","to":"NOPE"}\n'
    refused = server.ask("POST", "/graphs/harbor/load", "act-tomas", content=dangling, headers=lines)
    assert (refused.status_code, refused.json()["kind"]) == (400, "constraint_violation")
    assert refused.json()["constraint"]["rule"] == "endpoint"
    again = server.ask("POST", "/graphs/harbor/load?mode=append", "act-tomas", content=good, headers=lines)
    assert (again.status_code, again.json()["kind"]) == (409, "key_conflict")
    wrong = server.ask("POST", "/graphs/harbor/load", "act-tomas", json={})
    assert (wrong.status_code, wrong.json()["kind"]) == (415, "unsupported_media_type")
    absent = server.ask("POST", "/graphs/harbor/load?branch=absent", "act-tomas", content=good, headers=lines)
    assert (absent.status_code, absent.json()["kind"]) == (404, "branch_not_found")
    assert harbor.branches.list() == ["main"]
    assert len(harbor.commits.list(upkeep=False)) == before + 1


@pytest.mark.slow
def test_a_write_with_a_key_is_carried_out_once(server: Running, harbor: Graph) -> None:
    body = {"query": "query q($t: String) { insert Port { code: $t, name: $t } }", "params": {"t": "OPO"}}
    key = {"Idempotency-Key": "once"}
    first = server.post("/mutate", body, "act-tomas", headers=key)
    before = len(harbor.commits.list())
    again = server.post("/mutate", body, "act-tomas", headers=key)
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json()["commit"] == first.json()["commit"]
    other = server.post("/mutate", {**body, "params": {"t": "FAO"}}, "act-tomas", headers=key)
    assert (other.status_code, other.json()["kind"]) == (409, "idempotency_mismatch")
    assert len(harbor.commits.list()) == before
    for path in ("/branches", "/query"):
        refused = server.post(path, {"name": "x", "query": "x"}, "act-tomas", headers=key)
        assert refused.status_code == 400
    assert harbor.branches.list() == ["main"]


@pytest.mark.slow
def test_branches_tags_and_history_go_the_whole_way(server: Running, harbor: Graph) -> None:
    def get(path: str):
        answer = server.ask("GET", f"/graphs/harbor{path}", "act-tomas")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(path: str, body: dict[str, object]):
        answer = server.post(path, body, "act-tomas")
        assert answer.status_code == 200, answer.text
        return answer.json()

    base = harbor.commits.head().id
    post("/tags", {"name": "v1"})
    assert get("/tags") == {"tags": {"v1": base}}
    assert post("/branches", {"name": "topic/a"})["from"] == "main"
    assert get("/branches") == {"branches": ["main", "topic/a"]}
    done = post("/mutate", {"query": RENAME, "params": {"imo": "S1", "name": "Alba"}, "branch": "topic/a"})
    commit = done["commit"]["graph_commit_id"]
    assert get(f"/commits/{commit}")["actor_id"] == "act-tomas"
    assert get("/commits?branch=topic/a&limit=1")["commits"][0]["graph_commit_id"] == commit
    assert get(f"/commits/{commit}/changes")["changes"][0]["id"] == "S1"
    changed = post("/diff", {"from": "main", "to": "topic/a"})
    assert [each["id"] for each in changed["changes"]] == ["S1"]
    direct = harbor.diff("main", "topic/a")
    assert changed == {**direct.to_dict(), "changes": [each.to_dict() for each in direct]}
    cursor = get("/changes?start=now")["cursor"]
    assert post("/branches/preview", {"source": "topic/a"})["outcome"] == "fast_forward"
    merged = post("/branches/merge", {"source": "topic/a"})
    assert merged["actor_id"] == "act-tomas"
    assert get(f"/changes?cursor={cursor}")["blocks"][0]["changes"][0]["id"] == "S1"
    assert "topic" in str(get("/blame?type=Ship&id=S1")) or "act-tomas" in str(get("/blame?type=Ship&id=S1"))
    assert get("/stats")["branches"]
    assert post("/explain", {"query": BY_IMO, "params": {"imo": "S1"}})
    at = {"query": BY_IMO, "params": {"imo": "S1"}, "at": "v1"}
    assert post("/query", at)["rows"][0]["s.name"] == "Aurora"
    post("/branches/restore", {"to": "v1"})
    assert post("/query", {**at, "at": "main"})["rows"][0]["s.name"] == "Aurora"
    plan = post(
        "/schema/apply", {"schema_source": SHIPS + "node Crew { name: String @key }", "dry_run": True}
    )
    assert plan["steps"]
    post("/optimize", {})
    gone = server.ask("DELETE", "/graphs/harbor/branches/topic%2Fa", "act-tomas")
    assert gone.status_code == 200, gone.text
    assert server.ask("DELETE", "/graphs/harbor/tags/v1", "act-tomas").status_code == 200
    assert (get("/branches"), get("/tags")) == ({"branches": ["main"]}, {"tags": {}})
    for path, body, status in (
        ("/branches", {"name": "main"}, 400),
        ("/branches", {"name": "x", "from": "nope"}, 404),
        ("/branches/merge", {"source": "main", "target": "main"}, 400),
        ("/revert", {"commit": "nope"}, 404),
    ):
        assert server.post(path, body, "act-tomas").status_code == status, path


@pytest.mark.slow
def test_a_merge_with_conflicts_changes_nothing_and_tells_them(server: Running, harbor: Graph) -> None:
    harbor.branches.create("topic")
    for branch, name in (("main", "Alba"), ("topic", "Brisa")):
        harbor.mutate(RENAME, {"imo": "S1", "name": name}, branch=branch)
    head = harbor.commits.head().id
    lost = server.post("/branches/merge", {"source": "topic"}, "act-tomas")
    assert (lost.status_code, lost.json()["kind"]) == (409, "merge_conflicts")
    assert lost.json()["merge_conflicts"][0]["kind"] == "divergent_update"
    assert harbor.commits.head().id == head
    won = server.post("/branches/merge", {"source": "topic", "on_conflict": {"Ship": "theirs"}}, "act-tomas")
    assert won.status_code == 200
    assert rows_of(harbor, "Ship")["S1"]["name"] == "Brisa"


@pytest.mark.slow
def test_an_export_is_what_the_graph_exports(server: Running, harbor: Graph) -> None:
    answer = server.post("/export", {}, "act-ines")
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert answer.text == harbor.export()
    some = server.post("/export", {"type_names": ["Port"]}, "act-ines")
    assert some.text == harbor.export(types=["Port"])
    unknown = server.post("/export", {"type_names": ["Nope"]}, "act-ines")
    assert (unknown.status_code, unknown.json()["kind"]) == (404, "type_not_found")
    assert server.post("/export", {"table_keys": ["node:Ship"]}, "act-ines").status_code == 400


def test_readers_may_look_and_change_nothing(serve: Serve, harbor: Graph) -> None:
    server = serve(TOKENS, READERS)
    assert server.post("/query", {"query": BY_IMO, "params": {"imo": "S1"}}, "act-ines").status_code == 200
    refused = server.post("/mutate", {"query": ADD, "params": {"imo": "S9", "name": "x"}}, "act-ines")
    assert (refused.status_code, refused.json()["kind"]) == (403, "forbidden")
    assert "act-ines" in refused.json()["error"]
    assert len(rows_of(harbor, "Ship")) == 2


def test_a_request_id_is_echoed_and_a_strange_one_replaced(server: Running) -> None:
    named = server.ask("GET", "/nowhere", headers={"X-Request-Id": "abc-123"})
    assert named.headers["x-request-id"] == named.json()["request_id"] == "abc-123"
    for strange in ("with blank", "é".encode("latin-1"), "x" * 129):
        given = server.ask("GET", "/healthz", headers={"X-Request-Id": strange})
        assert len(given.headers["x-request-id"]) == 26


def test_a_page_of_another_place_cannot_use_the_server(server: Running) -> None:
    for headers, status in (
        ({"Host": "evil.example"}, 400),
        ({"Host": "127.0.0.1.evil.example:80"}, 400),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": server.url}, 200),
        ({"Host": "localhost"}, 200),
    ):
        assert server.ask("GET", "/graphs", "act-ines", headers=headers).status_code == status, headers


def test_metrics_count_requests_and_name_nobody(server: Running) -> None:
    server.ask("GET", "/graphs/harbor/branches", "act-ines")
    text = server.ask("GET", "/metrics", "act-ines").text
    assert 'omnigraph_requests_total{operation="listBranches",status="200"} 1.0' in text
    assert "harbor" not in text
    assert "act-ines" not in text


def test_the_document_describes_the_served_routes(server: Running, serve: Serve) -> None:
    described = server.ask("GET", "/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    operations = [each for path in described["paths"].values() for each in path.values()]
    ids = [each["operationId"] for each in operations]
    assert len(ids) == len(set(ids))
    assert {each["operationId"] for each in operations if "security" not in each} == {
        "health",
        "ready",
        "openapi",
    }
    unsecured = serve().ask("GET", "/openapi.json").json()
    assert "security" not in json.dumps(unsecured)
