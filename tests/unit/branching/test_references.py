"""Moments as bounds of the history: exact for every millisecond."""

import datetime as dt

from hypothesis import example, given
from hypothesis import strategies as st

from omnigraph.branching.references import last_us_of

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MILLISECONDS = st.integers(-62_135_596_800_000, 253_402_300_799_999)


@given(MILLISECONDS)
@example(541_731_257_864)  # as a number of seconds it is a little less
@example(1_086_663_121_643)
@example(-1)
def test_a_moment_reaches_to_the_end_of_its_millisecond_and_no_further(number):
    moment = EPOCH + dt.timedelta(milliseconds=number)
    assert last_us_of(moment) == number * 1000 + 999


def test_a_moment_of_another_zone_is_the_same_moment():
    moment = EPOCH + dt.timedelta(milliseconds=541_731_257_864)
    elsewhere = moment.astimezone(dt.timezone(dt.timedelta(hours=5, minutes=30)))
    assert last_us_of(elsewhere) == last_us_of(moment)
