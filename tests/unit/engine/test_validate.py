"""The validator against rules written out one row at a time."""

import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.catalog.build import compile_schema
from omnigraph.core.errors import ConstraintViolation
from omnigraph.core.ids import TableKey
from omnigraph.core.limits import VIOLATIONS_REPORTED_MAX
from omnigraph.engine.write.rows import pending_schema
from omnigraph.engine.write.validate import TableChange, validate
from omnigraph.engine.write.values import value_findings

CATALOG = compile_schema(
    """
node Person { name: String @key  nick: String?  year: I32?  @unique(nick, year) }
edge Knows: Person -> Person @card(1..2) { @unique(src, dst) }
"""
)
PERSON, KNOWS = CATALOG.nodes["Person"], CATALOG.edges["Knows"]


class Committed:
    """A committed state in dictionaries, counting how often it is asked."""

    def __init__(self, persons: dict, edges: dict) -> None:
        self.persons, self.edges = persons, edges
        self.reads = 0

    def existing(self, table_key, ids):
        self.reads += 1
        held = self.persons if table_key == "node:Person" else self.edges
        return np.array([each in held for each in ids.to_pylist()], np.bool_)

    def read(self, table_key, columns, filter_text):
        self.reads += 1
        if table_key == "node:Person":
            return people(self.persons).select(list(columns))
        return edges(self.edges).select(list(columns))


def people(rows: dict) -> pa.Table:
    return pa.Table.from_pylist(
        [{"id": k, "name": k, "nick": n, "year": y} for k, (n, y) in rows.items()],
        schema=pending_schema(PERSON),
    )


def edges(rows: dict) -> pa.Table:
    return pa.Table.from_pylist(
        [{"id": k, "src": s, "dst": d} for k, (s, d) in rows.items()], schema=pending_schema(KNOWS)
    )


def strings(values) -> pa.StringArray:
    return pa.array(sorted(values), pa.string())


names = st.sampled_from("abcd")
people_rows = st.dictionaries(
    names,
    st.tuples(
        st.one_of(st.none(), st.sampled_from(["x", "y", ""])), st.one_of(st.none(), st.sampled_from([1, 11]))
    ),
)
edge_rows = st.dictionaries(st.sampled_from(["e1", "e2", "e3", "e4"]), st.tuples(names, names), max_size=4)


def rules(persons: dict, links: dict, touched: set, changed_people: set, changed_edges: set) -> set[str]:
    """What the whole state breaks, as far as the change is concerned."""
    broken = set()
    for number, row in persons.items():
        twins = [k for k, other in persons.items() if k != number and other == row]
        if None not in row and twins and (number in changed_people or set(twins) & changed_people):
            broken.add("unique")
    for number, pair in links.items():
        twins = [k for k, other in links.items() if k != number and other == pair]
        if twins and (number in changed_edges or set(twins) & changed_edges):
            broken.add("unique")
    if any(s not in persons or d not in persons for k, (s, d) in links.items() if k in changed_edges):
        broken.add("endpoint")
    counts = Counter(s for s, _ in links.values())
    if any(not 1 <= counts[s] <= 2 for s in touched):
        broken.add("cardinality")
    return broken


@settings(max_examples=400, deadline=None)
@given(people_rows, edge_rows, people_rows, edge_rows)
@pytest.mark.slow
def test_upserts_break_what_the_model_says(old_people, old_edges, new_people, new_edges) -> None:
    committed = Committed(old_people, old_edges)
    former = [old_edges[k][0] for k in new_edges if k in old_edges]
    changes = {
        TableKey("node:Person"): TableChange(PERSON, people(new_people), strings([])),
        TableKey("edge:Knows"): TableChange(KNOWS, edges(new_edges), strings([]), strings(former)),
    }
    touched = {s for s, _ in new_edges.values()} | set(former)
    expected = rules(
        {**old_people, **new_people}, {**old_edges, **new_edges}, touched, set(new_people), set(new_edges)
    )
    assert found_by(changes, committed) == expected


@settings(max_examples=300, deadline=None)
@given(people_rows, edge_rows, st.sets(names), st.sets(st.sampled_from(["e1", "e2", "e3", "e4"])))
@pytest.mark.slow
def test_removals_break_what_the_model_says(old_people, old_edges, gone, gone_edges) -> None:
    gone &= set(old_people)
    # As a mutation does it: edges of a removed node go with it.
    gone_edges = {k for k, (s, d) in old_edges.items() if k in gone_edges or s in gone or d in gone}
    committed = Committed(old_people, old_edges)
    former = {old_edges[k][0] for k in gone_edges}
    changes = {
        TableKey("node:Person"): TableChange(PERSON, people({}), strings(gone)),
        TableKey("edge:Knows"): TableChange(KNOWS, edges({}), strings(gone_edges), strings(former)),
    }
    left = {k: v for k, v in old_edges.items() if k not in gone_edges}
    counts = Counter(s for s, _ in left.values())
    expected = {"cardinality"} if any(not 1 <= counts[s] <= 2 for s in former - gone) else set()
    assert found_by(changes, committed) == expected


def found_by(changes, committed) -> set[str]:
    try:
        validate(CATALOG, changes, committed)
    except ConstraintViolation as broken:
        return {violation.rule for violation in broken.violations}
    return set()


@pytest.mark.parametrize("rows", [4, 64, 3000])
def test_the_committed_side_is_asked_a_fixed_number_of_times(rows: int) -> None:
    committed = Committed({}, {})
    new = {f"p{n}": (f"n{n}", n) for n in range(rows)}
    links = {f"e{n}": (f"p{n}", "p0") for n in range(rows)}
    validate(
        CATALOG,
        {
            TableKey("node:Person"): TableChange(PERSON, people(new), strings([])),
            TableKey("edge:Knows"): TableChange(KNOWS, edges(links), strings([])),
        },
        committed,
    )
    # Two unique groups and one cardinality; every endpoint is pending.
    assert committed.reads == 3


def test_violations_are_capped_and_counted() -> None:
    rows = VIOLATIONS_REPORTED_MAX * 3
    links = {f"e{n}": (f"p{n}", "nobody") for n in range(rows)}
    with pytest.raises(ConstraintViolation) as caught:
        validate(
            CATALOG,
            {TableKey("edge:Knows"): TableChange(KNOWS, edges(links), strings([]))},
            Committed({}, {}),
        )
    assert len(caught.value.violations) == VIOLATIONS_REPORTED_MAX
    assert caught.value.total == rows * 2


BOUNDS = compile_schema(
    "node N { k: String @key  i: I64?  u: U64?  f: F32?  @range(i, -9007199254740993..9007199254740993)"
    "  @range(u, 9223372036854775809..)  @range(f, ..0.5) }"
).nodes["N"]


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
    st.one_of(st.none(), st.integers(0, 2**64 - 1)),
    st.one_of(st.none(), st.floats(width=32)),
)
def test_ranges_are_exact(i, u, f) -> None:
    table = pa.Table.from_pylist(
        [{"id": "k", "k": "k", "i": i, "u": u, "f": f}], schema=pending_schema(BOUNDS)
    )
    broken = {finding.property for finding in value_findings(table, BOUNDS)}
    expected = set()
    if i is not None and not -(2**53) - 1 <= i <= 2**53 + 1:
        expected.add("i")
    if u is not None and u < 2**63 + 1:
        expected.add("u")
    if f is not None and (math.isnan(f) or f > 0.5):
        expected.add("f")
    assert broken == expected
    for finding in value_findings(table, BOUNDS):
        assert finding.describe(0)
