"""Table images: ordinals that stay, columns that are shared, few rows read without their columns."""

import numpy as np
import pyarrow as pa
import pytest

import graphs
from omnigraph.core.events import StorageCall, listen
from omnigraph.engine.tables import images
from omnigraph.engine.tables.cache_work import BACKGROUND
from omnigraph.engine.tables.column_cache import ColumnCache
from omnigraph.engine.tables.images import TableImage

NAMES = [f"p{number}" for number in range(12)]


@pytest.fixture
def graph(tmp_path):
    with graphs.make_graph(tmp_path / "g") as made:
        graphs.run(
            made,
            " ".join(f'insert Person {{ name: "{name}", age: {at} }}' for at, name in enumerate(NAMES)),
        )
        yield made


def image_of(graph, cache=None, layout=()):
    session = graph.session
    entry = graph.snapshot().entries["node:Person"]
    return TableImage(
        identity=session.root.identity,
        storage=session.storage,
        handle=session.open_entry(entry),
        keys=session.keys,
        cache=cache or ColumnCache(1 << 20),
        layout=layout,
    )


def reads(work) -> int:
    calls = []
    with listen(lambda event: calls.append(event) if isinstance(event, StorageCall) else None):
        work()
    return sum(call.kind in {"scan", "take"} for call in calls)


def test_a_row_keeps_its_ordinal_while_others_come_and_go(graph):
    before = image_of(graph)
    where = {name: before.find_one(name) for name in NAMES}
    graphs.run(graph, 'insert Person { name: "new" }')
    graphs.run(graph, 'delete Person where name = "p3"')
    after = image_of(graph, layout=before.layout)
    assert {name: after.find_one(name) for name in NAMES} == where | {"p3": -1}
    assert after.find_one("new") == before.extent
    assert (after.row_count, after.extent) == (12, 13)
    assert after.removed_since(before).tolist() == [where["p3"]]
    assert before.removed_since(after) is None
    assert after.live().tolist() == [*sorted(at for name, at in where.items() if name != "p3"), 12]
    assert before.find_one("p3") == where["p3"]
    assert before.live().tolist() == list(range(12))


def test_a_rewritten_row_gets_another_ordinal_and_the_old_one_stays_free(graph):
    before = image_of(graph)
    for age in range(3):
        graphs.run(graph, f'update Person set {{ age: {50 + age} }} where name = "p5"')
    after = image_of(graph, layout=before.layout)
    again = image_of(graph, layout=after.layout)
    assert again.contents == after.contents
    assert after.removed_since(before).tolist() == [before.find_one("p5")]
    at = after.find_one("p5")
    assert at >= before.extent
    assert after.take("age", np.array([at, -1, 0])).to_pylist() == [52, None, 0]
    assert before.take("age", np.array([before.find_one("p5")])).to_pylist() == [5]


def test_a_fragment_that_left_keeps_its_place(graph):
    layout = image_of(graph).layout
    graphs.run(graph, 'insert Person { name: "brief" }')
    between = image_of(graph, layout=layout)
    graphs.run(graph, 'delete Person where name = "brief"')
    graphs.run(graph, 'insert Person { name: "late" }')
    later = image_of(graph, layout=between.layout)
    assert later.find_one("late") == 13
    assert later.live().tolist() == [*range(12), 13]
    assert later.take("name", later.live()).to_pylist() == [*NAMES, "late"]
    assert later.removed_since(between).tolist() == [12]
    assert [part.tolist() for part, _ in later.read_live(["name"], after=12)] == [[13]]
    alone = image_of(graph)
    assert alone.find_one("late") == 12
    assert alone.contents != later.contents


def test_live_rows_come_with_their_ordinals(graph, monkeypatch):
    monkeypatch.setattr(images, "READ_ROWS", 5)
    graphs.run(graph, 'delete Person where name = "p4"')
    image = image_of(graph)
    parts = [
        (ordinals.tolist(), rows.column("name").to_pylist()) for ordinals, rows in image.read_live(["name"])
    ]
    assert len(parts) > 1
    ordinals = [each for part, _ in parts for each in part]
    assert ordinals == image.live().tolist()
    assert [name for _, names in parts for name in names] == [name for name in NAMES if name != "p4"]


def test_addresses_and_ordinals_are_two_names_of_a_row(graph):
    graphs.run(graph, 'insert Person { name: "new" }')
    image = image_of(graph)
    live = image.live()
    assert image.from_addresses(image.to_addresses(live)).tolist() == live.tolist()
    assert image.find(pa.array(["p2", "nobody", "new"])).tolist() == [2, -1, 12]


