"""Stored queries: listed with their types, called by name, by who may, over HTTP, the client and the command."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph.api.graph import Graph
from omnigraph.cli import running
from omnigraph.core.errors import BadRequest, Forbidden, IoFailure, QuerySyntaxError, StoredQueryNotFound
from omnigraph.core.permission import WRITERS
from omnigraph.policy.bundle import parse_bundle
from omnigraph.policy.decisions import BundlePolicy
from omnigraph.server.served import GraphToServe
from omnigraph.server.stored import read_queries
from server.conftest import SHIPS, Running, Serve
from server.test_serve_command import serving, stopped
from server.test_server_file import asked

QUERIES = """
query ship_by_imo($imo: String) @description("One ship.") {
  match { $s: Ship { imo: $imo } }
  return { $s.name, $s.tonnage }
}
// Every ship that is heavier.
query heavy_ships($min: I32?) @instruction("Ask for tons.") {
  match { $s: Ship  $s.tonnage > $min } return { $s.imo }
}
query ports() { match { $p: Port } return { $p.code } }
query many($a: [String], $b: I64, $c: F64?, $d: Date, $e: DateTime, $f: Bool) {
  match { $s: Ship  $a contains $s.imo } return { $s.imo }
}
query add_ship($imo: String, $name: String) { insert Ship { imo: $imo, name: $name } }
"""
POLICY = """\
version: 1
groups: { crew: [ines, tomas], masters: [tomas], guests: [gast] }
protected_branches: [main]
rules:
  - { id: reads, allow: { actors: { group: crew }, actions: [read], branch_scope: any } }
  - { id: topics, allow: { actors: { group: crew }, actions: [change], branch_scope: unprotected } }
  - { id: calls, allow: { actors: { group: masters }, actions: [invoke_query] } }
  - { id: looks, allow: { actors: { group: guests }, actions: [read] } }
  - { id: one, allow: { actors: { group: guests }, actions: [invoke_query], queries: [ports] } }
