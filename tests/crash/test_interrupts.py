"""A process in which threads write goes on writing, whenever and however often its main thread is interrupted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).parent / "interrupt_child.py"


def after_interrupts(uri, interrupts, seed, wait_s):
    done = subprocess.run(
        [sys.executable, str(CHILD), str(uri), str(interrupts), str(seed)],
        capture_output=True,
        text=True,
        timeout=wait_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def check(report):
    assert report["errors"] == []
    assert report["stuck"] == []
    assert report["can_write"] == [True] * 4
    assert (report["lost"], report["invented"], report["violations"]) == ([], [], [])
    assert report["nodes"] == report["edges"], "a write is there whole or not at all"
    assert report["acknowledged"] >= 4


@pytest.mark.crash
def test_interrupts_at_any_instant_leave_every_thread_writing(tmp_path):
    check(after_interrupts(tmp_path / "g.omni", 60, seed=1, wait_s=280))


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_two_thousand_interrupts_leave_every_thread_writing(tmp_path):
    for seed in range(4):
        report = after_interrupts(tmp_path / f"g{seed}.omni", 500, seed=seed, wait_s=420)
        print({name: report[name] for name in ("acknowledged", "lost", "reopened", "errors")})
        check(report)
