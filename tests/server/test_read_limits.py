"""What a read over a server may take, and which state it may name."""

import datetime as dt
from typing import Any

import pytest

from omnigraph.api.graph import Graph
from omnigraph.policy.bundle import parse_bundle
from omnigraph.policy.decisions import BundlePolicy
from omnigraph.server.requests import ReadLimits
from server.conftest import ADD, RENAME, Running, Serve

ALL = "query all() { match { $s: Ship } return { $s.imo, $s.name } }"
PAIRS = "query pairs() { match { $a: Ship  $b: Ship } return { $a.imo, $b.imo } }"
NAME = 'query name() { match { $s: Ship { imo: "S1" } } return { $s.name } }'


def told(running: Running, body: dict[str, Any], who: str | None = None, **headers: str) -> tuple[int, Any]:
    answer = running.post("/query", body, who, headers=headers)
    return answer.status_code, answer.json()


def test_a_read_gives_no_more_rows_than_it_may(serve: Serve) -> None:
    running = serve(limits=ReadLimits(rows=3))
    assert told(running, {"query": ALL})[0] == 200
    status, body = told(running, {"query": PAIRS})
    assert (status, body["kind"]) == (413, "resource_limit")
    assert body["resource_limit"] == {"resource": "result_rows", "limit": 3, "actual": 4}
    status, body = told(running, {"query": ALL}, **{"X-Max-Rows": "1"})
    assert body["resource_limit"] == {"resource": "result_rows", "limit": 1, "actual": 2}
    assert told(running, {"query": PAIRS}, **{"X-Max-Rows": "1000"})[0] == 413
    assert told(running, {"query": ALL}, **{"X-Max-Rows": "many"})[0] == 400
    answer = running.post(
        "/query", {"query": PAIRS}, headers={"Accept": "application/vnd.apache.arrow.stream"}
    )
    assert answer.status_code == 413


def test_a_read_holds_no_more_memory_than_it_may_whatever_it_asks_for(serve: Serve) -> None:
    running = serve(limits=ReadLimits(memory_bytes=40))
    assert told(running, {"query": NAME})[0] == 200
    for headers in ({}, {"X-Memory-Bytes": "1000000000"}):
        status, body = told(running, {"query": PAIRS}, **headers)
        assert (status, body["kind"]) == (413, "resource_limit")
        assert body["resource_limit"]["limit"] == 40
    free = serve()
    assert told(free, {"query": PAIRS}, **{"X-Memory-Bytes": "100000"})[0] == 200
    assert told(free, {"query": PAIRS}, **{"X-Memory-Bytes": "40"})[0] == 413


def test_a_read_takes_no_more_time_than_it_may(serve: Serve) -> None:
    running = serve(limits=ReadLimits(seconds=1e-9))
    status, body = told(running, {"query": ALL}, **{"X-Timeout-Ms": "60000"})
    assert (status, body["kind"]) == (504, "deadline_exceeded")


@pytest.fixture
def moved(harbor: Graph) -> tuple[Graph, str]:
    """The graph after a change, and a moment before it."""
    before = harbor.commits.head()
    harbor.tags.create("v1")
    harbor.branches.create("topic")
    # The moment that a person would write: the millisecond in which the commit before was made.
    moment = before.time.astimezone(dt.UTC).isoformat(timespec="milliseconds")
    harbor.mutate(RENAME, {"imo": "S1", "name": "Later"})
    return harbor, moment


def names_of(harbor: Graph, moment: str) -> list[str]:
    old = harbor.commits.list()[1].id
    return ["v1", "topic", "main~1", old, old[:20], moment, f"topic@{moment}"]


@pytest.mark.slow
def test_every_read_takes_a_commit_a_tag_a_branch_or_a_moment(serve: Serve, moved: tuple[Graph, str]) -> None:
    harbor, moment = moved
    running = serve()
    assert told(running, {"query": NAME})[1]["rows"] == [{"s.name": "Later"}]
    for at in names_of(harbor, moment):
        status, body = told(running, {"query": NAME, "at": at})
        assert (status, body.get("rows")) == (200, [{"s.name": "Aurora"}]), (at, body)
        asked: dict[str, Any] = {"params": {"type": "Ship", "id": "S1", "at": at}}
        entity = running.ask("GET", "/graphs/harbor/entity", **asked).json()
        assert "Aurora" in str(entity), (at, entity)
        assert b"Aurora" in running.post("/export", {"at": at}).content, at
        for path in ("stats", "snapshot", "indexes"):
            answer = running.ask("GET", f"/graphs/harbor/{path}", params={"at": at})
            assert answer.status_code == 200, (path, at, answer.text)
        diff = running.post("/diff", {"from": at, "to": "main"}).json()["changes"]
        assert [(each["op"], each["id"]) for each in diff] == [("update", "S1")], at
    for nothing in ("nope", "main~99", "1999-01-01", "nope@2026-01-01", "01ARZ3NDEKTSV4RRFFQ69G5FAV"):
        status, body = told(running, {"query": NAME, "at": nothing})
        assert status == 404, (nothing, body)


@pytest.mark.slow
def test_a_state_of_a_branch_that_may_not_be_read_looks_like_none(serve: Serve, harbor: Graph) -> None:
    harbor.branches.create("secret")
    commit = harbor.mutate(ADD, {"imo": "S9", "name": "Hidden"}, branch="secret").commit
    assert commit is not None
    text = (
        "version: 1\ngroups: { crew: [ines] }\nprotected_branches: [main]\n"
        "rules: [{ id: r, allow: { actors: { group: crew }, actions: [read], branch_scope: protected } }]\n"
    )
    running = serve({"ines": "t1"}, BundlePolicy(parse_bundle(text, "p")[0]))
    same = {"X-Request-Id": "same"}
    later = (dt.datetime.now(dt.UTC) + dt.timedelta(days=1)).isoformat()
    for at in ("secret", " secret ", commit.id, commit.id[:24], "secret~0", "secret~1", f"secret@{later}"):
        hidden = running.post("/query", {"query": NAME, "at": at}, "ines", headers=same)
        assert (hidden.status_code, hidden.json()["kind"]) == (404, "commit_not_found"), at
    absent = running.post("/query", {"query": NAME, "at": f"absent@{later}"}, "ines", headers=same)
    there = running.post("/query", {"query": NAME, "at": f"secret@{later}"}, "ines", headers=same)
    assert there.content.replace(b"secret", b"absent") == absent.content
    assert running.post("/query", {"query": NAME, "at": "main~0"}, "ines").status_code == 200
