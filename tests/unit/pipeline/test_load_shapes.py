"""The outcome of a load does not depend on how it is cut: every load case again, in other shapes."""

from types import FunctionType

import pytest

import cases.load_steps  # noqa: F401 - registers the verbs
from cases.runner import CASES_DIR, Case, read_cases, run_case
from omnigraph.pipeline.checks import exchange, probe, verify
from omnigraph.pipeline.input import sources
from omnigraph.pipeline.load import run as loading
from omnigraph.pipeline.load import stage_split

pytestmark = pytest.mark.slow

CASES = [case for file in sorted((CASES_DIR / "load").glob("*.case")) for case in read_cases(file)]
SMALL = [case for case in CASES if case.label != "L34"]
SHAPES = {
    "every key looked up": [(probe, "PROBED_ROWS_MIN", 0)],
    "every key asked of the table": [
        (probe, "PROBED_ROWS_MIN", 0),
        (probe.KeyIndexes, "of", lambda *_: None),
    ],
    "ids looked up, the rest scanned": [
        (probe, "PROBED_ROWS_MIN", 0),
        (probe, "PROBED_KEYS_MAX", 0),
        (probe, "ROWS_PER_FOUND_ID", 0),
    ],
    "many partitions": [(loading, "PARTITION_BYTES", 40), (loading, "PARTITION_ROWS", 1)],
    "many splits": [(sources.plan_splits, "split_bytes", 90), (sources.read_chunks, "chunk_bytes", 50)],
    "many flushes": [
        (stage_split, "STAGED_BYTES_MAX", 1),
        (exchange, "FACTS_BYTES_MAX", 1),
        (verify, "SCAN_ROWS", 1),
    ],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_case_in_shape(case: Case, shape: str, monkeypatch) -> None:
    for where, name, value in SHAPES[shape]:
        if isinstance(where, FunctionType):
            monkeypatch.setitem(where.__kwdefaults__ or {}, name, value)
            if where.__defaults__ is not None:
                monkeypatch.setattr(where, "__defaults__", (value,))
        else:
            monkeypatch.setattr(where, name, value)
    run_case(case)
