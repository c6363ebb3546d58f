"""Plans between generated schemas: identities are never reused, and what was applied is not planned again."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.catalog.build import compile_schema
from omnigraph.catalog.diff import plan_schema
from omnigraph.catalog.ir import from_json, schema_hash, shape_hash, to_json
from omnigraph.catalog.schema import Catalog

unhurried = settings(deadline=None, max_examples=100)

TYPES = [
    "String",
    "String?",
    "I32",
    "I64?",
    "F64?",
    "Date",
    "[I32]?",
    "Vector(2)?",
    "enum(a, b)",
    "enum(a, b, c)",
]
INDEXABLE = ["String", "String?", "I32", "I64?", "F64?", "Date", "enum(a, b)"]


@st.composite
def members(draw, *, key: bool):
    """The members of one body: distinct properties with constraints they can carry."""
    lines = []
    for name in draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=4)):
        type_ = draw(st.sampled_from(TYPES))
        marks = ""
        if type_ in INDEXABLE:
            marks = draw(st.sampled_from(["", "", " @index", " @unique", ' @description("d")']))
        lines.append(f"{name}: {type_}{marks}")
    if key:
        lines.append("key: String @key")
    return lines


@st.composite
def programs(draw):
    """A valid schema as a list of declarations, each a header and members."""
    nodes = draw(st.lists(st.sampled_from(["A", "B", "C"]), unique=True, min_size=1, max_size=3))
    declared = [(f"node {name}", draw(members(key=draw(st.booleans())))) for name in nodes]
    for name in draw(st.lists(st.sampled_from(["Knows", "Owns"]), unique=True, max_size=2)):
        ends = f"{draw(st.sampled_from(nodes))} -> {draw(st.sampled_from(nodes))}"
        card = draw(st.sampled_from(["", "", " @card(0..2)"]))
        declared.append((f"edge {name}: {ends}{card}", draw(members(key=False))))
    return declared


def text_of(program, *, shuffle: int | None = None) -> str:
    order = list(program)
    if shuffle is not None:
        source = random.Random(shuffle)
        source.shuffle(order)
        order = [(header, source.sample(lines, len(lines))) for header, lines in order]
    return "\n".join(f"{header} {{ {'  '.join(lines)} }} // {shuffle}" for header, lines in order)


def numbers_of(catalog: Catalog) -> dict[int, tuple[str, ...]]:
    """Every number in use and what it stands for; fails when one is used twice."""
    found: dict[int, tuple[str, ...]] = {}
    for type_ in (*catalog.interfaces.values(), *catalog.tables()):
        entries = [(type_.type_id, ("type", type_.kind)), (type_.incarnation_id, ("table", type_.kind))]
        entries += [(p.property_id, ("property", str(type_.type_id))) for p in type_.properties]
        for number, meaning in entries:
            assert number not in found
            assert 0 < number < catalog.next_id
            found[number] = meaning
    return found


@unhurried
@given(programs(), st.integers())
@pytest.mark.slow
def test_the_order_of_a_text_means_nothing(program, shuffle):
    catalog = compile_schema(text_of(program))
    plan = plan_schema(catalog, text_of(program, shuffle=shuffle))
    assert plan.is_empty
    assert schema_hash(plan.desired) == schema_hash(catalog)


@unhurried
@given(programs(), programs())
@pytest.mark.slow
def test_what_was_applied_is_not_planned_again(before, after):
    accepted = compile_schema(text_of(before))
    plan = plan_schema(accepted, text_of(after))
    assert plan_schema(plan.desired, text_of(after)).is_empty
    assert plan.is_empty == (schema_hash(plan.desired) == schema_hash(accepted))
    assert shape_hash(plan.desired) == shape_hash(compile_schema(text_of(after)))
    assert from_json(to_json(plan.desired)) == plan.desired


@unhurried
@given(st.lists(programs(), min_size=2, max_size=5))
@pytest.mark.slow
def test_numbers_are_never_reused(history):
    catalog = compile_schema(text_of(history[0]))
    retired: set[int] = set()
    for program in history[1:]:
        before = numbers_of(catalog)
        desired = plan_schema(catalog, text_of(program)).desired
        after = numbers_of(desired)
        assert desired.next_id >= catalog.next_id
        assert retired.isdisjoint(after)
        for number in before.keys() & after.keys():
            assert before[number] == after[number]
        assert all(number >= catalog.next_id for number in after.keys() - before.keys())
        retired |= before.keys() - after.keys()
        catalog = desired


@unhurried
@given(programs(), programs())
@pytest.mark.slow
def test_a_supported_plan_loses_only_what_it_says(before, after):
    accepted = compile_schema(text_of(before))
    plan = plan_schema(accepted, text_of(after))
    gone = set(accepted.table_keys()) - set(plan.desired.table_keys())
    dropped = {f"{s.type_kind.value}:{s.name}" for s in plan.steps if s.kind == "drop_type"}
    assert gone == dropped
    if plan.supported:
        columns = {(s.type_name, s.property_name) for s in plan.steps if s.kind == "drop_property"}
        for key in set(accepted.table_keys()) & set(plan.desired.table_keys()):
            old, new = accepted.type_of(key), plan.desired.type_of(key)
            lost = {p.name for p in old.properties} - {p.name for p in new.properties}
            assert {(old.name, name) for name in lost} == {c for c in columns if c[0] == old.name}
            if old.key != new.key:
                said = {str(s.constraint) for s in plan.steps if s.kind.endswith("_constraint")}
                assert any("key" in each for each in said)
