"""Short arrays are what Arrow itself would make."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.arrays.few import FEW_VALUES_MAX, few_array

BOUNDS = {
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.uint32(): (0, 2**32 - 1),
    pa.int64(): (-(2**63), 2**63 - 1),
    pa.uint64(): (0, 2**64 - 1),
}
VALUES = {
    **{kind: st.integers(*bounds) for kind, bounds in BOUNDS.items()},
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=8),
    pa.bool_(): st.booleans(),
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
@given(data=st.data())
@pytest.mark.slow
def test_a_short_array_is_what_arrow_makes(kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(VALUES[kind] | st.none(), max_size=FEW_VALUES_MAX + 2))
    for given_values in (values, [each for each in values if each is not None]):
        made = few_array(given_values, kind)
        made.validate(full=True)
        assert made.equals(pa.array(given_values, kind))
        assert made.type == kind


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        few_array([2**31], pa.int32())
