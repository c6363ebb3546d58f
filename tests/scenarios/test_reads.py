"""Reads: limits, explain, pushed filters, and the same answer at a commit however it is asked."""

import itertools
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import graphs
import omnigraph
from omnigraph.core.cancel import Cancellation
from omnigraph.core.errors import (
    Cancelled,
    ConstraintViolation,
    DeadlineExceeded,
    ResourceLimit,
    WrongQueryKind,
)
from omnigraph.core.events import StorageCall
from omnigraph.core.settings import Settings
from omnigraph.engine.read import access, query

TYPED = """
node Row {
  slug: String @key
  small: I32? @index
  count: U32? @index
  ratio: F32? @index
  day: Date? @index
  moment: DateTime? @index
}
edge Next: Row -> Row
"""

ROWS = " ".join(
    f'insert Row {{ slug: "r{n}", small: {n - 2}, count: {n}, ratio: {n}.5, day: date("2026-06-{n + 1:02}"),'
    f' moment: datetime("2026-06-{n + 1:02}T10:00:00Z") }}'
    for n in range(6)
)


@pytest.fixture
def typed(tmp_path):
    with graphs.make_graph(tmp_path / "g", TYPED) as graph:
        graphs.run(graph, ROWS)
        graphs.run(graph, 'insert Row { slug: "empty" }')
        yield graph


@pytest.fixture
def pushed(monkeypatch):
    """Filters run in the table format, as they do on tables too large for memory."""
    monkeypatch.setattr(access, "SCANNED_IN_MEMORY_ROWS_MAX", -1)
    monkeypatch.setattr(query, "_caches", None)


def slugs(graph, condition, **named):
    found = graph.query(f"query q() {{ match {{ $r: Row {condition} }} return {{ $r.slug }} }}", **named)
    return {row["r.slug"] for row in found}


