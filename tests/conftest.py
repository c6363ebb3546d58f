import gc
import signal
from collections.abc import Generator
from itertools import groupby

import pytest
from hypothesis import settings

from cases.runner import all_cases, conformance_labels, waiting

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts something in the background lets it ignore Ctrl-C, and every process below it too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects without collecting garbage: what modules and tests make here stays, and is not looked at again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


SHARED = ("spark", "s3")
"""What the first test of a process starts for all that follow, and takes seconds to start."""
LONG = ("crash", "model", "slow", "torture")


def _marked(item: pytest.Item, names: tuple[str, ...]) -> bool:
    return any(item.get_closest_marker(name) for name in names)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Orders the tests of several workers, each of which begins with a part of this list and takes from the ends.

    What shares a JVM or a server comes first, so that one worker starts it. Every part begins with its long
    tests: none is left for the end, when the other workers have nothing to do.
    """
    count = getattr(config, "workerinput", {}).get("workercount", 1)
    if count == 1:
        return
    shared = [item for item in items if _marked(item, SHARED)]
    # A page may give Spark a session of its own, and whoever comes after it in the process gets that one.
    shared.sort(key=lambda item: (not _marked(item, SHARED[:1]), item.path.parent.name != "spark"))
    long: list[list[pytest.Item]] = [shared, *([] for _ in range(count - 1))]
    short: list[list[pytest.Item]] = [[] for _ in range(count)]
    others = [item for item in items if not _marked(item, SHARED)]
    for _, module in groupby(others, lambda item: item.path):
        parted = {True: [], False: []}
        for item in module:
            parted[_marked(item, LONG)].append(item)
        min(long, key=len).extend(parted[True])
        min(short, key=len).extend(parted[False])
    items[:] = [item for piece in zip(long, short, strict=True) for part in piece for item in part]


def pytest_terminal_summary(terminalreporter) -> None:
    """Says what this machine could not run, how many case files' cases ran and which conformance cases wait."""
    for report in terminalreporter.stats.get("passed", ()):
        for reason in (value for name, value in report.user_properties if name == "not_run"):
            terminalreporter.write_line(f"not run here: {report.nodeid}: {reason}")
    outcomes = [r for name in ("passed", "failed") for r in terminalreporter.stats.get(name, ())]
    ran = sum("test_cases.py::test_case[" in report.nodeid for report in outcomes)
    if not ran:
        return
    cases = all_cases()
    numbered = {case.label for case in cases} & conformance_labels()
    terminalreporter.write_line(
        f"cases: {ran} of {len(cases)} ran; {len(numbered)} of {len(conformance_labels())} conformance cases have "
        f"one; waiting: {', '.join(sorted(waiting())) or 'none'}"
    )
