"""Key indexes in files: a base and its tail, the fragments of a version, and what is not believed."""

from pathlib import Path

import pytest

import omnigraph
from graphs import forget_everything
from omnigraph.core import limits
from omnigraph.core.ids import TableKey
from omnigraph.core.settings import Settings
from omnigraph.engine.tables import key_cache, key_files
from omnigraph.engine.tables.cache_work import BACKGROUND
from omnigraph.engine.tables.key_files import load_exact, save_index
from omnigraph.engine.tables.keys import build, describe

SCHEMA = """
node Person { name: String @key  age: I32? }
edge Knows: Person -> Person { since: I32? }
"""
FAST = Settings(durability="os")
POINT = "query q($n: String) { match { $p: Person { name: $n } } return { $p.age } }"
HOP = "query q($n: String) { match { $p: Person { name: $n } $p knows $x } return { $x.name } }"
ADD = "query m($n: String, $a: I32) { insert Person { name: $n, age: $a } }"
AGE = "query m($n: String, $a: I32) { update Person set { age: $a } where name = $n }"
DROP = "query m($n: String) { delete Person where name = $n }"
TIE = "query m($n: String, $o: String) { insert Knows { from: $n, to: $o } }"
PERSON = TableKey("node:Person")


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch) -> None:
    monkeypatch.setattr(limits, "CACHED_ROWS_MIN", 1)
    monkeypatch.setattr(key_cache, "LISTED_FRAGMENTS_MIN", 2)
    forget_everything(monkeypatch)


class Counted:
    """A function that is called through and counted."""

    def __init__(self, monkeypatch, module, name: str) -> None:
        self.calls = 0
        self._work = getattr(module, name)
        monkeypatch.setattr(module, name, self)

    def __call__(self, *args, **named):
        self.calls += 1
        return self._work(*args, **named)


def grown(path: Path) -> None:
    """A graph whose tables have a saved index and commits since."""
    with omnigraph.init(path, schema=SCHEMA, settings=FAST) as graph:
        people = " ".join(f'insert Person {{ name: "p{n}", age: {n} }}' for n in range(40))
        graph.mutate(f"query m() {{ {people} }}")
        graph.query(POINT, {"n": "p1"})
        BACKGROUND.drain(graph.session.root.identity)
        graph.mutate(AGE, {"n": "p1", "a": 100})
        graph.mutate(DROP, {"n": "p2"})
        graph.mutate(ADD, {"n": "new", "a": 7})
        for other in ("p3", "p4"):
            graph.mutate(TIE, {"n": "p1", "o": other})
        graph.query(HOP, {"n": "p1"})


def ages(graph, **where) -> list[int | None]:
    found = [list(graph.query(POINT, {"n": name}, **where)) for name in ("p1", "p2", "new", "p5")]
    return [rows[0]["p.age"] if rows else None for rows in found]


def kinds(path: Path) -> set[str]:
    return {file.name.split("-")[0] for file in (path / "__cache").glob("*.cache")}


@pytest.mark.parametrize("opened", [omnigraph.open, omnigraph.open_read_only])
def test_a_new_process_follows_nothing_that_was_closed(tmp_path, monkeypatch, opened) -> None:
    grown(tmp_path / "g")
    assert {"keys", "tail"} <= kinds(tmp_path / "g")
    forget_everything(monkeypatch)
    counts = [Counted(monkeypatch, key_cache, name) for name in ("describe", "advance")]
    with opened(tmp_path / "g", settings=FAST) as graph:
        assert ages(graph) == [100, None, 7, 5]
        assert sorted(row["x.name"] for row in graph.query(HOP, {"n": "p1"})) == ["p3", "p4"]
    assert [each.calls for each in counts] == [0, 0]


@pytest.mark.slow
def test_what_was_committed_by_a_process_that_died_is_followed(tmp_path, monkeypatch) -> None:
    path = tmp_path / "g"
    grown(path)
    with monkeypatch.context() as patched:
        patched.setattr(key_cache.KeyIndexCache, "save_rest", lambda *_: None)
        forget_everything(monkeypatch)
        with omnigraph.open(path, settings=FAST) as graph:
            graph.query(POINT, {"n": "p1"})
            before = graph.snapshot().head
            graph.mutate(AGE, {"n": "p5", "a": 55})
            graph.mutate(DROP, {"n": "new"})
    for where in ({}, {"at": before}):
        forget_everything(monkeypatch)
        with omnigraph.open_read_only(path, settings=FAST) as graph:
            assert ages(graph, **where) == ([100, None, 7, 5] if where else [100, None, None, 55])