CONDITIONS = {
    "$r.small = 1": {"r3"},
    "1 = $r.small": {"r3"},
    "$r.count >= 4": {"r4", "r5"},
    "4 <= $r.count": {"r4", "r5"},
    "$r.ratio < 1.5": {"r0"},
    '$r.day > date("2026-06-05")': {"r5"},
    'date("2026-06-05") < $r.day': {"r5"},
    '$r.moment = datetime("2026-06-02T11:00:00+01:00")': {"r1"},
    'datetime("2026-06-02T11:00:00+01:00") = $r.moment': {"r1"},
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_literal_coercion_uses_index(typed, pushed, condition):
    """Scenario 166."""
    typed.ensure_indices()
    plan = typed.explain(f"query q() {{ match {{ $r: Row {condition} }} return {{ $r.slug }} }}")
    scan = plan.operators[0]
    column = condition.split("$r.")[1].split()[0]
    assert scan.access == f"index {column}_btree"
    assert slugs(typed, condition) == CONDITIONS[condition]


@pytest.mark.slow
def test_explain_tells_what_an_index_does_not_cover(typed, pushed):
    typed.ensure_indices()
    graphs.run(typed, 'insert Row { slug: "late", small: 1 }')
    plan = typed.explain("query q() { match { $r: Row { small: 1 } } return { $r.slug } }")
    assert plan.operators[0].access == "index small_btree, 1 fragments uncovered"
    assert slugs(typed, "$r.small = 1") == {"r3", "late"}


@pytest.mark.parametrize("in_memory", [True, False])
def test_literal_fractional_and_out_of_range_are_exact(typed, monkeypatch, in_memory):
    """Scenario 167."""
    monkeypatch.setattr(access, "SCANNED_IN_MEMORY_ROWS_MAX", 10**9 if in_memory else -1)
    monkeypatch.setattr(query, "_caches", None)
    everything = {f"r{n}" for n in range(6)}
    assert slugs(typed, "$r.small = 2.7") == set()
    assert slugs(typed, "$r.small = 3000000000") == set()
    assert slugs(typed, "$r.small > 3000000000") == set()
    assert slugs(typed, "$r.small != 3000000000") == everything
    assert slugs(typed, "$r.count < -1") == set()
    assert slugs(typed, "$r.small < 3000000000") == everything
    assert slugs(typed, "$r.small > -3000000000") == everything
    assert slugs(typed, "$r.count > -1") == everything
    assert slugs(typed, "$r.small > 1.5") == {"r4", "r5"}


numbers = st.one_of(
    st.integers(-(2**33), 2**33), st.integers(-4, 8), st.sampled_from([0.5, 2.5, 2.7, -0.5, 1e12])
)
comparisons = st.builds(
    "$r.{} {} {}".format,
    st.sampled_from(["small", "count", "ratio"]),
    st.sampled_from(["=", "!=", "<", "<=", ">", ">="]),
    numbers.map(lambda value: f"{value:f}" if isinstance(value, float) else str(value)),
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(condition=comparisons)
@pytest.mark.slow
def test_filters_agree_indexed_and_in_memory(typed, monkeypatch, condition):
    """Scenario 168."""
    typed.ensure_indices()
    answers, accesses = [], []
    for rows_max in (10**9, -1):
        monkeypatch.setattr(access, "SCANNED_IN_MEMORY_ROWS_MAX", rows_max)
        monkeypatch.setattr(query, "_caches", None)
        answers.append(slugs(typed, condition))
        plan = typed.explain(f"query q() {{ match {{ $r: Row {condition} }} return {{ $r.slug }} }}")
        accesses.append(str(plan.operators[0].access))
    assert answers[0] == answers[1]
    event(" and ".join(accesses))
    decided_without_rows = accesses[0] == "columns in memory ()"
    assert decided_without_rows or accesses[0] != accesses[1], "both arms went the same way"


def test_time_travel_versions_chain(typed):
    """Scenario 169."""
    states = []
    for statement in (
        'insert Row { slug: "new", small: 9 }',
        'update Row set { small: 10 } where slug = "new"',
        'delete Row where slug = "new"',
    ):
        graphs.run(typed, statement)
        commit = typed.commits.head().id
        states.append((commit, slugs(typed, "$r.small >= 9"), slugs(typed, "$r.small = 10")))
    assert [state[1:] for state in states] == [({"new"}, set()), ({"new"}, {"new"}), (set(), set())]
    for commit, nine, ten in states:
        assert slugs(typed, "$r.small >= 9", at=commit) == nine
        assert slugs(typed, "$r.small = 10", at=commit) == ten


# --- limits ----------------------------------------------------------------------------------------------

PRODUCT = "query q() { match { $a: Row $b: Row $c: Row } return { count($a) as n } }"


def opened_with(graph, **named):
    return omnigraph.open(graph.uri, settings=Settings(durability="os", **named))


def test_a_product_beyond_the_memory_limit_is_refused(typed):
    with opened_with(typed, query_memory_bytes=2_000) as small:
        with pytest.raises(ResourceLimit) as refused:
            small.query(PRODUCT.replace("count($a) as n", "$a, $b, $c"))
        assert refused.value.details["resource_limit"]["resource"] == "query_memory_bytes"
        assert refused.value.details["resource_limit"]["place"] == "scan Row as $c"
        assert small.query("query q() { match { $a: Row } return { count($a) as n } }")[0] == {"n": 7}
        assert small.query(PRODUCT)[0] == {"n": 343}  # counting it takes no rows
    assert typed.query(PRODUCT)[0] == {"n": 343}


LARGE = 30_000
PRODUCTS_OF_LARGE_TYPES = {
    "scan B as $b": [
        "match { $a: A $b: B } return { $a, $b }",
        "match { $a: A $b: B } return { $a.n, $b.n, count($a) as n }",
        "match { $a: A $b: B $a.n = $b.n } return { $a.k }",
        "match { $a: A not { $b: B $b.n > $a.n } } return { $a.k }",
        "match { $a: A maybe { $b: B $b.n = $a.n } } return { $a.k, $b.k } limit 1",
    ],
    "scan A as $c": ['match { $b: B { k: "b7" } $a: A $c: A } return { $b.n, $a, $c } order { $c.k asc }'],
    "expand $b <-All- $c": ["match { $a: A $a all $b $c all $b } return { $a, $c }"],
}


def _large_graph(path) -> None:
    numbers = range(LARGE)
    keys = {name: pa.array([f"{name.lower()}{n}" for n in numbers]) for name in ("A", "B")}
    frames = {
        name: pa.table({"id": each, "k": each, "n": pa.array(numbers, pa.int32())})
        for name, each in keys.items()
    }
    frames["All"] = pa.table({"from": keys["A"], "to": keys["B"].take(pa.array([n % 3 for n in numbers]))})
    schema = "node A { k: String @key  n: I32 } node B { k: String @key  n: I32 } edge All: A -> B"
    with omnigraph.init(path, schema=schema, settings=graphs.FAST) as graph:
        graph.load_frames(frames, mode="append", engine="local")


_IN_LITTLE_MEMORY = """
import resource, sys
import omnigraph
from omnigraph.core.errors import ResourceLimit
from omnigraph.core.settings import Settings
from pathlib import Path

small = 'query q() { match { $b: B { k: "b7" } $a all $b } return { count($a) as n } }'
settings = Settings(durability="os", query_memory_bytes=64 << 20)
with omnigraph.open(sys.argv[1], settings=settings) as graph:
    assert graph.query(small)[0] == {"n": 0}
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30), -1))
    for text in sys.argv[2:]:
        try:
            graph.query("query q() { " + text + " }")
        except ResourceLimit as error:
            print(error.kind, error.details["resource_limit"]["place"], sep="|")
    assert graph.query(small)[0] == {"n": 0}
"""


@pytest.mark.slow
def test_products_of_two_large_types_are_refused_where_they_arise_and_the_process_survives(tmp_path):
    _large_graph(tmp_path / "g")
    texts = [(place, text) for place, each in PRODUCTS_OF_LARGE_TYPES.items() for text in each]
    command = [sys.executable, "-c", _IN_LITTLE_MEMORY, str(tmp_path / "g"), *(text for _, text in texts)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"resource_limit|{place}" for place, _ in texts]


def test_a_result_beyond_the_memory_limit_is_refused_before_it_is_made(typed):
    wide = ", ".join(f"$a.moment as m{n}" for n in range(30))
    text = f"query q() {{ match {{ $a: Row $b: Row }} return {{ {wide} }} LIMIT }}"
    with opened_with(typed, query_memory_bytes=49 * 30 * 8 - 1) as small:
        with pytest.raises(ResourceLimit) as refused:
            small.query(text.replace("LIMIT", ""))
        assert refused.value.details["resource_limit"]["place"] == "the result"
        assert len(small.query(text.replace("LIMIT", "limit 48"))) == 48
    with opened_with(typed, query_memory_bytes=49 * 30 * 8) as enough:
        assert len(enough.query(text.replace("LIMIT", ""))) == 49


def test_a_query_beyond_its_time_is_stopped(typed):
    with opened_with(typed, query_seconds=1e-9) as hurried, pytest.raises(DeadlineExceeded):
        hurried.query(PRODUCT)


def test_a_cancelled_query_stops(typed):
    cancel = Cancellation()
    cancel.request()
    with pytest.raises(Cancelled):
        typed.query(PRODUCT, cancel=cancel)
    assert typed.query(PRODUCT, cancel=Cancellation())[0] == {"n": 343}


SLOW_PRODUCTS = [
    "match { $a: A $b: A $a.n < $b.n $a.m < $b.m } return { $a }",
    "match { $a: A $b: A } return { count($a) as n, sum($a.n) as s, min($b.k) as m }",
    "match { $a: A $b: A $a.n < 2500 } return { $a.n } order { $b.k } limit 1",
    "match { $a: A maybe { $b: A $b.n < $a.n $b.m < $a.m } } return { $a.k, $b.k } limit 1",
]
"""Each of them takes most of a second or more, nearly all of it inside a step."""


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A graph whose nodes are few and whose pairs of nodes are many."""
    numbers = range(8_000)
    keys = pa.array([f"a{n}" for n in numbers])
    frame = pa.table(
        {
            "id": keys,
            "k": keys,
            "n": pa.array(numbers, pa.int32()),
            "m": pa.array([-n for n in numbers], pa.int32()),
        }
    )
    path = tmp_path_factory.mktemp("pairs") / "g"
    with omnigraph.init(
        path, schema="node A { k: String @key  n: I32  m: I32 }", settings=graphs.FAST
    ) as graph:
        graph.load_frames({"A": frame}, mode="append", engine="local")
        yield graph


@pytest.mark.parametrize("body", SLOW_PRODUCTS)
def test_the_time_limit_holds_inside_a_step(pairs, body):
    with opened_with(pairs, query_seconds=0.1) as hurried:
        begun = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            hurried.query(f"query q() {{ {body} }}")
        assert time.monotonic() - begun < 4


@pytest.mark.parametrize("body", SLOW_PRODUCTS)
def test_a_query_is_cancelled_inside_a_step(pairs, body):
    cancel = omnigraph.Cancellation()
    timer = threading.Timer(0.1, cancel.request)
    begun = time.monotonic()
    timer.start()
    with pytest.raises(Cancelled, match=r"^the query was cancelled$"):
        pairs.query(f"query q() {{ {body} }}", cancel=cancel)
    assert time.monotonic() - begun < 3.5
    timer.join()


TEXTS = "node T { k: String @key  s: String  t: [String]? }"


def _texts(path, count, length):
    keys = pa.array([f"t{n}" for n in range(count)])
    texts = pa.array([f"{n:06}".ljust(length, "x") for n in range(count)])
    lists = pa.array([[text] for text in texts.to_pylist()], pa.list_(pa.string()))
    graph = omnigraph.init(path, schema=TEXTS, settings=graphs.FAST)
    graph.load_frames(
        {"T": pa.table({"id": keys, "k": keys, "s": texts, "t": lists})}, mode="append", engine="local"
    )
    return graph


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ("match { $a: T $b: T $a.s = $b.s } return { count($a) as n }", "filter"),
        ("match { $a: T $b: T $a.t contains $b.s } return { count($a) as n }", "filter"),
        ('match { $a: T $b: T $a.s != "x" $b.s != $a.k } return { count($a) as n }', "filter"),
        ("match { $a: T $b: T } return { $b.k, max($a.s) as n }", "scan"),
        ("match { $a: T $b: T } return { $a.s }", "the result"),
    ],
)
@pytest.mark.slow
def test_texts_count_against_the_memory_limit_before_they_are_fetched(tmp_path, body, place):
    with (
        _texts(tmp_path / "g", 60, 400_000) as graph,
        opened_with(graph, query_memory_bytes=350_000) as small,
    ):
        with pytest.raises(ResourceLimit) as refused:
            small.query(f"query q() {{ {body} }}")
        found = refused.value.details["resource_limit"]
        assert found["place"].startswith(place)
        assert found["actual"] > 400_000
        assert small.query("query q() { match { $a: T $b: T $a.k = $b.k } return { count($a) as n } }")[
            0
        ] == {"n": 60}


@pytest.mark.slow
def test_texts_that_rows_are_ordered_by_count_once_for_each_entity(tmp_path):
    body = "match { $a: T $b: T } return { $a.k } order { $b.s } limit 1"
    with (
        _texts(tmp_path / "g", 600, 40_000) as graph,
        opened_with(graph, query_memory_bytes=20_000_000) as small,
        opened_with(graph, query_memory_bytes=60_000_000) as enough,
    ):
        with pytest.raises(ResourceLimit) as refused:
            small.query(f"query q() {{ {body} }}")
        found = refused.value.details["resource_limit"]
        assert found["place"] == "the result"
        assert 24_000_000 < found["actual"] < 60_000_000
        assert enough.query(f"query q() {{ {body} }}")[0] == {"a.k": "t0"}


@pytest.mark.slow
def test_texts_of_a_filter_beyond_one_array_are_compared_in_pieces(tmp_path):
    """9 million pairs of texts of 300 characters are more than an Arrow array can hold."""
    with _texts(tmp_path / "g", 3_000, 300) as graph:
        for condition, count in (("$a.s = $b.s", 3_000), ('$b.s starts_with "0000"', 300_000)):
            body = f'match {{ $a: T $b: T {condition} $a.k != "t" }} return {{ count($a) as n }}'
            assert graph.query(f"query q() {{ {body} }}")[0] == {"n": count}
        assert graph.query("query q() { match { $a: T $b: T } return { max($a.s) as m } }")[0][
            "m"
        ].startswith("002999")


# --- explain ---------------------------------------------------------------------------------------------


def test_explain_of_a_mutation_says_what_it_is_for(typed):
    with pytest.raises(WrongQueryKind, match="'q' changes data") as caught:
        typed.explain('query q() { delete Row where slug = "a" }')
    assert caught.value.hint == "explain is for queries that read"
    with pytest.raises(WrongQueryKind) as caught:
        typed.query('query q() { delete Row where slug = "a" }')
    assert caught.value.hint == "run it with mutate"


def test_explain_analyze_counts_what_came_out(typed):
    graphs.run(typed, 'insert Next { from: "r0", to: "r1" } insert Next { from: "r1", to: "r2" }')
    text = "query q($s: String) { match { $a: Row { slug: $s } $a next{1,2} $b $b.small >= 0 } return { $b.slug } }"
    before = typed.explain(text, {"s": "r0"})
    assert not before.analyzed
    assert all(operator.actual_rows is None for operator in before.operators)
    plan = typed.explain(text, {"s": "r0"}, analyze=True)
    assert [(op.name, op.actual_rows) for op in plan.operators] == [
        ("scan", 1),
        ("expand", 2),
        ("filter", 1),
        ("project", 1),
    ]
    assert plan.operators[0].access == "key index"
    assert (plan.rows, plan.to_dict()["analyze"]["rows"]) == (1, 1)
    assert "expand $a -Next{1,2}-> $b" in str(plan)
    assert "$a -Next{1,2}-&gt; $b" in plan._repr_html_()
    again = typed.explain(text, {"s": "r0"}, analyze=True)
    assert again.operators[1].access == "adjacency"
    assert again.operators[1].why == "it is in memory for this state of the tables"
    assert again.storage_calls == {}


def test_explain_names_the_way_an_edge_was_followed(typed, tmp_path):
    graphs.run(typed, 'insert Next { from: "r0", to: "r1" }')
    text = 'query q() { match { $a: Row { slug: "r0" } $a next $b } return { $b.slug } }'
    with graphs.reopen(typed, settings=replace(graphs.FAST, expand_access="probe")) as probing:
        plan = probing.explain(text, analyze=True)
        assert [op.access for op in plan.operators] == ["key index", "index probes", ""]
        assert plan.operators[1].why == "the settings ask for it"
        assert plan.rows == 1


def test_explain_shows_blocks_inside(typed):
    plan = typed.explain(
        "query q() { match { $a: Row not { $a next $_ } maybe { $b next $a } } return { $a.slug, $b.slug } }"
    )
    assert [op.name for op in plan.operators] == ["scan", "not", "maybe", "project"]
    assert [op.name for op in plan.operators[1].inner] == ["expand"]
    assert [op.name for op in plan.operators[2].inner] == ["expand"]


# --- the same answer however it is asked -----------------------------------------------------------------

PEOPLE = """
node Person { name: String @key  age: I32?  city: String? }
edge Knows: Person -> Person { since: I32? }
"""
NAMES = "abcde"
QUERIES = (
    "query q() { match { $p: Person } return { $p.name, $p.age, $p.city } }",
    "query q() { match { $p: Person $p knows $x } return { $p.name, $x.name } }",
    "query q() { match { $p: Person $p $e: knows $x } return { $p.name, $x.name, $e.since } }",
    "query q() { match { $p: Person $p <knows>{1,3} $x } return { $p.name, $x.name } }",
    'query q() { match { $p: Person { name: "a" } $p knows{1,2} $x $x.age > 1 } return { $x.name } }',
    "query q() { match { $p: Person not { $x knows $p } } return { $p.name } }",
    "query q() { match { $p: Person $p knows $x } return { $p.city, count($x) as n, sum($x.age) as s } }",
)
names = st.sampled_from(NAMES)
ages = st.integers(0, 3)
changes = st.one_of(
    st.builds('insert Person {{ name: "{}", age: {}, city: "{}" }}'.format, names, ages, names),
    st.builds('insert Knows {{ from: "{}", to: "{}", since: {} }}'.format, names, names, ages),
    st.builds('update Person set {{ age: {} }} where name = "{}"'.format, ages, names),
    st.builds('update Knows set {{ since: {} }} where to = "{}"'.format, ages, names),
    st.builds('delete Knows where from = "{}"'.format, names),
    st.builds('delete Person where name = "{}"'.format, names),
)
counter = itertools.count()


def answers(graph, **named):
    return [
        Counter(tuple(sorted(row.items(), key=str)) for row in graph.query(text, **named)) for text in QUERIES
    ]


@pytest.mark.model
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(program=st.lists(changes, min_size=2, max_size=7))
def test_answers_are_the_same_at_a_commit_cold_warm_and_reopened(tmp_path_factory, program):
    graph = graphs.make_graph(tmp_path_factory.mktemp("reads") / f"g{next(counter)}", PEOPLE)
    graphs.run(graph, " ".join(f'insert Person {{ name: "{n}", age: 2, city: "{n}" }}' for n in NAMES))
    seen = {}
    for statement in program:
        try:
            graphs.run(graph, statement)
        except omnigraph.OmnigraphError:
            continue  # an end that was deleted
        seen[graph.commits.head().id] = answers(graph)
    for commit, expected in reversed(seen.items()):
        assert answers(graph, at=commit) == expected
    query._caches = None
    graph.session.keys.forget(graph.session.root.identity)
    with graphs.reopen(graph) as again:
        for commit, expected in seen.items():
            assert answers(again, at=commit) == expected
    graph.close()


def test_unique_probe_io_flat_in_delta(tmp_path):
    """Scenario 177."""
    schema = "node Person { name: String @key  nick: String? @unique }"
    with graphs.make_graph(tmp_path / "g", schema) as graph:
        graphs.run(graph, 'insert Person { name: "zero", nick: "zero" }')

        def scans(first, count):
            rows = " ".join(
                f'insert Person {{ name: "p{n}", nick: "n{n}" }}' for n in range(first, first + count)
            )
            with graphs.hear() as heard:
                graphs.run(graph, rows)
            return Counter(call.kind for call in heard.of(StorageCall))["scan"]

        scans(0, 4)
        assert scans(100, 4) == scans(200, 64) > 0
        with pytest.raises(ConstraintViolation, match="'n263' is held by 'other' and 'p263'"):
            graphs.run(graph, 'insert Person { name: "other", nick: "n263" }')
