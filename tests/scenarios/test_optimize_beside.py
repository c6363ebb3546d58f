"""Optimize beside others who write: it ends, it keeps what they did, and its own work is not lost."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import omnigraph
from graphs import FAST, make_graph, rows_of, run
from omnigraph.api.graph import Graph
from omnigraph.core.errors import ResourceBusy
from omnigraph.core.failpoints import InjectedFailure, Raise, Window, activate
from omnigraph.core.ids import TableKey
from omnigraph.maintenance import indices
from omnigraph.maintenance.indices import IndexWork, ensure_indices
from omnigraph.storage import compaction

SCHEMA = "node P { name: String @key  n: I32? @index  face: Blob? }\nedge Knows: P -> P"
P = TableKey("node:P")
CHILD = Path(__file__).with_name("optimize_child.py")


@pytest.fixture
def graph(tmp_path):
    with make_graph(tmp_path / "g", SCHEMA) as made:
        made.session.after_publish = None
        yield made


def fill(graph: Graph, count: int = 4, each: int = 10) -> None:
    for first in range(0, count * each, each):
        people = (f'insert P {{ name: "p{number}", n: {number} }}' for number in range(first, first + each))
        run(graph, " ".join(people))


def fragments(graph: Graph):
    return graph.session.storage.fragments(graph.session.open_entry(graph.snapshot().entries[P]))


def uncovered(graph: Graph) -> set[int]:
    handle = graph.session.open_entry(graph.snapshot().entries[P])
    return {number for each in graph.session.storage.index_coverage(handle) for number in each.uncovered}


def found_by_index(graph: Graph, value: int) -> list[str]:
    query = "query q($v: I32) { match { $p: P  $p.n = $v } return { $p.name as name } }"
    return [row["name"] for row in graph.query(query, {"v": value})]


def meanwhile(monkeypatch: pytest.MonkeyPatch, *acts: Callable[[], object] | None) -> None:
    """Let others act after something is staged and before anything is held, one act each time."""
    stage, waiting = indices._stage_all, list(acts)

    def staged(*given, **named):
        made = stage(*given, **named)
        act = waiting.pop(0) if waiting else None
        if act is not None:
            act()
        return made

    monkeypatch.setattr(indices, "_stage_all", staged)


def judge(graph: Graph, expected: dict[str, dict]) -> None:
    assert rows_of(graph, "P") == expected
    with omnigraph.open(graph.uri, settings=FAST) as fresh:
        assert rows_of(fresh, "P") == expected
        for name, row in expected.items():
            assert name in found_by_index(fresh, row["n"])
        assert fresh.verify(deep=True).violations == ()


OTHERS = {
    "inserts": ['insert P { name: "new", n: 100 }'],
    "updates": ['update P set { n: 200 } where name = "p7"', 'update P set { n: 201 } where name = "p31"'],
    "deletes": ["delete P where n = 0", "delete P where n > 35", 'delete P where name = "p20"'],
    "all of it": [
        'delete P where name = "p12"',
        'insert P { name: "p12", n: 300 }',
        'update P set { n: 301 } where name = "p12"',
        "delete P where n > 30 delete P where n < 3",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("others", "deleted_before"), [*((each, False) for each in OTHERS), ("all of it", True)]
)
def test_what_others_do_meanwhile_is_in_the_rewritten_rows(
    graph, monkeypatch, others, deleted_before
) -> None:
    fill(graph)
    if deleted_before:
        run(graph, "delete P where n = 5 delete P where n = 6 delete P where n = 33")
    graph.ensure_indices()
    expected = {}

    def act() -> None:
        for each in OTHERS[others]:
            run(graph, each)
        expected.update(rows_of(graph, "P"))

    meanwhile(monkeypatch, act)
    report = graph.optimize()
    (done,) = [each for each in report.tables if each.type_name == "P"]
    assert (done.fragments_removed, done.fragments_added) == (4, 1)
    rewritten = next(each for each in fragments(graph) if each.physical_rows > 30)
    assert rewritten.id not in uncovered(graph)
    judge(graph, expected)


@pytest.mark.slow
def test_what_others_rewrote_themselves_is_theirs(graph, monkeypatch) -> None:
    fill(graph)
    expected = rows_of(graph, "P")
    meanwhile(monkeypatch, lambda: ensure_indices(graph.session, None, work=IndexWork.ALL))
    graph.optimize()
    assert len(fragments(graph)) == 1
    assert uncovered(graph) == set()
    judge(graph, expected)


@pytest.mark.slow
def test_who_is_always_late_makes_the_others_wait_once(graph, monkeypatch) -> None:
    fill(graph)
    held, quick = [], indices.quickly_done

    def rewrite() -> None:
        ensure_indices(graph.session, None, work=IndexWork.ALL)
        fill(graph, count=2)

    def watched(*given):
        held.append(graph.session.lease.held)
        return quick(*given)

    meanwhile(monkeypatch, rewrite, None, rewrite, None)
    monkeypatch.setattr(indices, "quickly_done", watched)
    assert graph.optimize().commit_id is not None
    assert held == [True]
    assert len(fragments(graph)) == 1
    judge(graph, rows_of(graph, "P"))
    assert len(rows_of(graph, "P")) == 40


def test_what_is_not_quickly_done_is_refused_rather_than_waited_for(graph, monkeypatch) -> None:
    fill(graph)
    before = graph.snapshot()
    monkeypatch.setattr(indices, "FOLDED_ROWS_MAX", 3)
    monkeypatch.setattr(indices._Run, "beside_others", indices._Run.alone)
    with pytest.raises(ResourceBusy, match="again and again"):
        graph.optimize()
    assert graph.snapshot() == before


@pytest.mark.slow
def test_numbers_that_others_took_are_not_given_twice(graph, monkeypatch) -> None:
    """Where more fragments came than numbers were left, the rewrite is done again."""
    fill(graph)
    monkeypatch.setattr(compaction, "NUMBERS_LEFT", 2)
    meanwhile(monkeypatch, lambda: [run(graph, f'insert P {{ name: "m{n}", n: {n} }}') for n in range(5)])
    graph.optimize()
    assert len({each.id for each in fragments(graph)}) == len(fragments(graph)) == 1
    assert uncovered(graph) == set()
    judge(graph, rows_of(graph, "P"))
    assert len(rows_of(graph, "P")) == 45


@pytest.mark.slow
@pytest.mark.parametrize(
    "window", [Window.OPTIMIZE_POST_COMPACT_PRE_REINDEX, Window.OPTIMIZE_POST_PHASE_B_PRE_MANIFEST_COMMIT]
)
def test_dying_behind_others_brings_no_deleted_row_back(graph, monkeypatch, window) -> None:
    fill(graph)
    meanwhile(monkeypatch, lambda: run(graph, "delete P where n < 10"))
    with activate(window, Raise(InjectedFailure("x"))), pytest.raises(Exception, match=r"half-way|x"):
        graph.optimize()
    with omnigraph.open(graph.uri, settings=FAST) as again:
        assert again.pending() == ()
        assert sorted(rows_of(again, "P")) == sorted(f"p{number}" for number in range(10, 40))
        assert again.verify(deep=True).violations == ()


@pytest.mark.slow
def test_optimize_ends_beside_a_process_that_keeps_writing(graph) -> None:
    fill(graph)
    expected = {f"p{number}": number for number in range(40)}
    writer = subprocess.Popen(
        [sys.executable, str(CHILD), graph.uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        commits = [graph.optimize().commit_id for _ in range(4)]
        printed, _ = writer.communicate("stop\n", timeout=120)
    finally:
        writer.kill()
        writer.wait()
    assert writer.returncode == 0
    report = json.loads(printed)
    for name, value in report["rows"].items():
        if value is None:
            expected.pop(name, None)
        else:
            expected[name] = value
    assert any(commits)
    sys.stdout.write(f"{report['calls']} writes beside it, the longest {report['longest_s']:.2f} s\n")
    with omnigraph.open(graph.uri, settings=FAST) as fresh:
        assert {name: row["n"] for name, row in rows_of(fresh, "P").items()} == expected
        assert fresh.verify(deep=True).violations == ()
        history = [each.operation for each in fresh.commits.list()]
    assert history.count("mutation") == report["calls"] + 4
