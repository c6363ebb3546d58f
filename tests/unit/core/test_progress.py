"""Steps counted from many threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from omnigraph.core.events import Progress, listen
from omnigraph.core.progress import Steps


def test_what_is_done_only_grows_and_ends_at_the_total() -> None:
    heard: list[Progress] = []
    with listen(heard.append, everywhere=True), ThreadPoolExecutor(8) as pool:
        steps = Steps("load", "stage", 500, "tasks")
        list(pool.map(steps.counting(str), range(500)))
    assert [event.done for event in heard] == list(range(501))
    assert {(event.operation, event.stage, event.total, event.unit) for event in heard} == {
        ("load", "stage", 500, "tasks")
    }


def test_a_step_that_fails_is_not_done() -> None:
    heard: list[Progress] = []
    with listen(heard.append):
        counted = Steps("load", "stage", 2, "tasks").counting(int)
        assert counted("1") == 1
        with pytest.raises(ValueError, match="one"):
            counted("one")
    assert [event.done for event in heard] == [0, 1]