"""
TOKENS = {"ines": "t1", "tomas": "t2", "gast": "t3"}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    place = tmp_path / "queries"
    place.mkdir()
    (place / "harbor.gq").write_text(QUERIES)
    (place / "notes.txt").write_text("not a query")
    return place


@pytest.fixture
def server(serve: Serve, harbor: Graph, files: Path) -> Running:
    harbor.branches.create("topic")
    policy = BundlePolicy(parse_bundle(POLICY, "p")[0])
    return serve(TOKENS, policy, queries=read_queries([str(files)]))


@pytest.fixture
def remote(server: Running) -> Iterator[omnigraph.RemoteGraph]:
    with omnigraph.connect(server.url, graph="harbor", token="t2") as graph:
        yield graph


def test_queries_are_listed_with_their_parameters(server: Running) -> None:
    told = server.ask("GET", "/graphs/harbor/queries", "ines").json()["queries"]
    assert [each["name"] for each in told] == ["add_ship", "heavy_ships", "many", "ports", "ship_by_imo"]
    by_name = {each["name"]: each for each in told}
    assert by_name["ship_by_imo"] == {
        "name": "ship_by_imo",
        "tool_name": "ship_by_imo",
        "description": "One ship.",
        "mutation": False,
        "params": [{"name": "imo", "kind": "string", "nullable": False}],
    }
    assert by_name["heavy_ships"]["instruction"] == "Ask for tons."
    assert by_name["heavy_ships"]["params"] == [{"name": "min", "kind": "int", "nullable": True}]
    assert by_name["add_ship"]["mutation"] is True
    assert [(each["kind"], each.get("item_kind")) for each in by_name["many"]["params"]] == [
        ("list", "string"),
        ("bigint", None),
        ("float", None),
        ("date", None),
        ("datetime", None),
        ("bool", None),
    ]
    assert server.ask("GET", "/graphs/harbor/queries").status_code == 401


def test_a_query_may_be_called_with_an_empty_body_and_not_with_half_of_one(server: Running) -> None:
    path = "/graphs/harbor/queries/ports"
    headers = {"Content-Type": "application/json"}
    answers = [
        server.ask("POST", path, "tomas", content=text, headers=headers) for text in (b"", b"{}", b"{")
    ]
    assert [each.status_code for each in answers] == [200, 200, 400]
    assert answers[0].json()["rows"] == answers[1].json()["rows"] == [{"p.code": "LIS"}]


@pytest.mark.slow
def test_who_may_not_call_learns_nothing_of_what_there_is(server: Running) -> None:
    headers = {"X-Request-Id": "same"}
    hidden = server.post("/queries/heavy_ships", {"params": {"min": 1}}, "ines", headers=headers)
    unknown = server.post("/queries/zzz", {"params": {"min": 1}}, "tomas", headers=headers)
    assert (hidden.status_code, hidden.json()["kind"]) == (404, "stored_query_not_found")
    assert hidden.content == unknown.content
    assert server.post("/queries/heavy_ships", {"params": {"min": 10_000}}, "tomas").json()["row_count"] == 1


@pytest.mark.slow
def test_a_call_needs_what_its_query_needs_as_well(server: Running, harbor: Graph) -> None:
    body: dict[str, Any] = {"params": {"imo": "S7", "name": "Seven"}}
    answer = server.post("/queries/add_ship", body, "tomas")
    assert (answer.status_code, answer.json()["kind"]) == (403, "forbidden")
    assert "change on branch 'main'" in answer.json()["error"]
    done = server.post("/queries/add_ship", {**body, "branch": "topic"}, "tomas")
    assert (done.status_code, done.json()["actor_id"]) == (200, "tomas")
    assert harbor.commits.head(branch="topic").actor == "tomas"


@pytest.mark.slow
def test_a_rule_may_name_the_queries_it_is_about(server: Running) -> None:
    answers = [server.post(f"/queries/{name}", {}, "gast") for name in ("ports", "heavy_ships")]
    assert [each.status_code for each in answers] == [200, 404]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "body", "told"),
    [
        ("heavy_ships", {"expect_mutation": True}, "only reads"),
        ("add_ship", {"expect_mutation": False}, "changes data"),
        ("add_ship", {"at": "main~1"}, "older state"),
        ("ports", {"if_commit": "01ARZ3NDEKTSV4RRFFQ69G5FAV"}, "no condition"),
        ("ports", {"query": "query q() { match { $p: Port } return { $p.code } }"}, "unknown"),
        ("ship_by_imo", {}, "imo"),
        ("ship_by_imo", {"params": {"imo": 7}}, "imo"),
        ("ship_by_imo", {"params": {"imo": "S1", "more": 1}}, "more"),
    ],
)
def test_a_call_that_does_not_fit_is_refused(server: Running, name: str, body: Any, told: str) -> None:
    answer = server.post(f"/queries/{name}", body, "tomas")
    assert answer.status_code == 400, answer.text
    assert told in answer.json()["error"]


@pytest.mark.slow
def test_the_client_lists_and_runs_them(remote: omnigraph.RemoteGraph) -> None:
    known = {each.name: each for each in remote.queries.list()}
    assert known["heavy_ships"].signature == "heavy_ships(min: int?)"
    assert known["add_ship"].to_dict()["mutation"] is True
    assert remote.queries.run("ship_by_imo", {"imo": "S1"})[0] == {"s.name": "Aurora", "s.tonnage": 9000}
    assert len(remote.queries.run("ports", at="main~1")) == 0
    first = remote.queries.mutate("add_ship", {"imo": "S7", "name": "7"}, branch="topic", idempotency_key="k")
    again = remote.queries.mutate("add_ship", {"imo": "S7", "name": "7"}, branch="topic", idempotency_key="k")
    assert first.commit is not None
    assert again.commit is not None
    assert first.commit.id == again.commit.id
    with pytest.raises(StoredQueryNotFound):
        remote.queries.run("zzz")
    with pytest.raises(BadRequest, match="changes data"):
        remote.queries.run("add_ship")
    with pytest.raises(Forbidden):
        remote.queries.mutate("add_ship", {"imo": "S7", "name": "7"})


@pytest.mark.slow
def test_a_schema_that_breaks_a_stored_query_is_not_applied(serve: Serve, harbor: Graph, files: Path) -> None:
    running = serve(queries=read_queries([str(files)]))
    without = SHIPS.replace("  tonnage: I32?", "")
    answer = running.post("/schema/apply", {"schema_source": without})
    assert answer.status_code == 400
    assert "the stored query 'heavy_ships' does not fit the schema" in answer.json()["error"]
    assert "tonnage" in harbor.schema_source()
    more = SHIPS.replace("  tonnage: I32?", "  tonnage: I32?  flag: String?")
    assert running.post("/schema/apply", {"schema_source": more}).json()["applied"] is True


def test_files_of_queries_that_are_wrong_are_told(tmp_path: Path, files: Path) -> None:
    (files / "more.gq").write_text("query ports() { match { $p: Port } return { $p.name } }")
    with pytest.raises(BadRequest, match=r"'ports' is in harbor\.gq and in more\.gq"):
        read_queries([str(files)])
    (files / "more.gq").write_text("query ports( {")
    with pytest.raises(QuerySyntaxError) as caught:
        read_queries([str(files)])
    assert caught.value.source_error is not None
    assert caught.value.source_error.file == "more.gq"
    with pytest.raises(IoFailure):
        read_queries([str(tmp_path / "none.gq")])
    assert read_queries([]).by_name == {}


@pytest.mark.slow
def test_queries_are_read_again_and_a_broken_one_changes_nothing(
    harbor: Graph, files: Path, tmp_path: Path
) -> None:
    (tmp_path / "server.yaml").write_text("graphs: { harbor: { store: harbor.omni, queries: queries } }\n")
    config = ("--config", str(tmp_path / "server.yaml"), "--unauthenticated")
    with serving(*config) as (process, url):
        assert asked(url, "/graphs/harbor/queries/ports", body={}).status_code == 200
        for wrong in ("query broken( {", "query none() { match { $x: Nope } return { $x.a } }"):
            (files / "harbor.gq").write_text(wrong)
            assert asked(url, "/admin/reload", body={}).status_code == 400
            assert asked(url, "/graphs/harbor/queries/ports", body={}).status_code == 200
        (files / "harbor.gq").write_text("query all_ports() { match { $p: Port } return { $p.code } }")
        assert asked(url, "/admin/reload", body={}).status_code == 200
        assert asked(url, "/graphs/harbor/queries/ports", body={}).status_code == 404
        assert asked(url, "/graphs/harbor/queries/all_ports", body={}).json()["row_count"] == 1
        rc, _, _ = stopped(process)
    assert rc == 0


@pytest.mark.slow
def test_a_graph_whose_queries_do_not_fit_is_left_out(serve: Serve, tmp_path: Path, files: Path) -> None:
    omnigraph.init(tmp_path / "other.omni", schema="node A { a: String @key }").close()
    other = GraphToServe("other", str(tmp_path / "other.omni"), WRITERS, queries=read_queries([str(files)]))
    running = serve(others=[other])
    assert running.ask("GET", "/graphs").json() == {"graphs": [{"graph_id": "harbor"}]}


@pytest.mark.slow
def test_commands_call_them_by_name(
    server: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("OMNIGRAPH_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.yaml").write_text(f"servers: {{ quay: {{ url: '{server.url}' }} }}\n")
    monkeypatch.setenv("OMNIGRAPH_TOKEN_QUAY", "t2")

    def ran(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        rc = running.run((*argv, "--server", "quay", "--graph", "harbor"))
        told = capsys.readouterr()
        return rc, told.out, told.err

    rc, out, _ = ran("queries", "list", "--json")
    assert (rc, [each["name"] for each in json.loads(out)["queries"]][-1]) == (0, "ship_by_imo")
    assert "query\tship_by_imo(imo: string)\tOne ship." in ran("queries", "list")[1].splitlines()
    rc, out, _ = ran("query", "ship_by_imo", "-p", "imo=S1", "--json")
    assert (rc, json.loads(out)["rows"]) == (0, [{"s.name": "Aurora", "s.tonnage": 9000}])
    rc, out, _ = ran("mutate", "add_ship", "-p", "imo=S6", "-p", "name=Six", "--branch", "topic", "--json")
    assert (rc, json.loads(out)["affected_nodes"]) == (0, 1)
    assert ran("query", "add_ship", "--json")[0] == 1
    assert ran("query", "zzz", "--json")[0] == 6
