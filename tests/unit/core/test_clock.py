import time

from omnigraph.core.clock import SystemClock


def test_the_clock_counts_microseconds_since_the_epoch() -> None:
    before = time.time_ns()
    now = SystemClock().now_us()
    assert before // 1_000 <= now <= time.time_ns() // 1_000
