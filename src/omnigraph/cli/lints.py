"""The lint report: what is checked, and how the findings are shown."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from omnigraph.catalog.build import check_schema
from omnigraph.catalog.schema import Catalog
from omnigraph.cli import output
from omnigraph.cli.sources import read_bytes, shown
from omnigraph.core.late_dataclass import dataclass
from omnigraph.language.diagnostics import Diagnostic, Severity, render, sentence
from omnigraph.language.lexer import decode
from omnigraph.language.query_syntax import SYNTAX_CODE
from omnigraph.planning.lint import Finding, LintReport, lint_sources

if TYPE_CHECKING:
    from omnigraph.language.source import Source


@dataclass(frozen=True, slots=True)
class Linted:
    """One run: where the schema is from, what was found in its text, and what in the queries."""

    schema_source: dict[str, str]
    schema_findings: tuple[Diagnostic, ...]
    paths: tuple[str, ...]
    report: LintReport

    @property
    def errors(self) -> int:
        """Errors in the schema and in the queries."""
        return self._count(Severity.ERROR) + self.report.errors

    @property
    def warnings(self) -> int:
        """Warnings about the schema and about the queries."""
        return self._count(Severity.WARNING) + self.report.warnings

    def _count(self, severity: Severity) -> int:
        return sum(found.severity is severity for found in self.schema_findings)


def lint_schema(path: str) -> tuple[Catalog | None, tuple[Diagnostic, ...]]:
    """The catalog of a schema file, unless it has errors, and everything that was found."""
    catalog, findings = check_schema(read_bytes(path), file=shown(path))
    return catalog, tuple(findings)


def lint_files(paths: Sequence[str], catalog: Catalog) -> LintReport:
    """Every query of the files, together."""
    sources: list[Source] = []
    unreadable: list[Finding] = []
    for path in paths:
        source = decode(read_bytes(path), shown(path))
        if isinstance(source, Diagnostic):
            unreadable.append(Finding(Severity.ERROR, SYNTAX_CODE, sentence(source), (), diagnostic=source))
        else:
            sources.append(source)
    report = lint_sources(sources, catalog)
    return LintReport(report.results, (*unreadable, *report.findings))


def show_text(linted: Linted) -> None:
    """Every finding with its place, those about several queries after them, then the counts."""
    for found in (*linted.schema_findings, *linted.report.diagnostics()):
        output.line(f"{found.severity.value}: {render(found)}")
    for finding in linted.report.findings:
        if finding.diagnostic is None:
            output.line(f"{finding.severity.value}: {finding.code}  {finding.message}".replace("  ", " ", 1))
    counts = [output.counted(linted.errors, "error"), output.counted(linted.warnings, "warning")]
    looked = output.counted(len(linted.report.results), "query", "queries")
    output.line(f"{', '.join(counts)} in {looked}" if linted.paths else ", ".join(counts))


def to_json(linted: Linted) -> dict[str, Any]:
    """The report as one document: `query_path` for one query file, else `query_paths`."""
    report = linted.report.to_dict()
    findings = [found.to_dict() for found in linted.schema_findings]
    where: dict[str, Any] = (
        {"query_path": linted.paths[0]} if len(linted.paths) == 1 else {"query_paths": list(linted.paths)}
    )
    results = [
        result if len(linted.paths) == 1 else {"file": each.file, **result}
        for each, result in zip(linted.report.results, report["results"], strict=True)
    ]
    return {
        "status": "error" if linted.errors else "ok",
        "schema_source": linted.schema_source,
        **where,
        "queries_processed": report["queries_processed"],
        "errors": linted.errors,
        "warnings": linted.warnings,
        "infos": report["infos"],
        "results": results,
        "findings": [*findings, *report["findings"]],
    }
