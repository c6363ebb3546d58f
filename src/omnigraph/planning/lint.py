"""Lint of query files against a catalog: type errors per query, and findings about the queries together."""

from collections.abc import Iterable, Sequence
from typing import Any

from omnigraph.catalog.schema import Catalog, NodeType
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import DIAGNOSTICS_REPORTED_MAX
from omnigraph.language.diagnostics import Diagnostic, Severity, diagnose, sentence
from omnigraph.language.query_syntax import SYNTAX_CODE, QueryFile, parse_source
from omnigraph.language.query_tree import Query
from omnigraph.language.source import Source
from omnigraph.planning import ir
from omnigraph.planning.check import CheckedQuery, check_query
from omnigraph.planning.describe import Operation, describe

UNASSIGNED_CODE = "L201"
DUPLICATE_CODE = "L202"
_SEVERITIES = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True, slots=True)
class QueryResult:
    """One query: its errors in source order, its warnings, and what it does when it compiles."""

    name: str
    kind: str
    file: str | None
    errors: tuple[Diagnostic, ...]
    warnings: tuple[Diagnostic, ...]
    operation: Operation | None

    @property
    def status(self) -> str:
        """`ok` or `error`."""
        return "error" if self.errors else "ok"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form of one result."""
        form: dict[str, Any] = {"name": self.name, "kind": self.kind, "status": self.status}
        form["warnings"] = [warning.message for warning in self.warnings]
        if self.errors:
            first = self.errors[0]
            form["error"] = f"{first.code}: {sentence(first)}" if first.code else sentence(first)
            form["diagnostics"] = [error.to_dict() for error in self.errors]
        if self.operation is not None:
            form["operation"] = self.operation.to_dict()
        return form


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a file or about several queries. `diagnostic` is the place, when there is one."""

    severity: Severity
    code: str
    message: str
    query_names: tuple[str, ...]
    type_name: str | None = None
    property: str | None = None
    diagnostic: Diagnostic | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without absent members."""
        form: dict[str, Any] = {"severity": self.severity.value}
        if self.code:
            form["code"] = self.code
        form["message"] = self.message
        if self.type_name is not None:
            form["type_name"] = self.type_name
        if self.property is not None:
            form["property"] = self.property
        form["query_names"] = list(self.query_names)
        if self.diagnostic is not None:
            form["source_error"] = self.diagnostic.source_error()
        return form


@dataclass(frozen=True, slots=True)
class LintReport:
    """The outcome of one run over one or more files."""

    results: tuple[QueryResult, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        """Type errors of all queries and errors among the findings."""
        return sum(len(result.errors) for result in self.results) + self._count(Severity.ERROR)

    @property
    def warnings(self) -> int:
        """Warnings among the findings."""
        return self._count(Severity.WARNING)

    @property
    def infos(self) -> int:
        """Remarks among the findings."""
        return self._count(Severity.INFO)

    @property
    def status(self) -> str:
        """`error` when there is any error, else `ok`."""
        return "error" if self.errors else "ok"

    def _count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Everything that has a place, by file and position, for a terminal."""
        found = [error for result in self.results for error in result.errors]
        found += [finding.diagnostic for finding in self.findings if finding.diagnostic is not None]
        return tuple(sorted(found, key=lambda item: (item.file or "", item.span.start)))

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON; the caller adds where schema and queries came from."""
        return {
            "status": self.status,
            "queries_processed": len(self.results),
            "errors": self.errors,
            "warnings": self.warnings,
            "infos": self.infos,
            "results": [result.to_dict() for result in self.results],
            "findings": [finding.to_dict() for finding in self.findings],
        }


def lint_sources(sources: Iterable[Source], catalog: Catalog) -> LintReport:
    """Lint of several texts together; a text that does not parse gives Q000 findings and no results.

    Cost: linear in the texts.
    """
    results: list[QueryResult] = []
    findings: list[Finding] = []
    updates = _Updates()
    errors = 0
    seen: dict[str, str | None] = {}
    for source in sources:
        parsed = parse_source(source)
        if not parsed.ok:
            findings += [_syntax_finding(found) for found in parsed.diagnostics]
            continue
        for query in parsed.queries:
            # Nobody reads the thousandth suggestion, and each costs a walk over all names of its kind.
            checked = check_query(query, catalog, source, suggest=errors < DIAGNOSTICS_REPORTED_MAX)
            errors += len(checked.diagnostics)
            if checked.plan is not None:
                updates.note(checked.plan)
            warnings = _warnings(query, parsed, seen)
            findings += warnings
            results.append(_result(checked, source, warnings, catalog))
    findings += updates.findings()
    findings.sort(key=_finding_order)
    return LintReport(tuple(results), tuple(findings))


def _finding_order(finding: Finding) -> tuple[int, str, str, str]:
    severity = _SEVERITIES[finding.severity]
    return severity, finding.type_name or "", finding.property or "", finding.message


def _syntax_finding(found: Diagnostic) -> Finding:
    return Finding(Severity.ERROR, SYNTAX_CODE, sentence(found), (), diagnostic=found)


def _result(
    checked: CheckedQuery, source: Source, warnings: Sequence[Finding], catalog: Catalog
) -> QueryResult:
    query = checked.query
    return QueryResult(
        name=query.name,
        kind="mutation" if query.is_mutation else "read",
        file=source.file,
        errors=checked.diagnostics,
        warnings=tuple(found.diagnostic for found in warnings if found.diagnostic is not None),
        operation=None if checked.plan is None else describe(checked.plan, catalog),
    )


def _warnings(query: Query, parsed: QueryFile, seen: dict[str, str | None]) -> list[Finding]:
    found: list[tuple[str, str]] = []
    if query.is_mutation and not query.parameters:
        found.append(("", f"mutation '{query.name}' declares no parameters"))
    if query.name in seen:
        where = seen[query.name]
        again = f" in {where}" if where is not None and where != parsed.source.file else ""
        found.append(
            (DUPLICATE_CODE, f"query '{query.name}' is declared before{again}; the first one is used")
        )
    else:
        seen[query.name] = parsed.source.file
    findings: list[Finding] = []
    for code, message in found:
        warning = Severity.WARNING
        place = diagnose(parsed.source, query.name_span, message, code=code, severity=warning)
        findings.append(Finding(warning, code, message, (query.name,), diagnostic=place))
    return findings


class _Updates:
    """L201: nullable properties that no update query sets, for node types that have an update query.

    Keeps what the updates assign, not their plans: a large file is linted in the memory of its findings.
    """

    def __init__(self) -> None:
        self._by_type: dict[str, tuple[NodeType, set[str], set[str]]] = {}

    def note(self, plan: ir.Plan) -> None:
        for statement in plan.statements if isinstance(plan, ir.MutationPlan) else ():
            if isinstance(statement, ir.UpdateOp) and isinstance(statement.type, NodeType):
                node = statement.type
                _, assigned, names = self._by_type.setdefault(node.name, (node, set(), set()))
                assigned |= {name for name, _ in statement.assignments}
                names.add(plan.name)

    def findings(self) -> list[Finding]:
        found: list[Finding] = []
        for node, assigned, names in self._by_type.values():
            queries = tuple(sorted(names))
            for prop in node.properties:
                settable = prop.nullable and prop.embed is None and prop.name not in node.key
                if settable and prop.name not in assigned:
                    message = f"no update query sets {node.name}.{prop.name}"
                    warning = Severity.WARNING
                    found.append(Finding(warning, UNASSIGNED_CODE, message, queries, node.name, prop.name))
        return found
