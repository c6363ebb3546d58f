"""The lint report: what is checked, and how the findings are shown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from omnigraph.catalog.build import check_schema
from omnigraph.catalog.schema import Catalog
from omnigraph.cli import output
from omnigraph.cli.sources import read_bytes, shown
from omnigraph.language.diagnostics import Diagnostic, Severity, render, sentence
from omnigraph.language.lexer import decode
from omnigraph.language.query_syntax import SYNTAX_CODE, parse_source
from omnigraph.language.query_tree import MutationBody
from omnigraph.planning.check import CheckedQuery, check_query


@dataclass(frozen=True, slots=True)
class LintedFile:
    """The findings about one file, in source order; the queries of a query file that parsed."""

    path: str
    diagnostics: tuple[Diagnostic, ...]
    queries: tuple[CheckedQuery, ...] = ()

    def count(self, severity: Severity) -> int:
        """How many findings are of this severity."""
        return sum(found.severity is severity for found in self.diagnostics)


def lint_schema(path: str) -> tuple[Catalog | None, LintedFile]:
    """The catalog of a schema file, when it has one, and what was found."""
    catalog, findings = check_schema(read_bytes(path), file=shown(path))
    return catalog, LintedFile(shown(path), tuple(findings))


def lint_queries(path: str, catalog: Catalog) -> LintedFile:
    """Every query of a file against a catalog."""
    source = decode(read_bytes(path), shown(path))
    if isinstance(source, Diagnostic):
        return LintedFile(shown(path), (source,))
    parsed = parse_source(source)
    checked = tuple(check_query(query, catalog, source) for query in parsed.queries)
    findings = [*parsed.diagnostics, *(found for each in checked for found in each.diagnostics)]
    findings.sort(key=lambda found: found.span.start)
    return LintedFile(shown(path), tuple(findings), checked)


def show_text(files: Sequence[LintedFile]) -> None:
    """Every finding with its place, then the counts."""
    for file in files:
        for found in file.diagnostics:
            output.line(f"{found.severity.value}: {render(found)}")
    errors, warnings = totals(files)
    queries = sum(len(file.queries) for file in files)
    looked = f"{output.counted(len(files), 'file')}, {output.counted(queries, 'query', 'queries')}"
    output.line(f"{output.counted(errors, 'error')}, {output.counted(warnings, 'warning')} in {looked}")


def totals(files: Iterable[LintedFile]) -> tuple[int, int]:
    """Errors and warnings of all files."""
    seen = list(files)
    return sum(f.count(Severity.ERROR) for f in seen), sum(f.count(Severity.WARNING) for f in seen)


def to_json(schema_source: dict[str, str], files: Sequence[LintedFile]) -> dict[str, Any]:
    """The report as one document; several query files are listed under `files`."""
    errors, warnings = totals(files)
    counts = {
        "status": "error" if errors else "ok",
        "schema_source": schema_source,
        "queries_processed": sum(len(file.queries) for file in files),
        "errors": errors,
        "warnings": warnings,
        "infos": sum(file.count(Severity.INFO) for file in files),
    }
    if len(files) == 1:
        return {**counts, **_file_json(files[0])}
    return {**counts, "files": [_file_json(file) for file in files]}


def _file_json(file: LintedFile) -> dict[str, Any]:
    return {
        "query_path": file.path,
        "results": [_result(checked) for checked in file.queries],
        "findings": [found.to_dict() for found in file.diagnostics],
    }


def _result(checked: CheckedQuery) -> dict[str, Any]:
    result: dict[str, Any] = {
        "name": checked.query.name,
        "kind": "mutation" if isinstance(checked.query.body, MutationBody) else "read",
        "status": "ok" if checked.ok else "error",
        "warnings": [],
    }
    errors = [found for found in checked.diagnostics if found.severity is Severity.ERROR]
    if errors:
        code = f"{errors[0].code}: " if errors[0].code and errors[0].code != SYNTAX_CODE else ""
        result["error"] = f"{code}{sentence(errors[0])}"
    return result
