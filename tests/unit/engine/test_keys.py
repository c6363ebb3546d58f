"""The key index against a plain dictionary: any sequence of commits, restores and compactions."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import make_graph, reopen, run
from omnigraph.arrays import key_segments
from omnigraph.arrays.addresses import ABSENT
from omnigraph.arrays.key_segments import KeySegment, join_segments
from omnigraph.arrays.keys import hash_keys, last_occurrences, string_array
from omnigraph.core.ids import TableKey
from omnigraph.engine.tables import key_cache, keys
from omnigraph.engine.tables.key_cache import KeyIndexCache
from omnigraph.engine.tables.keys import TableKeys, advance, build, describe, probe
from omnigraph.storage.handles import Fragment

PERSON = TableKey("node:Person")
texts = st.text(max_size=40)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(texts, max_size=60), st.integers(0, 10))
def test_hash_depends_on_the_text_only(values: list[str], skip: int) -> None:
    whole = pa.array(["pad"] * skip + values, pa.string())
    sliced = whole.slice(skip)
    assert hash_keys(sliced).tolist() == hash_keys(pa.array(values, pa.string())).tolist()
    assert len(set(hash_keys(pa.array(list(set(values)), pa.string())).tolist())) == len(set(values))


def test_hash_tells_trailing_zeros_apart() -> None:
    values = ["", "\0", "\0\0", "a", "a\0", "a" * 8, "a" * 8 + "\0", "a" * 16]
    assert len(set(hash_keys(pa.array(values)).tolist())) == len(values)


@pytest.mark.slow
@settings(deadline=None)
@given(st.text() | st.integers(250, 1_100).map(lambda size: "longer"[: size % 7] + "key\0" * size))
def test_one_key_hashes_like_many(key: str) -> None:
    assert key_segments.hash_key(key.encode()) == key_segments.hash_keys(pa.array([key, "other"]))[0]


def test_colliding_hashes_are_resolved_by_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_segments, "hash_keys", lambda array: np.full(len(array), 7, np.uint64))
    monkeypatch.setattr(keys, "hash_keys", lambda array: np.full(len(array), 7, np.uint64))
    monkeypatch.setattr(key_segments, "hash_key", lambda key: 7)
    monkeypatch.setattr(key_segments, "DICTIONARY_ROWS_MAX", 0)
    values = pa.array([f"k{n}" for n in range(50)])
    segment = KeySegment(values, np.arange(50, dtype=np.uint64))
    assert [segment.find_one(f"k{n}") for n in range(50)] == list(range(50))
    assert segment.find_one("other") is None


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=20))
def test_last_occurrences(values: list[str | None]) -> None:
    expected = [n for n, value in enumerate(values) if value is None or value not in values[n + 1 :]]
    assert last_occurrences(pa.array(values, pa.string())).tolist() == expected


@settings(deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 99)), max_size=6), min_size=1),
    st.sampled_from([0, 1024]),
)
@pytest.mark.slow
def test_joined_segments_answer_like_the_newest(parts: list[list[tuple[str, int]]], few: int) -> None:
    """Whether they have few keys, which are compared by text, or many, which are compared by hash first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_segments, "DICTIONARY_ROWS_MAX", few)
        check_joined(parts)


def check_joined(parts: list[list[tuple[str, int]]]) -> None:
    segments, expected = [], {}
    for part in parts:
        once = dict(part)
        expected |= once
        segments.append(
            KeySegment(pa.array(list(once), pa.string()), np.array(list(once.values()), np.uint64))
        )
    joined = join_segments(segments)
    wanted = pa.array(list("abcdefg"))
    named, found = joined.find(wanted, hash_keys(wanted))
    assert {k: int(f) for k, n, f in zip("abcdefg", named, found, strict=True) if n} == expected
    assert len(joined) == len(expected)


