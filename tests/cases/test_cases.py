"""Runs every case file; language behaviour is pinned there, not here."""

from collections import Counter

import pytest

from cases import (  # noqa: F401 - each registers its verbs
    load_steps,
    merge_steps,
    mutation_steps,
    query_steps,
    read_steps,
    schema_steps,
)
from cases.runner import Case, all_cases, conformance_labels, run_case, waiting

CASES = all_cases()


LONG = {"L34"}
"""Labels of cases that move enough rows to take seconds."""


def _param(case: Case):
    return pytest.param(case, id=case.id, marks=(pytest.mark.slow,) if case.label in LONG else ())


@pytest.mark.parametrize("case", [_param(case) for case in CASES])
def test_case(case: Case) -> None:
    run_case(case)


def test_labels_are_used_once_in_a_directory() -> None:
    # A conformance case may be run twice: by the check of the language and over data.
    labels = [(case.file.parent.name, case.label) for case in CASES]
    assert [label for label, times in Counter(labels).items() if times > 1] == []


def test_every_conformance_case_is_run_or_waiting() -> None:
    run = {case.label for case in CASES} & conformance_labels()
    wait = set(waiting())
    assert run & wait == set(), "listed as waiting, yet there is a case"
    assert run | wait == conformance_labels()
