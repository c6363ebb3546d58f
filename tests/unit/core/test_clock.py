import time

from omnigraph.core import clock
from omnigraph.core.clock import SystemClock


def test_the_clock_counts_microseconds_since_the_epoch() -> None:
    before = time.time_ns()
    now = SystemClock().now_us()
    assert before // 1_000 <= now <= time.time_ns() // 1_000


def test_a_run_of_the_machine_has_one_name_and_may_have_none(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(clock, "_BOOT_ID", tmp_path / "boot_id")
    clock.boot_id.cache_clear()
    try:
        assert clock.boot_id() is None
        (tmp_path / "boot_id").write_text("6f1c\n")
        clock.boot_id.cache_clear()
        assert clock.boot_id() == "6f1c"
    finally:
        clock.boot_id.cache_clear()
