"""Binding made once for a plan gives what binding gives, errors included."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.catalog.build import compile_schema
from omnigraph.core.errors import OmnigraphError
from omnigraph.planning.compile import as_read, compile_query
from omnigraph.planning.params import bind_params, binder

CATALOG = compile_schema(
    "node P { k: String @key  n: I32?  big: U64?  f: F64?  s: F32?  b: Bool?  d: Date? }"
)
DECLARED = ["$t: String", "$n: I32", "$u: U64", "$f: F64", "$b: Bool", "$o: String?", "$d: Date", "$s: F32"]
BODY = 'match { $p: P { k: "x" } } return { $p }'
PLANS = [
    as_read(compile_query(f"query q({', '.join(DECLARED[begin:end])}) {{ {BODY} }}", CATALOG))
    for begin, end in [(0, 0), (0, 1), (0, 5), (1, 3), (0, 6), (0, 8), (7, 8)]
]
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**33), 2**65),
    st.floats(),
    st.sampled_from(["", "abc", "ä", "\ud800", "12", "2026-01-02", ["x"], math.inf]),
)


def outcome(bind, given_params):
    try:
        return dict(bind(given_params))
    except OmnigraphError as error:
        return error.kind, str(error)


@pytest.mark.slow
@given(st.sampled_from(PLANS), st.data())
def test_bound_once_or_each_time_is_the_same(plan, data):
    names = [param.name for param in plan.params] + ["unknown"]
    given_params = data.draw(st.one_of(st.none(), st.dictionaries(st.sampled_from(names), values)))
    expected = outcome(lambda params: bind_params(plan, params), given_params)
    assert outcome(binder(plan), given_params) == expected


def test_what_is_bound_does_not_follow_the_callers_dictionary() -> None:
    params = {"t": "x"}
    bound = binder(PLANS[1])(params)
    params["t"] = "y"
    assert bound == {"t": "x"}


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: str(len(plan.params)))
def test_nothing_given_is_refused_unless_nothing_is_declared(plan) -> None:
    assert isinstance(outcome(binder(plan), {}), dict) == (len(plan.params) == 0)
