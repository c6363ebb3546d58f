"""From schema text to a catalog, or to every finding about the text."""

import hashlib
from dataclasses import replace

from omnigraph.catalog.codes import Code
from omnigraph.catalog.constraints import apply_flags, check_constraints
from omnigraph.catalog.declare import declare
from omnigraph.catalog.draft import Findings
from omnigraph.catalog.identity import number
from omnigraph.catalog.interfaces import apply_interfaces, check_embeds
from omnigraph.catalog.locate import with_subjects
from omnigraph.catalog.schema import Catalog
from omnigraph.core.errors import (
    SchemaCatalogError,
    SchemaError,
    SchemaIdentityError,
    SchemaRuleError,
    SchemaSyntaxError,
    SourceError,
)
from omnigraph.core.late_dataclass import dataclass
from omnigraph.language.diagnostics import Diagnostic, Severity, has_errors, in_source_order, sentence
from omnigraph.language.lexer import decode
from omnigraph.language.schema_syntax import parse_schema_source
from omnigraph.language.schema_tree import SchemaTree
from omnigraph.language.source import Source

_STAGE_ERRORS = {
    "0": SchemaSyntaxError,
    "1": SchemaRuleError,
    "2": SchemaCatalogError,
    "3": SchemaIdentityError,
}


@dataclass(frozen=True, slots=True)
class CheckedSchema:
    """The outcome of checking one text. `catalog` is None exactly when a finding is an error."""

    catalog: Catalog | None
    diagnostics: tuple[Diagnostic, ...]
    errors_total: int = 0
    """How many errors there are; `diagnostics` lists a bounded number of them."""


def compile_schema(text: str | bytes, *, file: str | None = None, accepted: Catalog | None = None) -> Catalog:
    """The catalog of a schema text.

    With `accepted`, identities continue those of the accepted schema, renames included; without it, all
    numbers are handed out afresh. Raises SchemaSyntaxError, SchemaRuleError, SchemaCatalogError or
    SchemaIdentityError; the error carries every finding.
    """
    checked = resolve_schema(text, file=file, accepted=accepted)
    if checked.catalog is None:
        raise schema_error(checked.diagnostics, errors_total=checked.errors_total)
    return checked.catalog


def check_schema(text: str | bytes, *, file: str | None = None) -> tuple[Catalog | None, list[Diagnostic]]:
    """The catalog of a text, None when it has errors, and all findings in source order. Never raises."""
    checked = resolve_schema(text, file=file)
    return checked.catalog, list(checked.diagnostics)


def resolve_schema(
    text: str | bytes, *, file: str | None = None, accepted: Catalog | None = None
) -> CheckedSchema:
    """As `compile_schema`, with the findings as values. Cost: linear in the text."""
    source = Source(text, file) if isinstance(text, str) else decode(text, file)
    if isinstance(source, Diagnostic):
        return CheckedSchema(None, (_as_syntax(source),), 1)
    parsed = parse_schema_source(source)
    if parsed.diagnostics:
        found = with_subjects(parsed.diagnostics, parsed.tree)
        return CheckedSchema(None, found, len(found))
    findings = Findings(source)
    draft = declare(parsed.tree, findings)
    apply_interfaces(draft, findings)
    for declared in draft.types():
        apply_flags(declared)
        check_constraints(declared, findings)
    for node in draft.nodes.values():
        check_embeds(node, findings)
    if has_errors(findings.diagnostics):
        return _refused(findings, parsed.tree)
    digest = hashlib.sha256(source.text.encode()).hexdigest()
    catalog = number(draft, accepted, findings, source_hash=digest)
    if has_errors(findings.diagnostics):
        return _refused(findings, parsed.tree)
    return CheckedSchema(catalog, with_subjects(in_source_order(findings.diagnostics), parsed.tree))


def _refused(findings: Findings, tree: SchemaTree) -> CheckedSchema:
    found = with_subjects(in_source_order(findings.diagnostics), tree)
    return CheckedSchema(None, found, findings.totals[Severity.ERROR])


def _as_syntax(diagnostic: Diagnostic) -> Diagnostic:
    return replace(diagnostic, code=Code.SYNTAX.value)


def schema_error(diagnostics: tuple[Diagnostic, ...], *, errors_total: int = 0) -> SchemaError:
    """The error for findings of which at least one is an error. Its class is that of the earliest stage."""
    errors = [d for d in diagnostics if d.severity is Severity.ERROR]
    first = min(errors, key=lambda d: (d.code[1:2], d.span.start))
    others = max(errors_total, len(errors)) - 1
    more = f" (and {others} more)" if others else ""
    place = f"line {first.line}: "
    return _STAGE_ERRORS[first.code[1:2]](
        f"{place}{sentence(first)}{more}",
        source_error=SourceError(
            line=first.line,
            column=first.column,
            file=first.file,
            end_line=first.end_line,
            end_column=first.end_column,
            lint_code=first.code,
            snippet=first.snippet,
        ),
        candidates=first.candidates,
        diagnostics=diagnostics,
        hint=first.hint,
    )
