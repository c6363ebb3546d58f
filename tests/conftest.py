import gc
import signal
from collections.abc import Generator

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