def test_versions_share_the_columns_of_their_fragments(graph):
    cache = ColumnCache(1 << 20)
    first = image_of(graph, cache)
    assert reads(lambda: first.take("age", first.live())) == 1
    graphs.run(graph, 'insert Person { name: "new", age: 99 }')
    second = image_of(graph, cache, first.layout)
    second.find_one("p0")
    assert reads(lambda: second.take("age", second.live())) == 1  # the new fragment alone
    assert second.take("age", second.live()).to_pylist() == [*range(12), 99]
    assert reads(lambda: second.take("age", np.array([3, 12]))) == 0


def test_a_chunk_with_gaps_is_not_given_to_a_version_that_shows_the_rows(graph):
    cache = ColumnCache(1 << 20)
    before = image_of(graph, cache)
    graphs.run(graph, 'delete Person where name = "p2"')
    after = image_of(graph, cache)
    assert after.take("age", np.arange(12)).to_pylist()[2] is None
    assert before.take("age", np.arange(12)).to_pylist() == list(range(12))


def test_an_evicted_column_is_read_again(graph):
    cache = ColumnCache(1)
    image = image_of(graph, cache)
    assert image.take("age", np.array([1, 2])).to_pylist() == [1, 2]
    assert cache.nbytes() == 0
    small = ColumnCache(120)
    other = image_of(graph, small)
    for name in ("age", "name", "age", "nick"):
        other.take(name, np.arange(12))
        assert small.nbytes() <= 120
    assert other.take("name", np.array([7])).to_pylist() == ["p7"]


@pytest.fixture
def sampled(graph, monkeypatch):
    monkeypatch.setattr(images, "SAMPLED_EXTENT_MIN", 1)
    monkeypatch.setattr(images, "SAMPLES_MAX", 2)
    graphs.run(graph, " ".join(f'insert Person {{ name: "more{n}", age: {n} }}' for n in range(40)))
    graphs.run(graph, 'delete Person where name = "more7"')
    return graph


def test_few_rows_are_read_without_the_column(sampled):
    image = image_of(sampled)
    asked = np.array([3, -1, 13, 3])
    assert image.take("age", asked).to_pylist() == [3, None, 1, 3]
    assert image.cached == frozenset()
    assert image.table(["name", "age"], asked).to_pylist() == [
        {"name": "p3", "age": 3},
        {"name": None, "age": None},
        {"name": "more1", "age": 1},
        {"name": "p3", "age": 3},
    ]
    assert image.pick("nick", [0, 1]) == [None, None]
    assert image.cached == frozenset()


def test_a_column_that_is_asked_for_again_is_loaded_beside(sampled):
    image = image_of(sampled)
    for _ in range(4):
        assert image.take("age", np.array([3])).to_pylist() == [3]
    BACKGROUND.drain(sampled.session.root.identity)
    assert image.cached == {"age"}
    assert reads(lambda: image.take("age", np.array([4]))) == 0


def test_dead_rows_are_null_however_they_are_read(sampled):
    image = image_of(sampled)
    gone = next(at for at in range(image.extent) if at not in set(image.live().tolist()))
    assert image.take("age", np.array([gone, 0])).to_pylist() == [None, 0]


@pytest.mark.slow
def test_joined_numbers_count_while_they_are_in_use(graph):
    for at, name in enumerate(NAMES[:6]):
        graphs.run(graph, f'update Person set {{ age: {at + 50} }} where name = "{name}"')
    cache = ColumnCache(1 << 20)
    image = image_of(graph, cache)
    image.take("age", np.arange(image.extent))
    chunks = cache.nbytes()
    numbers = image.numbers("age")
    assert numbers is image.numbers("age")
    # One number of four bytes for each row, and a byte that says whether it is known: dead rows are not.
    assert cache.nbytes() == chunks + numbers.nbytes_copied == chunks + 5 * image.extent
    del numbers, image
    assert cache.nbytes() == chunks


@pytest.mark.slow
def test_numbers_that_make_no_room_for_chunks_leave_with_them(graph):
    for at, name in enumerate(NAMES[:6]):
        graphs.run(graph, f'update Person set {{ age: {at + 50} }} where name = "{name}"')
    probe = ColumnCache(1 << 20)
    image_of(graph, probe).take("age", np.arange(12))
    cache = ColumnCache(probe.nbytes() + 20)
    image = image_of(graph, cache)
    for _ in range(3):
        values, known = image.numbers("age").gather(image.live())
        assert sorted(values.tolist()) == [*range(6, 12), *range(50, 56)]
        assert known is None or known.all()
        assert cache.nbytes() <= probe.nbytes() + 20
    assert cache.evictions
    tiny = image_of(graph, ColumnCache(10))
    assert tiny.numbers("age").gather(tiny.live())[0].max() == 55
    assert tiny.cache.nbytes() <= 10