@pytest.mark.slow
def test_a_branch_made_again_is_not_taken_for_the_former(tmp_path, monkeypatch) -> None:
    path = tmp_path / "g"
    grown(path)
    for name, other in (("early", "late"), ("late", "early")):
        forget_everything(monkeypatch)
        with omnigraph.open(path, settings=FAST) as graph:
            graph.branches.create("side")
            graph.query(POINT, {"n": "p1"}, branch="side")
            graph.mutate(AGE, {"n": "p5", "a": 50}, branch="side")
            graph.mutate(ADD, {"n": name, "a": 1}, branch="side")
            if name == "late":  # as when the process dies
                monkeypatch.setattr(graph.session.keys, "save_rest", lambda _: None)
        forget_everything(monkeypatch)
        with omnigraph.open(path, settings=FAST) as graph:
            assert len(graph.query(POINT, {"n": name}, branch="side")) == 1
            assert len(graph.query(POINT, {"n": other}, branch="side")) == 0
            graph.branches.delete("side")


@pytest.mark.slow
def test_a_tail_is_not_joined_to_another_base_of_the_same_version(tmp_path, monkeypatch) -> None:
    path = tmp_path / "g"
    grown(path)
    forget_everything(monkeypatch)
    with omnigraph.open(path, settings=FAST) as graph:
        caches, storage = graph.session.keys, graph.session.storage
        handle = graph.session.open_entry(graph.snapshot().entries[PERSON])
        mine = load_exact(caches.files_of(graph.session.root.identity), handle)
        files = graph.session.cache_files
        assert mine is not None
        # Another process made an index of the version that the base is of, from the table itself.
        fresh = build(key_cache.TableKeys(storage, handle, describe(storage, handle)))
        monkeypatch.setattr(key_files, "version_name", lambda _: mine.base.name)
        assert save_index(files, handle, fresh, None) is not None
        monkeypatch.undo()
        assert load_exact(files, handle) is None


@pytest.mark.parametrize("rows", [3, 30])
@pytest.mark.slow
def test_a_long_tail_becomes_a_base(tmp_path, monkeypatch, rows) -> None:
    monkeypatch.setattr(key_files, "TAIL_ROWS_MIN", 10)
    monkeypatch.setattr(key_cache, "SAVED_AFTER_COMMITS", 2)
    path = tmp_path / "g"
    grown(path)
    before = {file.name for file in (path / "__cache").glob("keys-*.cache")}
    forget_everything(monkeypatch)
    with omnigraph.open(path, settings=FAST) as graph:
        graph.query(POINT, {"n": "p1"})
        for number in range(rows):
            graph.mutate(ADD, {"n": f"more{number}", "a": number})
        BACKGROUND.drain(graph.session.root.identity)
    after = {file.name for file in (path / "__cache").glob("keys-*.cache")}
    assert (after != before) == (rows == 30)
    forget_everything(monkeypatch)
    with omnigraph.open_read_only(path, settings=FAST) as graph:
        assert ages(graph) == [100, None, 7, 5]
        assert graph.query(POINT, {"n": f"more{rows - 1}"})[0]["p.age"] == rows - 1


@pytest.mark.slow
def test_an_index_that_does_not_fit_its_version_fails_nobody(tmp_path, monkeypatch) -> None:
    path = tmp_path / "g"
    grown(path)
    forget_everything(monkeypatch)
    with omnigraph.open(path, settings=FAST) as graph:
        graph.query(POINT, {"n": "p1"})
        handle = graph.session.open_entry(graph.snapshot().entries[PERSON])
        place = (graph.session.root.identity, handle.location, "")
        caches = graph.session.keys
        fitting = caches.fragments(place[0], graph.session.storage, handle)
        index = caches._newest[place].index
        assert index.seen([*handle.fragment_ids, 99]) is None
        assert index.seen(handle.fragment_ids[:-1]) is None
        caches._listed.clear()
        monkeypatch.setattr(type(index), "seen", lambda *_: None)
        assert caches.fragments(place[0], graph.session.storage, handle) == fitting
        assert save_index(graph.session.cache_files, handle, index, None) is None


@pytest.mark.slow
def test_who_meets_many_rows_written_anew_does_not_wait_for_their_index(tmp_path, monkeypatch) -> None:
    """As after an optimization of another process: lookups ask the table until the index has followed."""
    path = tmp_path / "g"
    grown(path)
    monkeypatch.setattr(key_cache, "UNINDEXED_ROWS_MIN", 20)
    with omnigraph.open(path, settings=FAST) as graph, omnigraph.open(path, settings=FAST) as other:
        other.session.keys = key_cache.KeyIndexCache(1 << 20)
        assert ages(graph) == [100, None, 7, 5]
        other.optimize()
        with monkeypatch.context() as held:
            waiting = []
            held.setattr(BACKGROUND, "submit", lambda _, __, work: waiting.append(work))
            followed = Counted(held, key_cache, "advance")
            built = Counted(held, key_cache, "build")
            assert ages(graph) == [100, None, 7, 5]
            graph.mutate(ADD, {"n": "after", "a": 8})
            assert [row["p.age"] for row in graph.query(POINT, {"n": "after"})] == [8]
            assert (followed.calls, built.calls) == (0, 0)
            waiting[-1]()
            assert followed.calls == 1
        assert ages(graph) == [100, None, 7, 5]
        assert [row["p.age"] for row in graph.query(POINT, {"n": "after"})] == [8]
        assert graph.verify().ok
