"""Scenarios that hold in process hold over a server: the same tests, with every graph behind one (`tests/served.py`).

A few files in the ordinary run, all of them in the long one.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SHOWN = {"test_history.py", "test_restore.py"}
NOT_HERE = {
    "test_idempotency.py": ("test_a_key_with_another_request_is_refused",),
}
"""By file, the tests that look at what is not there over a server: a failure that came over it has a request id."""
IN_PROCESS = "not torture and not crash and not spark and not model"


def files() -> list[object]:
    found = sorted(each.name for each in (TESTS / "scenarios").glob("test_*.py"))
    return [
        pytest.param(name, marks=[pytest.mark.slow] if name in SHOWN else [pytest.mark.torture])
        for name in found
    ]


@pytest.mark.parametrize("name", files())
def test_scenarios_hold_over_a_server(name: str, tmp_path: Path) -> None:
    left_out = [f"--deselect=tests/scenarios/{name}::{each}" for each in NOT_HERE.get(name, ())]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "served",
            "-p",
            "no:xdist",
            f"--basetemp={tmp_path / 'base'}",
            "-m",
            IN_PROCESS,
            f"tests/scenarios/{name}",
            *left_out,
        ],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 5}, done.stdout[-4_000:]
    if name in SHOWN:
        went = re.search(r"(\d+) calls went over the server", done.stdout)
        assert went is not None
        assert int(went[1]) > 30
