"""Every load case again, on Spark: the engines must agree case by case."""

import pytest

from cases import load_steps
from cases.runner import CASES_DIR, Case, read_cases, run_case

CASES = [case for file in sorted((CASES_DIR / "load").glob("*.case")) for case in read_cases(file)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case_on_spark(case: Case, runtime, monkeypatch) -> None:
    monkeypatch.setattr(load_steps, "ENGINE", ["spark"])
    run_case(case)


def test_every_load_conformance_case_is_there() -> None:
    labels = {case.label for case in CASES}
    not_run = {"L47"}  # lenient import, which is not built
    assert {f"L{number:02d}" for number in range(1, 49)} - not_run <= labels
