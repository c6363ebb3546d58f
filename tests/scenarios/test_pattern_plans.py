"""How patterns are run: the order of their clauses, what explain says of it, and rows that nobody can hold."""

import itertools
import os

import pytest

import omnigraph
from omnigraph.core.errors import ResourceLimit
from omnigraph.core.limits import QUERY_MEMORY_SHARE
from omnigraph.core.settings import Settings

SCHEMA = """
node Country { code: String @key  name: String }
node Person { k: String @key  n: I32 }
edge LivesIn: Person -> Country
edge Knows: Person -> Person
"""
PEOPLE = 300
HUB = 250


@pytest.fixture(scope="module")
def society(tmp_path_factory):
    """Three countries of a hundred people; each knows the next two, and one knows nearly all."""
    lines = [f'insert Country {{ code: "c{n}", name: "C{n}" }}' for n in range(3)]
    for n in range(PEOPLE):
        lines.append(f'insert Person {{ k: "p{n}", n: {n} }}')
        lines.append(f'insert LivesIn {{ from: "p{n}", to: "c{n % 3}" }}')
        lines += [f'insert Knows {{ from: "p{n}", to: "p{(n + step) % PEOPLE}" }}' for step in (1, 2)]
    lines += [f'insert Knows {{ from: "p0", to: "p{n}" }}' for n in range(3, HUB + 1)]
    path = tmp_path_factory.mktemp("society") / "g"
    with omnigraph.init(path, schema=SCHEMA, settings=Settings(durability="os")) as graph:
        graph.mutate("query seed() {" + "\n".join(lines) + "}")
        yield graph


CLAUSES = ("$a livesIn $c", "$b livesIn $c", "$a knows $b")
NODES = "$c: Country $a: Person $b: Person"


@pytest.mark.slow
def test_explain_says_in_which_order_clauses_are_run_and_why(society) -> None:
    """Written country first, every pair of people of a country would be made."""
    text = f"query q() {{ match {{ {NODES} {' '.join(CLAUSES)} }} return {{ $a, $b }} }}"
    plan = society.explain(text)
    assert plan.order.startswith("by cost: about ")
    assert plan.order.endswith(" as written")
    assert f"  clauses {plan.order}" in str(plan).splitlines()
    assert plan.to_dict()["order"] == plan.order
    assert [operator.name for operator in plan.operators] == ["scan", "expand", "intersect", "project"]
    intersect = plan.operators[2]
    assert intersect.detail == "$b beside $a, $c"
    assert [arm.detail for arm in intersect.inner] == ["$a -Knows-> $b", "$c <-LivesIn- $b"]


def test_any_order_of_the_clauses_has_the_same_steps(society) -> None:
    shown = set()
    for clauses in (CLAUSES, CLAUSES[::-1], (CLAUSES[1], CLAUSES[2], CLAUSES[0])):
        text = f"query q() {{ match {{ {NODES} {' '.join(clauses)} }} return {{ count($a) as n }} }}"
        plan = society.explain(text, analyze=True)
        shown.add(tuple(operator.name for operator in plan.operators))
        assert society.query(text)[0] == {"n": society_pairs()}
    assert len(shown) == 1


