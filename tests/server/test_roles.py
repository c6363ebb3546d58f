"""Every route, asked by everybody about every kind of branch. The rows come from the table of routes."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnigraph.api.graph import Graph
from omnigraph.policy.bundle import parse_bundle
from omnigraph.policy.decisions import BundlePolicy
from omnigraph.server.flat import FLAT_ROUTES
from omnigraph.server.routes import GRAPH_ROUTES
from omnigraph.server.stored import read_queries
from server.conftest import BY_IMO, SHIPS, Running, Serve

POLICY = """\
version: 1
groups: { readers: [reader, worker], workers: [worker], masters: [master] }
protected_branches: [main]
rules:
  - { id: r, allow: { actors: { group: readers }, actions: [read], branch_scope: unprotected } }
  - { id: w, allow: { actors: { group: workers }, actions: [change, export], branch_scope: unprotected } }
  - { id: m1, allow: { actors: { group: masters }, actions: [read, change, export], branch_scope: any } }
  - id: m2
    allow:
      actors: { group: masters }
      actions: [schema_apply, branch_create, branch_delete, branch_merge]
      target_branch_scope: any
  - { id: m3, allow: { actors: { group: masters }, actions: [admin, invoke_query] } }
"""
WHO = ("reader", "worker", "master", "stranger")
ON_TOPIC = {"reader": {"read"}, "worker": {"read", "change", "export"}, "stranger": set[str]()}
INSERT = 'query q() { insert Port { code: "OPO", name: "Porto" } }'


@dataclass(frozen=True)
class Row:
    """How a route is called about a branch, and what that needs: on the branch, or on main whatever is named."""

    needs: tuple[str, ...]
    path: str
    body: dict[str, Any] | None = None
    on_main: bool = False
    lines: bytes | None = None
    hidden: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


def rows(branch: str) -> dict[str, Row]:
    query = {"query": BY_IMO, "params": {"imo": "S1"}, "branch": branch}
    return {
        "query": Row(("read",), "/query", query),
        "explain": Row(("read",), "/explain", query),
        "export": Row(("export",), "/export", {"branch": branch}),
        "getSchema": Row(("read",), "/schema", on_main=True),
        "listBranches": Row(("read",), "/branches", on_main=True),
        "listQueries": Row(("read",), "/queries", on_main=True),
        "invokeQuery": Row(("invoke_query", "read"), "/queries/one_ship", {"branch": branch}, hidden=True),
        "listTags": Row(("read",), "/tags", on_main=True),
        "getStats": Row(("read",), f"/stats?branch={branch}"),
        "getIndexes": Row(("read",), f"/indexes?branch={branch}"),
        "getSnapshot": Row(("read",), f"/snapshot?branch={branch}"),
        "getEntity": Row(("read",), f"/entity?type=Ship&id=S1&branch={branch}"),
        "getBlob": Row(("read",), f"/blob?type=Ship&id=S1&property=name&branch={branch}"),
        "headBlob": Row(("read",), f"/blob?type=Ship&id=S1&property=name&branch={branch}"),
        "describeBranches": Row(("read",), "/branches/details", on_main=True),
        "startChanges": Row(("read",), f"/changes/start?branch={branch}"),
        "captureChangeBaseline": Row(("export",), "/changes/baseline", {"branch": branch}),
        "mutateMany": Row(
            ("change",), "/mutate/many", {"query": INSERT, "branch": branch, "parameter_sets": []}
        ),
        "cleanup": Row(("admin",), "/cleanup", {"keep": 1_000, "dry_run": True}),
        "listCommits": Row(("read",), f"/commits?branch={branch}"),
        "getCommit": Row(("read",), f"/commits/{branch}", hidden=True),
        "getCommitChanges": Row(("read",), f"/commits/{branch}/changes", hidden=True),
        "pollChanges": Row(("read",), f"/changes?branch={branch}"),
        "diff": Row(("read",), "/diff", {"from": branch, "to": branch}, hidden=True),
        "blame": Row(("read",), f"/blame?type=Ship&id=S1&at={branch}", hidden=True),
        "previewMerge": Row(("read",), "/branches/preview", {"source": branch, "target": "topic"}),
        "mutate": Row(("change",), "/mutate", {"query": INSERT, "branch": branch}),
        "load": Row(("change",), f"/load?branch={branch}", lines=b""),
        "revert": Row(("change",), "/revert", {"commit": branch, "branch": branch}),
        "restoreBranch": Row(("change",), "/branches/restore", {"to": branch, "branch": branch}),
        "createTag": Row(("change",), "/tags", {"name": "v1", "at": branch}, on_main=True),
        "deleteTag": Row(("change",), "/tags/none", on_main=True),
        "createBranch": Row(("branch_create",), "/branches", {"name": "main", "from": branch}),
        "mergeBranches": Row(("branch_merge",), "/branches/merge", {"source": branch, "target": branch}),
        "deleteBranch": Row(("branch_delete",), "/branches/none%2Fsuch"),
        "applySchema": Row(("schema_apply",), "/schema/apply", {"schema_source": SHIPS, "dry_run": True}),
        "optimize": Row(("admin",), "/optimize", {"branch": branch}),
    }


@dataclass(frozen=True)
class Flat:
    """How a route of the server itself is called, and what of it: nobody without a token, or who has `admin`."""

    path: str
    secured: bool = True
    admin: bool = False


FLAT = {
    "health": Flat("/healthz", secured=False),
    "ready": Flat("/readyz", secured=False),
    "openapi": Flat("/openapi.json", secured=False),
    "listGraphs": Flat("/graphs"),
    "metrics": Flat("/metrics"),
    "reload": Flat("/admin/reload", admin=True),
}


@pytest.fixture
def server(serve: Serve, harbor: Graph, tmp_path: Path) -> Running:
    harbor.branches.create("topic")
    tokens = {who: f"token-of-{who}" for who in WHO}
    (tmp_path / "stored.gq").write_text("query one_ship() { match { $s: Ship } return { $s.imo } limit 1 }")
    stored = read_queries([str(tmp_path / "stored.gq")])
    return serve(tokens, BundlePolicy(parse_bundle(POLICY, "p")[0]), queries=stored)


def test_every_route_has_a_row() -> None:
    assert set(rows("main")) == {route.operation for route in GRAPH_ROUTES}
    assert set(FLAT) == {route.operation for route in FLAT_ROUTES}


@pytest.mark.slow
def test_routes_of_the_server_itself_are_for_who_has_a_token(server: Running) -> None:
    for route in FLAT_ROUTES:
        row = FLAT[route.operation]
        nobody = server.ask(route.method, row.path)
        assert nobody.status_code == (401 if row.secured else 200), route.operation
        for who in WHO:
            answer = server.ask(route.method, row.path, who)
            # Who may reload is told that this server has nothing to read again.
            wanted = (400 if who == "master" else 403) if row.admin else 200
            assert answer.status_code == wanted, (route.operation, who, answer.text)
            if row.path != "/graphs":
                assert "harbor" not in answer.text.replace("/graphs/{graph_id}", ""), route.operation


@pytest.mark.slow
def test_hidden_states_look_alike_on_every_route_that_hides_them(server: Running, harbor: Graph) -> None:
    """What the route says of a state that may not be read is, byte by byte, what it says of none."""
    there, nowhere = harbor.commits.head().id, "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    asked = 0
    for route in GRAPH_ROUTES:
        row = rows("main")[route.operation]
        named = {each.name for each in msgspec.structs.fields(route.said)}
        if not row.hidden and not {"branch", "at"} <= named:
            continue
        seen: list[bytes] = []
        for commit in (there, nowhere):
            path = row.path.replace("branch=main", f"at={commit}").replace("at=main", f"at={commit}")
            body = json.dumps(row.body).replace('"branch": "main"', f'"at": "{commit}"')
            answer = server.ask(
                route.method,
                f"/graphs/harbor{path.replace('/main', f'/{commit}')}",
                "worker",
                headers={"X-Request-Id": "same", "Content-Type": "application/json"},
                content=body.replace('"main"', f'"{commit}"') if row.body else None,
            )
            assert answer.status_code == 404, (route.operation, answer.text)
            seen.append(answer.content.replace(commit.encode(), b"X"))
        assert seen[0] == seen[1], route.operation
        asked += 1
    assert asked >= 12
    unknown = [
        server.ask(
            "POST", f"/graphs/harbor/queries/{name}", "reader", headers={"X-Request-Id": "same"}, json={}
        )
        for name in ("one_ship", "none")
    ]
    assert unknown[0].content == unknown[1].content
    assert [each.status_code for each in unknown] == [404, 404]


@pytest.mark.parametrize("branch", ["main", "topic", "nope"])
@pytest.mark.slow
def test_everybody_gets_what_their_role_allows_and_nothing_else(server: Running, branch: str) -> None:
    methods = {route.operation: route.method for route in GRAPH_ROUTES}
    for operation, row in rows(branch).items():
        named = {"json": row.body} if row.body is not None else {}
        if row.lines is not None:
            named = {"content": row.lines, "headers": {"Content-Type": "application/x-ndjson"}}
        path = f"/graphs/harbor{row.path}"
        nobody = server.ask(methods[operation], path, **named)
        if methods[operation] == "HEAD":
            # It has no body to look at; its GET twin is a row of its own.
            asked = [server.ask("HEAD", path, who).status_code for who in ("stranger", "master")]
            assert [nobody.status_code, *asked] == [401, 403, 404 if branch == "nope" else 400]
            continue
        assert (nobody.status_code, nobody.json()["kind"]) == (401, "unauthorized"), operation
        for who in WHO:
            protected = branch == "main" or row.on_main
            may = who == "master" or (not protected and set(row.needs) <= ON_TOPIC[who])
            answer = server.ask(methods[operation], path, who, **named)
            if branch == "nope" and answer.status_code == 404:
                # A branch that is not there: said to who could read it, and to everybody where that is hidden.
                assert may or row.hidden, (operation, who)
            elif may:
                assert answer.status_code not in {401, 403}, (operation, who, answer.text)
                assert answer.status_code < 500, (operation, who, answer.text)
            elif row.hidden:
                kind = "stored_query_not_found" if operation == "invokeQuery" else "commit_not_found"
                assert (answer.status_code, answer.json()["kind"]) == (404, kind), (operation, who)
            else:
                assert (answer.status_code, answer.json()["kind"]) == (403, "forbidden"), (operation, who)
                for other in ("token-of", "readers", "masters", "master'", *({*WHO} - {who})):
                    assert other not in answer.json()["error"]


@pytest.mark.slow
def test_what_may_not_be_seen_looks_like_what_does_not_exist(server: Running, harbor: Graph) -> None:
    there, nowhere = harbor.commits.head().id, "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    headers = {"X-Request-Id": "same"}
    for path in ("/commits/{}", "/commits/{}/changes", "/blame?type=Ship&id=S1&at={}"):
        seen = [
            server.ask("GET", f"/graphs/harbor{path.format(commit)}", "reader", headers=headers)
            for commit in (there, nowhere)
        ]
        assert [each.status_code for each in seen] == [404, 404]
        assert seen[0].content.replace(there.encode(), b"X") == seen[1].content.replace(
            nowhere.encode(), b"X"
        )
    assert server.ask("GET", f"/graphs/harbor/commits/{there}", "master").status_code == 200
    body = {"query": BY_IMO, "params": {"imo": "S1"}, "at": there}
    assert server.post("/query", body, "reader").status_code == 404
    assert server.post("/query", body, "master").json()["row_count"] == 1


@pytest.mark.slow
def test_blanks_around_a_name_do_not_dodge_a_rule(server: Running) -> None:
    for name in (" main ", "main\t", "\u00a0main"):
        answer = server.post("/mutate", {"query": INSERT, "branch": name}, "worker")
        assert (answer.status_code, answer.json()["kind"]) == (403, "forbidden"), name
    assert server.post("/mutate", {"query": INSERT, "branch": "  "}, "worker").status_code == 400


def test_a_list_of_graphs_has_those_the_caller_may_read(server: Running) -> None:
    assert server.ask("GET", "/graphs", "master").json() == {"graphs": [{"graph_id": "harbor"}]}
    assert server.ask("GET", "/graphs", "stranger").json() == {"graphs": []}


def test_a_refused_load_is_not_read(server: Running) -> None:

    headers = {"Content-Type": "application/x-ndjson", "Expect": "100-continue"}
    answer = server.ask(
        "POST", "/graphs/harbor/load?branch=main", "worker", content=b"not a record\n", headers=headers
    )
    assert answer.status_code == 403
    assert "line" not in answer.json()["error"]
