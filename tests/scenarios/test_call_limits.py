"""Every call takes a time limit, a memory limit and a token that stops it, for itself alone."""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omnigraph
from graphs import make_graph, rows_of, unchanged
from omnigraph.api.at import GraphAt
from omnigraph.api.branches import Branches, Commits
from omnigraph.api.graph import Graph
from omnigraph.api.history import Feed, Tags
from omnigraph.core import bounds
from omnigraph.core.bounds import current_bounds, shown_value
from omnigraph.core.cancel import Cancellation
from omnigraph.core.errors import BadRequest, Cancelled, DeadlineExceeded, ResourceLimit
from omnigraph.core.failpoints import Callback, Pause, Raise, Sequence, Window, activate
from omnigraph.engine.write.calls import call_line
from waiting_calls import PERSON, Started

AT_HAND = {"close", "schema_source", "catalog"}
"""They answer from what is open already."""
WRITING = {
    Graph: [
        "mutate",
        "mutate_many",
        "load",
        "load_frames",
        "apply_schema",
        "revert",
        "ensure_indices",
        "optimize",
        "cleanup",
        "repair",
        "embed",
        "erase",
    ],
    Branches: ["create", "delete", "merge", "restore"],
    Tags: ["create", "delete"],
}
ALL = "query q() { match { $p: Person } return { $p.name, $p.nick } }"


def calls() -> list[Any]:
    return [
        pytest.param(cls, name, id=f"{cls.__name__}.{name}")
        for cls in (Graph, GraphAt, Branches, Commits, Tags, Feed)
        for name, member in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and name not in AT_HAND
    ]


@contextmanager
def made(place: Path) -> Iterator[Graph]:
    with make_graph(place) as graph:
        for number in range(3):
            graph.mutate(PERSON, {"name": f"p{number}", "nick": "n" * 200 + str(number)})
        yield graph


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    with made(tmp_path / "g") as graph:
        yield graph


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graph]:
    """For calls that are refused before they do anything; in the end they have done nothing."""
    with made(tmp_path_factory.mktemp("untouched") / "g") as graph, unchanged(graph):
        yield graph


def of(graph: Graph, cls: type) -> Any:
    made = {Branches: graph.branches, Commits: graph.commits, Tags: graph.tags, Feed: graph.feed}
    return graph.at("main") if cls is GraphAt else made.get(cls, graph)


@pytest.mark.parametrize(("cls", "name"), calls())
def test_every_call_takes_limits(untouched: Graph, cls: type, name: str) -> None:
    call = getattr(of(untouched, cls), name)
    stopped = Cancellation()
    stopped.request()
    with pytest.raises(Cancelled):
        call(cancel=stopped)
    for wrong in ({"timeout_s": 0}, {"timeout_s": "1"}, {"memory_bytes": True}, {"cancel": 1}):
        with pytest.raises(BadRequest, match=next(iter(wrong))):
            call(**wrong)
    assert current_bounds() is bounds.NO_BOUNDS


@pytest.mark.parametrize(("cls", "name"), [each for each in calls() if "load" not in each.values])
def test_every_call_refuses_a_keyword_it_does_not_know(untouched: Graph, cls: type, name: str) -> None:
    with pytest.raises(
        TypeError, match=r"unexpected keyword argument 'timeot_s'; did you mean 'timeout_s'\?"
    ):
        getattr(of(untouched, cls), name)(timeot_s=1)


