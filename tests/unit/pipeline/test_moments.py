"""A text of a date and time means the same in a mutation and in a load."""

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omnigraph.catalog.scalars import Misfit, parse_datetime
from omnigraph.catalog.types import ScalarKind
from omnigraph.pipeline.input.convert import scalar_values

NOON = dt.datetime(2024, 3, 1, 12, tzinfo=dt.UTC)

PARTS = st.tuples(
    st.sampled_from(["2024-03-01", "0001-01-01", "9999-12-31", "0000-01-01", "2024-02-30", "24-03-01"]),
    st.sampled_from(["T", "t", " ", "", "  "]),
    st.sampled_from(["13:00", "13:00:00", "23:59:59", "24:00", "13:00:60", "13", "", "1300"]),
    st.sampled_from(["", ".5", ",5", ".1234567891234", ",123456789", ".", ".9999"]),
    st.sampled_from(
        [
            "",
            "Z",
            "z",
            "+01",
            "+0100",
            "+01:00",
            "-01:30",
            "-0000",
            "+24:00",
            "+23:59",
            "+01:60",
            "+1",
            "+010",
            "+99",
        ]
    ),
)


def loaded(texts: list[str]) -> list[dt.datetime | None]:
    """What a load stores; None for what it refuses."""
    stored, bad = scalar_values(pa.array(texts, pa.string()), ScalarKind.DATETIME)
    return [
        None if refused else value for value, refused in zip(stored.to_pylist(), bad.tolist(), strict=True)
    ]


def mutated(text: str) -> dt.datetime | None:
    """What a mutation stores; None for what it refuses."""
    try:
        return parse_datetime(text)
    except Misfit:
        return None


@pytest.mark.parametrize(
    "text",
    [
        "2024-03-01T13:00:00+01",
        "2024-03-01T13:00:00+0100",
        "2024-03-01T13:00+01:00",
        "2024-03-01 07:00:00.000999999999999-0500",
        "2024-03-01t12:00:00,0z",
    ],
)
def test_offsets_and_fractions_of_every_length_are_read(text: str) -> None:
    assert mutated(text) == NOON
    assert loaded([text]) == [NOON]
    assert loaded([text, "2024-03-01T12:00:00Z", "2024-03-01T12:00"]) == [NOON] * 3


@pytest.mark.slow
@given(st.lists(PARTS.map("".join), min_size=1, max_size=8))
@example(["2024-03-01T13:00:00+01", "2024-03-01", "2024-03-01T13:00:00,5"])
def test_a_load_and_a_mutation_read_the_same_moments(texts: list[str]) -> None:
    assert loaded(texts) == [mutated(text) for text in texts]
