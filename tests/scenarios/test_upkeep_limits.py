"""Upkeep whose time is over, or that is stopped, ends where it may end, and the next one goes on from there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pytest

import omnigraph
from graphs import make_graph, rows_of, run
from omnigraph.api.graph import Graph
from omnigraph.core import bounds
from omnigraph.core.bounds import NO_BOUNDS, current_bounds
from omnigraph.core.cancel import Cancellation
from omnigraph.core.errors import Cancelled, CloneUnfinished, DeadlineExceeded, DriftError
from omnigraph.core.failpoints import Callback, Window, activate
from omnigraph.maintenance import repair
from omnigraph.maintenance.repair import Action

SCHEMA = "node Person { name: String @key  nick: String? }\nnode Place { name: String @key }"
WIDER = SCHEMA.replace("nick: String?", "nick: String?  age: I32?")


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[Graph]:
    with make_graph(tmp_path / "g", SCHEMA) as made:
        made.session.after_publish = None
        for name in "abc":
            run(made, f'insert Person {{ name: "{name}", nick: "{name}" }}')
        yield made


class Ending:
    """Limits of a call, and what makes them end it from then on."""

    def __init__(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._cancel, self._now = Cancellation(), 0.0
        self.error: Any = DeadlineExceeded if kind == "timeout" else Cancelled
        self.limits: Any = {"timeout_s": 5} if kind == "timeout" else {"cancel": self._cancel}
        monkeypatch.setattr(bounds, "time", self)

    def monotonic(self) -> float:
        return self._now

    def ends(self, *_: object) -> None:
        self._now = 100.0
        self._cancel.request()


@pytest.fixture(params=["timeout", "cancel"])
def ending(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Ending:
    return Ending(request.param, monkeypatch)


@pytest.mark.slow
def test_a_cleanup_that_ends_in_its_sweep_is_finished_by_the_next(graph: Graph, ending: Ending) -> None:
    planned, rows = graph.cleanup(keep=1, dry_run=True), graph.export()
    with (
        activate(Window.CLEANUP_TABLE_GC, Callback(ending.ends)),
        pytest.raises(ending.error, match="the next one goes on from there"),
    ):
        graph.cleanup(keep=1, **ending.limits)
    assert current_bounds() is NO_BOUNDS
    assert {each.name for each in planned.fates if not each.goes} <= graph.session.adapter.stored().keys()
    assert graph.verify().ok
    graph.cleanup(keep=1)
    assert not {each.name for each in planned.removed} & graph.session.adapter.stored().keys()
    assert graph.export() == rows
    assert graph.verify().ok


def test_a_cleanup_that_ends_while_it_looks_removes_nothing(
    graph: Graph, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = graph.session.adapter.stored().keys()
    stored = graph.session.adapter.stored
    monkeypatch.setattr(graph.session.adapter, "stored", lambda: (stored(), ending.ends())[0])
    with pytest.raises(ending.error, match="nothing was changed"):
        graph.cleanup(keep=1, **ending.limits)
    assert {each for each in before if each.endswith((".lance", ".manifest"))} <= stored().keys()


@pytest.mark.slow
def test_a_clone_that_ends_while_it_copies_is_finished_by_the_next(
    graph: Graph, ending: Ending, tmp_path: Path
) -> None:
    target = tmp_path / "clone"
    with (
        activate(Window.CLONE_FILE_COPIED, Callback(ending.ends)),
        pytest.raises(ending.error, match="the next one goes on from there"),
    ):
        graph.clone(target, **ending.limits)
    with pytest.raises(CloneUnfinished):
        omnigraph.open(target)
    graph.clone(target)
    with omnigraph.open(target) as made:
        assert made.export() == graph.export()


def drifted(graph: Graph) -> None:
    """Somebody removes a row behind the back of the graph."""
    entry = graph.snapshot().entries["node:Person"]
    lance.dataset(f"{graph.uri}/{entry.location}").delete("id = 'a'")


def test_a_repair_that_ends_before_it_acts_changes_nothing(
    graph: Graph, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    drifted(graph)
    look = repair._operation
    monkeypatch.setattr(repair, "_operation", lambda *given: (ending.ends(), look(*given))[1])
    with pytest.raises(ending.error):
        graph.repair(confirm=True, restore=True, **ending.limits)
    with pytest.raises(DriftError):
        run(graph, 'insert Person { name: "d" }')


def test_a_restore_of_a_repair_is_not_stopped(
    graph: Graph, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = graph.export()
    drifted(graph)
    restore = repair.restore_published
    monkeypatch.setattr(
        repair, "restore_published", lambda *given, **named: (ending.ends(), restore(*given, **named))[1]
    )
    done = graph.repair(confirm=True, restore=True, **ending.limits)
    assert Action.RESTORED in {each.action for each in done.tables}
    assert graph.export() == rows
    assert graph.pending() == ()
    assert graph.verify().ok


@pytest.mark.slow
def test_an_adoption_lands_whole_and_its_call_ends(graph: Graph, ending: Ending) -> None:
    graph.branches.create("side")
    graph.apply_schema(WIDER)
    grow = 'query q() { insert Person { name: "d", age: 4 } }'
    with (
        activate(Window.SCHEMA_ADOPT_POST_SIDECAR_PRE_COMMIT, Callback(ending.ends)),
        pytest.raises(ending.error, match="nothing was changed"),
    ):
        graph.mutate(grow, branch="side", **ending.limits)
    assert graph.snapshot(branch="side").schema_hash == graph.snapshot().schema_hash
    assert set(rows_of(graph, "Person", branch="side")) == {"a", "b", "c"}
    assert graph.pending() == ()
    graph.mutate(grow, branch="side")
    assert set(rows_of(graph, "Person", branch="side")) == {"a", "b", "c", "d"}
    assert graph.verify().ok