@pytest.mark.parametrize(
    "call",
    [
        lambda graph, place, **limits: omnigraph.init(place, schema="node A { k: String @key }", **limits),
        lambda graph, _, **limits: omnigraph.open(graph.uri, **limits),
        lambda graph, _, **limits: omnigraph.open_read_only(graph.uri, **limits),
        lambda graph, place, **limits: omnigraph.clone(graph.uri, place, **limits),
        lambda graph, _, **limits: omnigraph.picture(graph, "Person", "p1", **limits),
    ],
    ids=["init", "open", "open_read_only", "clone", "picture"],
)
def test_calls_without_a_handle_take_limits_too(
    graph: Graph, tmp_path: Path, call: Callable[..., Any]
) -> None:
    place, stopped = tmp_path / "other", Cancellation()
    stopped.request()
    with pytest.raises(Cancelled):
        call(graph, place, cancel=stopped)
    for wrong in ({"timeout_s": 0}, {"memory_bytes": True}, {"cancel": 1}):
        with pytest.raises(BadRequest, match=next(iter(wrong))):
            call(graph, place, **wrong)
    with pytest.raises(TypeError, match=r"did you mean 'timeout_s'\?"):
        call(graph, place, timeot_s=1)
    assert not place.exists()
    made = call(graph, place, timeout_s=600, cancel=Cancellation())
    if isinstance(made, Graph):
        made.close()
    assert current_bounds() is bounds.NO_BOUNDS


def test_an_open_whose_time_is_over_leaves_no_settling_half_way(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        activate(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, Raise()),
        pytest.raises(Exception, match=r".+"),
    ):
        graph.mutate(PERSON, {"name": "dead"})
    graph.close()
    clock = Clock()
    monkeypatch.setattr(bounds, "time", clock)

    def over(_: Window) -> None:
        clock.now = 100.0

    listed = Sequence([lambda _: None, over])  # files that a power cut tore are looked for first
    with activate(Window.RECOVERY_POST_LIST_PRE_READ, listed), pytest.raises(DeadlineExceeded) as ended:
        omnigraph.open(graph.uri, timeout_s=5)
    assert "what dead writers left was settled, nothing else was changed" in str(ended.value)
    with omnigraph.open_read_only(graph.uri) as again:
        assert "dead" in rows_of(again, "Person"), "what was begun was finished"
        assert again.pending() == ()


def test_a_write_that_is_stopped_behind_the_work_of_a_dead_one_says_so(graph: Graph) -> None:
    dead = omnigraph.open(graph.uri)
    with (
        activate(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, Raise()),
        pytest.raises(Exception, match=r".+"),
    ):
        dead.mutate(PERSON, {"name": "dead"})
    dead.close()
    cancel = Cancellation()
    with (
        activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, Callback(lambda _: cancel.request())),
        pytest.raises(Cancelled, match="what dead writers left was settled, nothing else was changed"),
    ):
        graph.mutate(PERSON, {"name": "late"}, cancel=cancel)
    assert {"dead", "late"} & set(rows_of(graph, "Person")) == {"dead"}
    with pytest.raises(Cancelled, match="nothing was changed"):
        graph.mutate(PERSON, {"name": "late"}, cancel=cancel)


WRONG_NUMBERS = (10**400, 10**5000, -(10**400), float("nan"), float("inf"), -1, 0, True, "5", [1], b"5")


@pytest.mark.parametrize("wrong", WRONG_NUMBERS, ids=shown_value)
@pytest.mark.parametrize("word", ["timeout_s", "memory_bytes"])
def test_what_is_no_limit_is_refused_in_words(graph: Graph, word: str, wrong: Any) -> None:
    for call in (graph.branches.list, graph.verify, graph.stats):
        with pytest.raises(
            BadRequest, match=f"'{word}' is a number of .* and at most [0-9]+, not "
        ) as refused:
            call(**{word: wrong})  # pyright: ignore[reportArgumentType]
        assert len(str(refused.value)) < 200


def test_the_longest_limits_are_kept(graph: Graph) -> None:
    assert graph.branches.list(timeout_s=10**9, memory_bytes=10**18 - 1) == ["main"]
    assert graph.branches.list(timeout_s=0.5) == ["main"]


NUMBERS: dict[str, Callable[[Graph, Any], object]] = {
    "keep": lambda graph, given: graph.cleanup(keep=given, dry_run=True),
    "limit": lambda graph, given: graph.commits.list(limit=given),
    "since_us": lambda graph, given: graph.commits.list(since_us=given),
    "until_us": lambda graph, given: graph.commits.list(until_us=given),
    "changes_max": lambda graph, given: graph.feed.poll(graph.feed.start(), changes_max=given),
    "commits_max": lambda graph, given: graph.feed.poll(graph.feed.start(), commits_max=given),
    "max_rejects": lambda graph, given: graph.load_frames({}, mode="append", max_rejects=given, rejects="no"),
    "hops": lambda graph, given: omnigraph.picture(graph, "Person", "p1", hops=given),
    "nodes_max": lambda graph, given: omnigraph.picture(graph, "Person", "p1", nodes_max=given),
}