SHAPES = {
    "triangle": ("$a knows $b", "$b knows $c", "$a knows $c"),
    "square": ("$a knows $b", "$b knows $c", "$c knows $d", "$d knows $a"),
    "chain": ("$a knows $b", "$b knows $c", "$c livesIn $x"),
    "two in one country": ("$a knows $b", "$a livesIn $x", "$b livesIn $x", "$c livesIn $x"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_match_is_run_alike_however_it_is_written(society, shape) -> None:
    """Also where several orders cost the same: what is run then does not follow the text."""
    shown = set()
    for clauses in itertools.permutations(SHAPES[shape]):
        text = f"query q() {{ match {{ {' '.join(clauses)} }} return {{ count($a) as n }} }}"
        plan = society.explain(text)
        shown.add(tuple((operator.name, operator.detail) for operator in plan.operators))
    assert len(shown) == 1


def society_pairs() -> int:
    edges = {(n, (n + step) % PEOPLE) for n in range(PEOPLE) for step in (1, 2)}
    edges |= {(0, n) for n in range(3, HUB + 1)}
    return sum(a % 3 == b % 3 for a, b in edges)


def test_a_query_from_one_key_has_no_choice(society) -> None:
    plan = society.explain('query q() { match { $a: Person { k: "p7" } $a knows $b } return { $b } }')
    assert plan.order == ""
    assert "order" not in plan.to_dict()


def test_analyze_warns_of_an_estimate_that_was_far_off(society) -> None:
    text = 'query q() { match { $a: Person { k: "KEY" } $a knows $b } return { $b.n } }'
    society.query(
        "query q() { match { $a: Person $a knows $b } return { count($b) as n } }"
    )  # the index is made
    busy = society.explain(text.replace("KEY", "p0"), analyze=True)
    expand = next(operator for operator in busy.operators if operator.name == "expand")
    assert expand.warning is not None
    assert expand.warning.endswith("times as many rows as estimated")
    assert f"warning: {expand.warning}" in str(busy)
    quiet = society.explain(text.replace("KEY", "p7"), analyze=True)
    assert "warning" not in str(quiet)


def test_a_pattern_that_returns_too_many_rows_is_refused_and_counted(society) -> None:
    body = "match { $a livesIn $c $b livesIn $c $d livesIn $c } return"
    with omnigraph.open(society.uri, settings=Settings(durability="os", query_memory_bytes=1 << 20)) as small:
        with pytest.raises(ResourceLimit) as refused:
            small.query(f"query q() {{ {body} {{ $a, $b, $d }} }}")
        assert refused.value.details["resource_limit"]["place"].startswith("expand ")
        assert small.query(f"query q() {{ {body} {{ count($a) as n }} }}")[0] == {"n": 3 * 100**3}
        assert len(small.query(f"query q() {{ {body} {{ $a, $b, $d }} limit 5 }}")) == 5


SIX = " ".join(f"$p{n} livesIn $c" for n in range(6))
"""Six people of one country: three times 100 to the sixth rows."""


def test_a_million_million_rows_are_counted_and_never_made(society) -> None:
    with omnigraph.open(society.uri, settings=Settings(durability="os", query_memory_bytes=8 << 20)) as small:
        counted = small.explain(
            f"query q() {{ match {{ {SIX} }} return {{ count($p0) as n }} }}", analyze=True
        )
        assert counted.memory_bytes_max < 1 << 20
        assert small.query(f"query q() {{ match {{ {SIX} }} return {{ count($p0) as n }} }}")[0] == {
            "n": 3 * 100**6
        }
        grouped = f"query q() {{ match {{ {SIX} }} return {{ $c.code, count($p0) as n, sum($p1.n) as s }} }}"
        for row in small.query(grouped):
            first = int(row["c.code"][1:])
            assert row["n"] == 100**6
            assert row["s"] == 100**5 * sum(range(first, PEOPLE, 3))


@pytest.mark.parametrize(
    "shown", ["{ $p0, $p5 }", "{ $p0.n + $p5.n as z } order { z }", "distinct { $p0, $p3, $p5 }"]
)
def test_rows_that_nobody_can_hold_are_refused_and_the_process_lives(society, shown) -> None:
    with omnigraph.open(society.uri, settings=Settings(durability="os", query_memory_bytes=4 << 20)) as small:
        with pytest.raises(ResourceLimit) as refused:
            small.query(f"query q() {{ match {{ {SIX} }} return {shown} }}")
        limit = refused.value.details["resource_limit"]
        assert limit["resource"] == "query_memory_bytes"
        assert limit["place"]
        assert "return `count(...)` or groups instead of rows, add `limit`" in str(refused.value)
        assert refused.value.hint is not None
        assert len(small.query("query q() { match { $p: Person } return { $p } }")) == PEOPLE


def test_friends_of_friends_who_are_no_friends_need_no_memory_for_all_pairs(society) -> None:
    edges = {(n, (n + step) % PEOPLE) for n in range(PEOPLE) for step in (1, 2)}
    edges |= {(0, n) for n in range(3, HUB + 1)}
    expected = sum((a, d) not in edges for a, b in edges for c, d in edges if b == c)
    text = "query q() { match { $a knows $b $b knows $c not { $a knows $c } } return { count($a) as n } }"
    with omnigraph.open(society.uri, settings=Settings(durability="os", query_memory_bytes=24_000)) as small:
        assert small.query(text)[0] == {"n": expected}
        assert expected * 3 * 8 > 24_000


def test_the_memory_of_a_query_is_a_share_of_the_machine() -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert Settings().query_memory_bytes == int(memory * QUERY_MEMORY_SHARE)
