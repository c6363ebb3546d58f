from cases.runner import all_cases, conformance_labels, waiting


def pytest_terminal_summary(terminalreporter) -> None:
    """Says how many cases there are and which conformance cases wait."""
    if not any("tests/cases/" in r.nodeid for r in terminalreporter.stats.get("passed", ())):
        return
    cases = all_cases()
    numbered = {case.label for case in cases} & conformance_labels()
    wait = sorted(waiting())
    terminalreporter.write_line(
        f"case files: {len(cases)} cases, {len(numbered)} of {len(conformance_labels())} conformance cases run; "
        f"waiting: {', '.join(wait) or 'none'}"
    )
