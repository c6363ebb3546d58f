"""Pieces of a step side by side: in order, with a share of the memory each, and never for short reads."""

import threading

import pytest

import omnigraph
from omnigraph.core.errors import ResourceLimit
from omnigraph.core.settings import Settings
from omnigraph.engine.read import flow, threads

FAST = Settings(durability="os")


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch):
    """Also on a machine with one core."""
    monkeypatch.setattr(threads, "THREADS", 2)
    monkeypatch.setattr(threads, "_pool", None)


def refused() -> ResourceLimit:
    return ResourceLimit(resource="query_memory_bytes", limit=1, actual=2, place="here", hint="less")


def never(_):
    raise AssertionError("nothing is done alone here")


def test_pieces_run_at_once_and_come_in_order():
    second_began = threading.Event()

    def work(piece):
        if piece == 1:
            second_began.set()
        if piece == 0:
            assert second_began.wait(60)  # would never come if one ran after the other
        return piece

    assert list(threads.side_by_side(range(7), work, never)) == list(range(7))


def test_no_more_than_a_few_pieces_are_made_ahead():
    begun = []
    made = threads.side_by_side(range(100), begun.append, never)
    next(made)
    assert len(begun) <= 2
    made.close()


def test_a_piece_that_is_too_large_beside_others_is_done_alone():
    running, alone = [], []

    def work(piece):
        running.append(piece)
        try:
            if piece == 2:
                raise refused()
            return piece
        finally:
            running.remove(piece)

    def by_itself(piece):
        alone.append((piece, list(running)))
        return piece

    assert list(threads.side_by_side(range(6), work, by_itself)) == list(range(6))
    assert alone == [(2, [])]


def test_what_is_too_large_alone_is_refused():
    def work(_):
        raise refused()

    with pytest.raises(ResourceLimit):
        list(threads.side_by_side(range(3), work, work))


SCHEMA = "node P { k: String @key  n: I32 }\nedge E: P -> P"
PEOPLE = 40


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    nodes = [f'insert P {{ k: "p{n}", n: {n} }}' for n in range(PEOPLE)]
    edges = [
        f'insert E {{ from: "p{n}", to: "p{(n + step) % PEOPLE}" }}'
        for n in range(PEOPLE)
        for step in (1, 2, 3)
    ]
    with omnigraph.init(tmp_path_factory.mktemp("ring") / "g", schema=SCHEMA, settings=FAST) as graph:
        graph.mutate("query q() {" + "\n".join(nodes + edges) + "}")
        yield graph


@pytest.fixture
def seen(monkeypatch):
    """The names of the threads that ran a step."""
    names = set()
    run = flow.Flow._run

    def watched(self, number, frame):
        names.add(threading.current_thread().name)
        return run(self, number, frame)

    monkeypatch.setattr(flow.Flow, "_run", watched)
    return names


@pytest.mark.parametrize(
    "body",
    [
        "match { $a e $b $b e $c $a e $c } return { count($a) as n }",
        "match { $a e $b $b e $c $c e $d } return { $a.n, $d.n }",
    ],
)
def test_a_large_pattern_runs_on_threads_and_answers_the_same(ring, seen, monkeypatch, body):
    text = f"query q() {{ {body} }}"
    expected = ring.query(text).to_dicts()
    assert all(not name.startswith("omnigraph-read") for name in seen)
    monkeypatch.setattr(flow, "FLOW_ROWS", 16)
    monkeypatch.setattr(flow, "SKEW", 1)
    assert ring.query(text).to_dicts() == expected
    assert any(name.startswith("omnigraph-read") for name in seen)


def test_short_reads_stay_on_their_thread(ring, monkeypatch):
    monkeypatch.setattr(threads, "side_by_side", never)
    start = '$a: P { k: "p7" }'
    for hops in ("", "$a e $b", "$a e $b $b e $c", "$a e $b $b e $c $c e $d"):
        assert len(ring.query(f"query q() {{ match {{ {start} {hops} }} return {{ $a.n }} }}")) > 0


def test_a_refusal_on_a_thread_names_the_step_and_the_whole_limit(ring, monkeypatch):
    """A single node leads to more than fits, beside others and alone."""
    monkeypatch.setattr(flow, "FLOW_ROWS", 1)
    monkeypatch.setattr(flow, "SKEW", 1000)
    text = "query q() { match { $a e $b $b e $c } return { $a, $b, $c } }"
    with (
        omnigraph.open(ring.uri, settings=Settings(durability="os", query_memory_bytes=900)) as small,
        pytest.raises(ResourceLimit) as caught,
    ):
        small.query(text)
    told = caught.value.details["resource_limit"]
    assert told["limit"] == 900
    assert told["place"].startswith(("expand ", "the result"))