@pytest.mark.parametrize("wrong", [*WRONG_NUMBERS[:5], 1.5, *WRONG_NUMBERS[7:]], ids=shown_value)
@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_whole_number_is_refused_in_words(graph: Graph, name: str, wrong: Any) -> None:
    with pytest.raises(BadRequest, match=f"'{name}' is a whole number of at most 63 bits, not "):
        NUMBERS[name](graph, wrong)


@pytest.mark.parametrize("name", [each for each in NUMBERS if not each.endswith("_us")])
def test_a_number_below_zero_is_refused(graph: Graph, name: str) -> None:
    with pytest.raises(BadRequest, match=r"-1|negative"):
        NUMBERS[name](graph, -1)


def test_numbers_of_other_libraries_are_numbers(graph: Graph) -> None:
    assert len(graph.commits.list(limit=np.int64(1))) == 1  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("wrong", [5, "7d", float("nan"), True])
def test_an_age_is_a_timedelta(graph: Graph, wrong: Any) -> None:
    with pytest.raises(BadRequest, match="'older_than' is a timedelta, not "):
        graph.cleanup(older_than=wrong, dry_run=True)


def test_a_picture_of_everything_ends_where_the_graph_does(graph: Graph) -> None:
    omnigraph.picture(graph, "Person", "p1", hops=2**63 - 1)