@settings(deadline=None)
@given(st.lists(st.sampled_from([1, 1, 1, 2, 5, 40, 3_000]), max_size=60))
@pytest.mark.slow
def test_tidied_segments_stay_few_and_answer_like_the_newest(sizes: list[int]) -> None:
    segments: tuple[KeySegment, ...] = ()
    expected: dict[str, int] = {}
    for number, size in enumerate(sizes):
        fresh = {f"k{(number * 7 + n) % 5_000}": number * 10_000 + n for n in range(size)}
        expected |= fresh
        newest = KeySegment(pa.array(list(fresh)), np.array(list(fresh.values()), np.uint64))
        segments = keys._tidy([*segments, newest])
        assert len(segments) <= keys.SEGMENTS_MAX
    index = keys.KeyIndex({0: Fragment(0, ("f",), 1)}, {}, segments, {0: ("f",)})
    wanted = [*expected, *(f"absent{n}" for n in range(40))]
    found = index.find(pa.array(wanted, pa.string())).tolist()
    assert found == [expected.get(key, int(ABSENT)) for key in wanted]


def test_a_small_write_never_waits_for_all_segments_of_a_large_table(monkeypatch) -> None:
    joined: list[int] = []

    def counting(newest_last):
        joined.append(sum(map(len, newest_last)))
        return join_segments(newest_last)

    def segment(name: str, size: int) -> KeySegment:
        ids = pa.array([f"{name}-{number}" for number in range(size)], pa.string())
        return KeySegment(ids, np.arange(size, dtype=np.uint64))

    monkeypatch.setattr(keys, "join_segments", counting)
    monkeypatch.setattr(keys, "JOINED_ROWS_MAX", 2_000)  # so that segments of 2,000 count as large
    large = 2_000
    segments = tuple(segment(f"large{number}", large) for number in range(40))
    most = 0
    for number in range(200):
        joined.clear()
        segments = keys._tidy([*segments, segment(f"small{number}", 1)])
        most = max(most, sum(joined))
    assert len(segments) <= keys.SEGMENTS_MAX
    assert most <= 4 * large + 2_000
    assert sum(map(len, segments)) == 40 * large + 200


