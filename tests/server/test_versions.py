"""A client beside a server of another version: it takes what it knows, and says what it does not."""

import io
from typing import Any

import orjson
import pytest

from omnigraph.client.remote import RemoteGraph
from omnigraph.core.errors import ConstraintViolation, OmnigraphError, ParameterTypeError
from server.conftest import ADD, BY_IMO, RENAME
from server.test_client_faults import Between, between, remote  # noqa: F401  fixtures

LATER = {"of_a_later_version": {"more": [1]}}
NEWER = (
    "merged",
    "upkeep",
    "at",
    "name_of",
    "delete_branch",
    "resolve",
    "on_conflict",
    "if_commit",
    "analyze",
)
"""Words that earlier servers do not have, or that a call may leave out."""
OPTIONAL = {"repeated", "requests", "hint", "retry", "request_id", "kind", "merged_parent_commit_id"}


def retold(change: Any) -> Any:
    """Changes the objects of an answer that have fixed members; names of rows and tags are left alone."""

    def of(value: Any) -> Any:
        if isinstance(value, list):
            return [of(each) for each in value]
        if not isinstance(value, dict):
            return value
        inside = {"commit", "commits", "branches", "blocks", "cause", "datasets"}
        return change({name: of(each) if name in inside else each for name, each in value.items()})

    def tell(content: bytes) -> bytes:
        try:
            said = orjson.loads(content)
        except ValueError:
            return content
        return orjson.dumps(of(said))

    return tell


def everything(graph: RemoteGraph) -> list[Any]:
    """Calls of most kinds, and what each gave."""
    first = graph.mutate(ADD, {"imo": "S7", "name": "Seven"}, idempotency_key="k")
    assert first.commit is not None
    graph.branches.create("topic")
    graph.mutate(RENAME, {"imo": "S1", "name": "Theirs"}, branch="topic")
    graph.tags.create("v1")
    line = b'{"type":"Ship","data":{"imo":"S8","name":"Eight"}}\n'
    loaded = graph.load(io.BytesIO(line), mode="merge")
    merged = graph.branches.merge("topic")
    assert merged.commit is not None
    return [
        first.affected_nodes,
        loaded.records_read,
        list(graph.query(BY_IMO, {"imo": "S1"})),
        graph.branches.list(),
        [each.name for each in graph.branches.details()],
        [each.operation for each in graph.commits.list()],
        list(graph.tags.list()),
        len(graph.snapshot().entries),
        [(each.op, each.id) for each in graph.diff("v1", "main")],
        graph.schema_source(),
        graph.blame("Ship", "S1")["name"].commit.operation,
        len(list(graph.export_chunks())) > 0,
    ]


def kinds(graph: RemoteGraph) -> list[tuple[str, str]]:
    """The failures of wrong calls."""
    found: list[tuple[str, str]] = []
    for call in (
        lambda: graph.query(BY_IMO, {"imo": 1}),
        lambda: graph.query(BY_IMO, {"imo": "S1"}, branch="nope"),
        lambda: graph.mutate('query q() { insert CallsAt { from: "none", to: "LIS" } }'),
    ):
        with pytest.raises(OmnigraphError) as caught:
            call()
        found.append((type(caught.value).__name__, caught.value.message))
    return found


@pytest.mark.slow
def test_members_of_a_later_version_are_passed_over(between: Between, remote: RemoteGraph) -> None:  # noqa: F811
    between.retold = retold(lambda said: {**said, **LATER})
    assert everything(remote)[2] == [{"s.imo": "S1", "s.name": "Theirs"}]
    assert [name for name, _ in kinds(remote)][::2] == [
        ParameterTypeError.__name__,
        ConstraintViolation.__name__,
    ]


@pytest.mark.slow
def test_an_earlier_version_that_tells_less_is_understood(between: Between, remote: RemoteGraph) -> None:  # noqa: F811
    between.retold = retold(lambda said: {name: each for name, each in said.items() if name not in OPTIONAL})
    assert everything(remote)[2] == [{"s.imo": "S1", "s.name": "Theirs"}]
    # Without kinds, the code says what is known, and the text is told as it came.
    assert all("imo" in message or "nope" in message or "none" in message for _, message in kinds(remote))


def test_a_kind_nobody_knows_yet_is_an_error_with_its_text_and_advice(
    between: Between,  # noqa: F811
    remote: RemoteGraph,  # noqa: F811
) -> None:
    told = {
        "error": "of a later version",
        "code": "conflict",
        "kind": "not_known_yet",
        "retry": "never",
        "hint": "h",
    }
    between.instead = [(409, orjson.dumps({**told, **LATER}))]
    with pytest.raises(OmnigraphError) as caught:
        remote.query(BY_IMO, {"imo": "S1"})
    error = caught.value
    assert (error.kind, error.message, error.hint) == ("not_known_yet", "of a later version", "h")


@pytest.mark.slow
def test_what_is_not_asked_for_is_not_sent(remote: RemoteGraph) -> None:  # noqa: F811
    """An earlier server refuses what it does not know, so a call sends no more than it says."""
    asked: list[str] = []
    remote._link.client.event_hooks = {
        "request": [lambda request: asked.append(f"{request.url.query.decode()} {request.content.decode()}")]
    }
    remote.commits.list()
    remote.commits.list(merged=True, upkeep=False)
    remote.query(BY_IMO, {"imo": "S1"})
    remote.mutate(ADD, {"imo": "N1", "name": "x"})
    remote.branches.create("topic")
    remote.branches.merge("topic")
    remote.feed.start()
    assert [
        sorted(word for word in NEWER if f"{word}=" in each or f'"{word}"' in each) for each in asked
    ] == [
        [],
        ["merged", "upkeep"],
        *[[]] * 5,
    ]


def test_a_route_that_an_earlier_version_lacks_is_told(between: Between, remote: RemoteGraph) -> None:  # noqa: F811
    told = {"error": "there is nothing at this address", "code": "not_found", "kind": "route_not_found"}
    between.instead = [(404, orjson.dumps(told))]
    with pytest.raises(OmnigraphError) as caught:
        remote.queries.list()
    assert caught.value.kind == "route_not_found"