def test_a_slip_in_a_keyword_says_what_was_meant(graph: Graph) -> None:
    with pytest.raises(TypeError, match="did you mean 'branch'"):
        graph.mutate("query q() { delete Person where age = 1 }", brnch="side")
    with pytest.raises(TypeError, match=r"parameters of a query are given as \{'k': \.\.\.\}"):
        graph.query("query q($k: I32) { match { $p: Person { age: $k } } return { $p.name } }", k=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'on_duplicates'"):
        graph.load("nothing.jsonl", mode="merge", on_duplicates="first")


def test_every_call_that_writes_takes_an_actor() -> None:
    for cls, names in WRITING.items():
        for name in names:
            assert "actor" in inspect.signature(getattr(cls, name)).parameters, (cls, name)


def test_branches_and_tags_are_not_changed_in_the_name_of_the_engine(graph: Graph) -> None:
    graph.branches.create("side", actor="ines")
    graph.tags.create("v1", actor="ines")
    for refused in (
        lambda actor: graph.branches.create("other", actor=actor),
        lambda actor: graph.branches.delete("side", actor=actor),
        lambda actor: graph.tags.create("v2", actor=actor),
        lambda actor: graph.tags.delete("v1", actor=actor),
    ):
        with pytest.raises(BadRequest, match="omnigraph:recovery"):
            refused("omnigraph:recovery")
    assert (graph.branches.list(), list(graph.tags.list())) == (["main", "side"], ["v1"])
    graph.tags.delete("v1", actor="ines")
    graph.branches.delete("side", actor="ines")


@pytest.mark.parametrize(
    "ask",
    [
        lambda graph, limits: graph.query(ALL, **limits),
        lambda graph, limits: graph.at("main").query(ALL, **limits),
        lambda graph, limits: graph.explain(ALL, analyze=True, **limits),
        lambda graph, limits: graph.mutate(PERSON, {"name": "x", "nick": "y" * 500}, **limits),
        lambda graph, limits: graph.mutate_many(PERSON, [{"name": "x", "nick": "y" * 500}], **limits),
        lambda graph, limits: graph.export(**limits),
        lambda graph, limits: graph.entity("Person", "p1", **limits),
    ],
)
def test_memory_is_bounded_for_one_call(graph: Graph, ask: Callable[[Graph, dict[str, int]], Any]) -> None:
    before = graph.commits.head().id
    with pytest.raises(ResourceLimit) as caught:
        ask(graph, {"memory_bytes": 100})
    assert caught.value.limit == 100
    assert graph.commits.head().id == before
    ask(graph, {})
    ask(graph, {"memory_bytes": 1_000_000})


class Clock:
    """The monotonic clock of bounds, moved on by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_write_whose_time_is_over_in_the_line_changes_nothing(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(bounds, "time", clock)
    with activate(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, Sequence([pause := Pause()])):
        first, late = Started(), Started()
        first.start(lambda: graph.mutate(PERSON, {"name": "first"}))
        pause.wait_until_reached()
        line, joined = call_line(graph.session)._calls, threading.Event()
        join = line.join
        monkeypatch.setattr(line, "join", lambda place: (join(place), joined.set()))
        late.start(lambda: graph.mutate(PERSON, {"name": "late"}, timeout_s=5))
        assert joined.wait(60)
        clock.now = 5.0
        (refused,) = late.join()
        pause.release()
        first.join()
    assert isinstance(refused, DeadlineExceeded)
    assert "nothing was changed" in refused.message
    assert set(rows_of(graph, "Person")) == {"p0", "p1", "p2", "first"}


@pytest.mark.parametrize("kind", ["timeout", "cancel"])
def test_a_write_is_not_stopped_after_its_first_effect(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    clock, cancel = Clock(), Cancellation()
    monkeypatch.setattr(bounds, "time", clock)

    def stop(_: Window) -> None:
        clock.now = 100.0
        cancel.request()

    limits: dict[str, Any] = {"timeout_s": 5} if kind == "timeout" else {"cancel": cancel}
    with activate(Window.MUTATION_POST_SIDECAR_PRE_COMMIT, Callback(stop)):
        assert graph.mutate(PERSON, {"name": "x"}, **limits).commit is not None
    assert "x" in rows_of(graph, "Person")
    assert graph.pending() == ()


def test_what_a_dead_writer_left_is_settled_whole_by_a_call_that_is_stopped(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(bounds, "time", clock)
    with (
        activate(Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, Raise()),
        pytest.raises(Exception, match=r".+"),
    ):
        graph.mutate(PERSON, {"name": "dead"})

    def over(_: Window) -> None:
        clock.now = 100.0

    with activate(Window.RECOVERY_POST_LIST_PRE_READ, Callback(over)), pytest.raises(DeadlineExceeded):
        graph.mutate(PERSON, {"name": "x"}, timeout_s=5)
    graph.mutate(PERSON, {"name": "y"})
    assert set(rows_of(graph, "Person")) == {"p0", "p1", "p2", "dead", "y"}
    assert graph.pending() == ()
    assert graph.verify().ok


@pytest.mark.parametrize(
    "ask",
    [
        lambda graph, limits: graph.diff(graph.commits.list()[-1].id, "main", **limits),
        lambda graph, limits: graph.branches.merge("side", **limits),
        lambda graph, limits: graph.branches.preview("side", **limits),
        lambda graph, limits: graph.blame("Person", "p1", **limits),
        lambda graph, limits: b"".join(graph.export_chunks(**limits)),
    ],
    ids=["diff", "merge", "preview", "blame", "export"],
)
def test_a_long_call_looks_while_it_reads(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Graph, dict[str, Any]], Any]
) -> None:
    """The time is over when the first rows are read; the call ends there and has changed nothing."""
    graph.branches.create("side")
    graph.mutate(PERSON, {"name": "s"}, branch="side")
    graph.mutate(PERSON, {"name": "m"})
    clock = Clock()
    monkeypatch.setattr(bounds, "time", clock)
    looks = [0]
    check = bounds.Cancellation.raise_if_requested

    def looked(self: Any) -> None:
        looks[0] += 1
        clock.now = 100.0 if looks[0] > 1 else 0.0
        check(self)

    monkeypatch.setattr(bounds.Cancellation, "raise_if_requested", looked)
    before = graph.commits.head().id
    with pytest.raises(DeadlineExceeded):
        ask(graph, {"timeout_s": 5})
    monkeypatch.undo()
    assert graph.commits.head().id == before
    ask(graph, {"timeout_s": 600})
