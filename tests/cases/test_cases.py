"""Runs every case file; language behaviour is pinned there, not here."""

import pytest

from cases import load_steps, mutation_steps, read_steps, schema_steps  # noqa: F401 - each registers its verbs
from cases.runner import Case, all_cases, conformance_labels, run_case, waiting

CASES = all_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(case: Case) -> None:
    run_case(case)


def test_labels_are_used_once() -> None:
    labels = [case.label for case in CASES]
    assert sorted(labels) == sorted(set(labels))


def test_every_conformance_case_is_run_or_waiting() -> None:
    run = {case.label for case in CASES} & conformance_labels()
    wait = set(waiting())
    assert run & wait == set(), "listed as waiting, yet there is a case"
    assert run | wait == conformance_labels()