class MemoryTable:
    """A table of fragments, as the index sees one: files, deletions, live rows."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[str, list[str], frozenset[int]]] = {}
        self.next_id = 0
        self.files = 0
        self.scanned = 0

    def copy(self) -> "MemoryTable":
        other = MemoryTable()
        other.rows, other.next_id, other.files = dict(self.rows), self.next_id, self.files
        return other

    def live(self) -> dict[str, int]:
        return {
            key: (fragment << 32) + n
            for fragment, (_, values, dead) in self.rows.items()
            for n, key in enumerate(values)
            if n not in dead
        }

    def write(self, values: list[str]) -> None:
        self.remove(values)
        self.rows[self.next_id] = (f"file{self.files}", values, frozenset())
        self.next_id += 1
        self.files += 1

    def remove(self, values: list[str]) -> None:
        live = self.live()
        for address in [live[v] for v in values if v in live]:
            fragment = address >> 32
            name, held, dead = self.rows[fragment]
            dead |= {address & 0xFFFF_FFFF}
            if len(dead) == len(held):
                del self.rows[fragment]
            else:
                self.rows[fragment] = (name, held, dead)

    def compact(self) -> None:
        live = list(self.live())
        self.rows = {}
        if live:
            self.write(live)

    def fragments(self):
        return {
            number: Fragment(
                id=number,
                files=(name,),
                physical_rows=len(values),
                deletions=f"{name}-{len(dead)}-{hash(dead)}" if dead else None,
                deleted_rows=len(dead),
            )
            for number, (name, values, dead) in self.rows.items()
        }

    def dead_rows(self, fragment: Fragment):
        return np.array(sorted(self.rows[fragment.id][2]), np.uint32)

    def live_keys(self, fragment_ids):
        wanted = set(self.rows) if fragment_ids is None else set(fragment_ids)
        self.scanned += len(wanted)
        for number in sorted(wanted):
            _, values, dead = self.rows[number]
            alive = [n for n in range(len(values)) if n not in dead]
            yield (
                pa.array([values[n] for n in alive], pa.string()),
                np.array([(number << 32) + n for n in alive], np.uint64),
            )


KEYS = [f"k{n}" for n in range(12)]
subsets = st.lists(st.sampled_from(KEYS), min_size=1, max_size=5, unique=True)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("write"), subsets),
        st.tuples(st.just("remove"), subsets),
        st.tuples(st.just("own"), subsets),
        st.tuples(st.just("compact"), st.just([])),
        st.tuples(st.just("restore"), st.just([])),
        st.tuples(st.just("reuse"), subsets),
    ),
    max_size=14,
)


@settings(max_examples=300, deadline=None)
@given(actions)
@pytest.mark.slow
def test_the_index_follows_every_change(changes) -> None:
    table = MemoryTable()
    table.write(KEYS[:4])
    index = build(table)
    past = [table.copy()]
    straight = True
    for what, values in changes:
        own: dict = {}
        if what == "own":
            live = table.live()
            hidden = np.array(sorted(live[v] for v in values if v in live), np.uint64)
            own = {"own_keys": pa.array(values, pa.string()), "own_removed": hidden}
            table.write(values)
        elif what == "write":
            table.write(values)
        elif what == "remove":
            table.remove(values)
        elif what == "compact":
            table.compact()
        elif what == "restore":
            files = table.files
            table = past[len(past) // 2].copy()
            table.files = files
        else:  # another branch gave the next fragment number to another file
            table.next_id = max(0, table.next_id - 1)
            table.rows.pop(table.next_id, None)
            table.write(values)
        past.append(table.copy())
        table.scanned = 0
        index = advance(index, table, **own)
        # Numbers given out twice force a scan; without that, what this process wrote is never read back.
        straight = straight and what not in {"restore", "reuse"}
        if what == "own" and straight:
            assert table.scanned == 0
        wanted = pa.array([*KEYS, "nobody"])
        expected = [table.live().get(key, int(ABSENT)) for key in [*KEYS, "nobody"]]
        assert index.find(wanted).tolist() == expected
        many = pa.array([*KEYS, "nobody"] * 4)
        assert index.find(many).tolist() == expected * 4


def truth(graph) -> dict[str, int]:
    session = graph.session
    handle = session.open_entry(session.manifest.current(None).entries[PERSON])
    rows = session.storage.read(handle, columns=["id"], with_row_address=True)
    return dict(zip(rows["id"].to_pylist(), rows["_rowaddr"].to_pylist(), strict=True))


def looked_up(graph, names: list[str]) -> dict[str, int]:
    session = graph.session
    handle = session.open_entry(session.manifest.current(None).entries[PERSON])
    found = session.keys.addresses(session.root.identity, session.storage, handle, pa.array(names))
    known = session.keys.known(session.root.identity, session.storage, handle)
    if known is not None:
        dead = {number: len(rows) for number, rows in known.index.dead.items()}
        shown = {each.id: each.deleted_rows for each in session.storage.fragments(handle)}
        assert dead == {number: rows for number, rows in shown.items() if rows}
    return {name: int(at) for name, at in zip(names, found, strict=True) if at != ABSENT}


@pytest.mark.slow
def test_real_tables_own_and_foreign_commits(tmp_path: Path) -> None:
    rng = random.Random(3)
    names = [f"p{n}" for n in range(30)]
    with make_graph(tmp_path / "g") as graph, reopen(graph) as other:
        # The other handle has its own cache, so every commit is foreign to one of the two.
        other.session.keys = KeyIndexCache(1 << 20)
        for _ in range(25):
            chosen = rng.sample(names, 3)
            handle = rng.choice([graph, other])
            if rng.random() < 0.3:
                run(handle, " ".join(f'delete Person where name = "{n}"' for n in chosen))
            else:
                run(handle, " ".join(f'insert Person {{ name: "{n}" }}' for n in chosen))
            assert looked_up(graph, names) == truth(graph) == looked_up(other, names)
        assert graph.verify().ok


def test_probe_and_index_agree(tmp_path: Path) -> None:
    with make_graph(tmp_path / "g") as graph:
        awkward = ["it's", "a'b''c", "x\\y", "né", "%", "a b", ""]
        for name in awkward:
            run(graph, "insert Person { name: $n }", {"n": name}, types="$n: String")
        session = graph.session
        handle = session.open_entry(session.manifest.current(None).entries[PERSON])
        wanted = pa.array([*awkward, "nobody"])
        assert (
            probe(session.storage, handle, wanted).tolist()
            == build(TableKeys(session.storage, handle, describe(session.storage, handle)))
            .find(wanted)
            .tolist()
        )
        assert looked_up(graph, awkward) == truth(graph)


def test_the_cache_is_bounded(tmp_path: Path) -> None:
    with make_graph(tmp_path / "g") as graph:
        run(graph, 'insert Person { name: "a" } insert Company { name: "c" }')
        session = graph.session
        entries = session.manifest.current(None).entries
        small = KeyIndexCache(1)
        for key in ("node:Person", "node:Company"):
            handle = session.open_entry(entries[TableKey(key)])
            small.addresses("g", session.storage, handle, pa.array(["a"]))
            assert small.nbytes() <= 1
        large = KeyIndexCache(1 << 20)
        large.addresses("g", session.storage, session.open_entry(entries[PERSON]), pa.array(["a"]))
        assert large.nbytes() > 0
        large.forget("g")
        assert large.nbytes() == 0


@pytest.mark.slow
def test_readers_of_older_commits_and_other_handles_read_the_table_once(tmp_path, monkeypatch) -> None:
    text = "query q($n: String) { match { $p: Person { name: $n } } return { $p.age } }"
    with make_graph(tmp_path / "g") as graph, reopen(graph) as other:
        statements = ['insert Person { name: "a", age: 0 }']
        statements += [f'update Person set {{ age: {age} }} where name = "a"' for age in (1, 2, 3)]
        commits: list[str] = []
        for statement in statements:
            run(graph, statement)
            commits.append(graph.commits.list()[0].id)
        asked: list[int] = []
        monkeypatch.setattr(
            key_cache, "advance", lambda *args, **named: (asked.append(1), advance(*args, **named))[1]
        )
        for each in (graph, other):
            each.query(text, {"n": "a"})
        for turn in range(3):
            before = len(asked)
            for age, commit in enumerate(commits):
                for each in (graph, other):
                    assert each.at(commit).query(text, {"n": "a"}).to_dicts() == [{"p.age": age}]
                    assert each.query(text, {"n": "a"}).to_dicts() == [{"p.age": 3}]
            assert turn == 0 or len(asked) == before
        assert len(asked) <= 2 * len(commits)


def test_what_is_used_stays_longest() -> None:
    class Handle:
        def __init__(self, number: int) -> None:
            self.location, self.branch, self.version, self.row_count = f"t{number}", None, 1, 1

    def fill(cache: KeyIndexCache, number: int) -> key_cache.KnownKeys:
        segment = KeySegment(pa.array([f"k{number}"]), np.zeros(1, np.uint64))
        index = keys.KeyIndex({0: Fragment(0, ("f",), 1)}, {}, (segment,), {0: ("f",)})
        return cache._keep(("g", f"t{number}", ""), Handle(number), index)

    size = fill(KeyIndexCache(1 << 20), 0).nbytes
    cache = KeyIndexCache(3 * size)
    first, second, third = (fill(cache, number) for number in range(3))
    for each in (first, second, third):
        each.used = False
    first.used = True
    fill(cache, 3)
    assert set(cache._newest) == {("g", f"t{number}", "") for number in (0, 2, 3)}
    assert cache.nbytes() == 3 * size


def test_string_array_joins_chunks() -> None:
    chunks = pa.chunked_array([pa.array(["a"]), pa.array(["b"])])
    assert string_array(chunks).to_pylist() == ["a", "b"]
    assert string_array(pa.chunked_array([], pa.string())).to_pylist() == []
    assert string_array(pa.array(["a"], pa.large_string())).type == pa.string()
