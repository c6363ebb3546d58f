"""Answers that the event loop gives itself: the same ones, and only where nothing has to be waited for."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from graphs import make_graph
from omnigraph.api.graph import Graph
from omnigraph.core.limits import AT_HAND_BYTES_MAX, AT_HAND_NODES_MAX
from omnigraph.engine.read.at_hand import rows_at_hand
from omnigraph.server import app
from server.conftest import BY_IMO, Running, Serve

SCHEMA = """
node Person { name: String @key  age: I32?  score: F64?  alive: Bool?  note: String?  born: Date?  tags: [String]? }
edge Knows: Person -> Person
"""
POINT = "query point($n: String) { match { $p: Person { name: $n } } return { $p.name, $p.age, $p.alive, $p.note } }"
FRIENDS = (
    "query friends($n: String) { match { $p: Person { name: $n }  $p knows $q } return { $q.name, $q.age } }"
)
OTHERS = {
    "a date": POINT.replace("$p.note", "$p.born"),
    "a list": POINT.replace("$p.note", "$p.tags"),
    "a test": "query q($n: String) { match { $p: Person { name: $n, age: 3 } } return { $p.name } }",
    "a sum": "query q($n: String) { match { $p: Person { name: $n } } return { count($p) as n } }",
    "all": "query q() { match { $p: Person } return { $p.name } }",
    "two variables": "query q($n: String) { match { $p: Person { name: $n }  $p knows $q }"
    " return { $p.name, $q.name } }",
}


@pytest.fixture
def people(tmp_path: Path) -> Iterator[Graph]:
    with make_graph(tmp_path / "people.omni", SCHEMA) as graph:
        lines: list[dict[str, Any]] = [
            {"type": "Person", "data": {"name": f"p{n}", "age": n, "alive": n % 2 == 0, "note": "ä" * n}}
            for n in range(40)
        ]
        lines += [{"type": "Person", "data": {"name": "none"}}]
        lines += [{"type": "Person", "data": {"name": "long", "note": "x" * (AT_HAND_BYTES_MAX + 1)}}]
        lines += [{"edge": "Knows", "from": "p1", "to": f"p{n}"} for n in range(2, 5)]
        lines += [{"edge": "Knows", "from": "p2", "to": f"p{n}"} for n in range(2, 2 + AT_HAND_NODES_MAX + 1)]
        text = "\n".join(json.dumps(each) for each in lines) + "\n"
        file = tmp_path / "people.jsonl"
        file.write_text(text)
        graph.load(file, mode="append", engine="local")
        yield graph


def at_hand(graph: Graph, text: str, **params: Any) -> Any:
    rows = rows_at_hand(graph.session, text, params or None, name=None)
    return None if rows is None else rows.envelope()


@pytest.mark.parametrize(
    ("text", "name"), [(POINT, "p7"), (POINT, "none"), (POINT, "nobody"), (FRIENDS, "p1")]
)
def test_an_answer_at_hand_is_the_answer(people: Graph, text: str, name: str) -> None:
    assert at_hand(people, text, n=name) is None  # nobody has asked yet, so nothing is in memory
    for _ in range(3):
        whole = people.query(text, {"n": name})
    assert at_hand(people, text, n=name) == whole.envelope()
    assert list(people.query(text, {"n": name})) == list(whole)


@pytest.mark.parametrize("what", OTHERS)
def test_what_takes_more_is_not_at_hand(people: Graph, what: str) -> None:
    params = {} if what == "all" else {"n": "p1"}
    for _ in range(3):
        people.query(OTHERS[what], params)
    assert at_hand(people, OTHERS[what], **params) is None


def test_long_values_and_many_nodes_and_wrong_parameters_are_not_at_hand(people: Graph) -> None:
    for name in ("p1", "p2", "long"):
        for text in (POINT, FRIENDS):
            people.query(text, {"n": name})
            people.query(text, {"n": name})
    assert at_hand(people, POINT, n="p1") is not None
    assert at_hand(people, POINT, n="long") is None
    assert at_hand(people, FRIENDS, n="p1") is not None
    assert at_hand(people, FRIENDS, n="p2") is None
    assert at_hand(people, POINT, n=3) is None
    assert at_hand(people, POINT) is None


def test_a_write_is_seen_at_once(people: Graph) -> None:
    for _ in range(3):
        people.query(POINT, {"n": "p7"})
    assert at_hand(people, POINT, n="p7")["rows"][0]["p.age"] == 7
    people.mutate('query q() { update Person set { age: 70 } where name = "p7" }')
    found = at_hand(people, POINT, n="p7")
    assert found is None or found["rows"][0]["p.age"] == 70
    assert people.query(POINT, {"n": "p7"})[0]["p.age"] == 70
    people.query(POINT, {"n": "p7"})
    assert at_hand(people, POINT, n="p7")["rows"][0]["p.age"] == 70


@pytest.fixture
def by_workers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations that workers did."""
    done: list[str] = []
    whole = app._done

    def watched(route: Any, call: Any, bounds: Any) -> Any:
        done.append(route.operation)
        return whole(route, call, bounds)

    monkeypatch.setattr(app, "_done", watched)
    return done


def test_the_second_time_no_worker_is_asked(serve: Serve, by_workers: list[str]) -> None:
    server = serve({"ines": "t1"})
    body = {"query": BY_IMO, "params": {"imo": "S1"}}
    answers = [_post(server, body) for _ in range(4)]
    assert len({each.content for each in answers}) == 1
    assert answers[0].json()["row_count"] == 1
    assert len(by_workers) < len(answers)
    known = len(by_workers)
    # Bounds of its own, another state, another form: workers keep them.
    for headers in ({"X-Timeout-Ms": "60000"}, {"X-Memory-Bytes": "9"}):
        _post(server, body, **headers)
    _post(server, body, Accept="application/vnd.apache.arrow.stream")
    _post(server, {**body, "at": "main"})
    assert len(by_workers) == known + 4
    assert _post(server, {**body, "params": {"imo": 3}}).status_code == 400


def test_what_is_at_hand_is_answered_while_every_worker_is_busy(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnigraph.server.workers.SERVER_WAITING_PER_WORKER", 0)
    server = serve({"ines": "t1"}, readers=1)
    body = {"query": BY_IMO, "params": {"imo": "S1"}}
    for _ in range(3):
        assert _post(server, body).status_code == 200
    begun, go_on = threading.Event(), threading.Event()
    whole = app._done

    def held(route: Any, call: Any, bounds: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return whole(route, call, bounds)

    monkeypatch.setattr(app, "_done", held)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(_post, server, {**body, "at": "main"})
        try:
            assert begun.wait(60)
            assert _post(server, {**body, "at": "main"}).status_code == 503
            assert _post(server, body).json()["row_count"] == 1
        finally:
            go_on.set()
        assert slow.result(60).status_code == 200


def _post(server: Running, body: dict[str, Any], **headers: str) -> Any:
    return server.ask("POST", "/graphs/harbor/query", "ines", json=body, headers=headers)
