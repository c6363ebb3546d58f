"""From query text to a plan, with typed errors: what the engine calls."""

from typing import Final, NoReturn

from omnigraph.catalog.schema import Catalog
from omnigraph.core.errors import (
    AmbiguousQuery,
    KeyImmutable,
    MutationShapeError,
    QueryNotSelected,
    QuerySyntaxError,
    QueryTypeError,
    SourceError,
    WrongQueryKind,
)
from omnigraph.language.diagnostics import Diagnostic, near_names, sentence
from omnigraph.language.query_syntax import SYNTAX_CODE, QueryFile, parse_queries
from omnigraph.language.query_tree import Query
from omnigraph.planning import ir
from omnigraph.planning.check import check_query
from omnigraph.planning.check_mutation import KEY_CODE, SHAPE_CODE

NAMES_SHOWN_MAX: Final = 8


def compile_query(
    text: str, catalog: Catalog, *, name: str | None = None, file: str | None = None
) -> ir.Plan:
    """The plan of one query of a text; the only query when no name is given.

    Raises QuerySyntaxError, QueryTypeError, MutationShapeError, KeyImmutable, AmbiguousQuery or
    QueryNotSelected.
    """
    parsed = parse_queries(text, file)
    if not parsed.ok:
        raise_diagnostics(parsed.diagnostics)
    query = select_query(parsed, name)
    checked = check_query(query, catalog, parsed.source)
    if checked.plan is None:
        raise_diagnostics(checked.diagnostics)
    return checked.plan


def as_mutation(plan: ir.Plan) -> ir.MutationPlan:
    """The plan of a query that changes data; a read query is WrongQueryKind."""
    if not isinstance(plan, ir.MutationPlan):
        raise WrongQueryKind(f"'{plan.name}' only reads", hint="run it with query")
    return plan


def as_read(plan: ir.Plan) -> ir.ReadPlan:
    """The plan of a query that reads; a mutation is WrongQueryKind."""
    if not isinstance(plan, ir.ReadPlan):
        raise WrongQueryKind(f"'{plan.name}' changes data", hint="run it with mutate")
    return plan


def select_query(parsed: QueryFile, name: str | None) -> Query:
    """The query of this name, or the only one."""
    if name is not None:
        query = parsed.named(name)
        if query is None:
            known = [each.name for each in parsed.queries]
            message = f"no query named '{name}' in this source"
            near = near_names(name, known)
            asked = f"did you mean '{near[0]}'? " if near else ""
            raise QueryNotSelected(message, candidates=near, hint=asked + _declared(known))
        return query
    match parsed.queries:
        case (only,):
            return only
        case ():
            raise QueryNotSelected("the source declares no query")
        case many:
            message = f"the source declares {len(many)} queries; say which one to run"
            known = [query.name for query in many]
            raise AmbiguousQuery(message, candidates=known[:3], hint=_declared(known))


def _declared(names: list[str]) -> str:
    """What could have been asked for, for a person who does not have the file before their eyes."""
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return f"it declares {', '.join(names[:NAMES_SHOWN_MAX])}{more}" if names else "it declares no query"


def raise_diagnostics(diagnostics: tuple[Diagnostic, ...]) -> NoReturn:
    """The typed error of the first finding, carrying all of them."""
    first = diagnostics[0]
    if first.code == KEY_CODE:
        raise KeyImmutable(type_name=first.type_name or "", property_name=first.property_name or "")
    kind = {SYNTAX_CODE: QuerySyntaxError, SHAPE_CODE: MutationShapeError}.get(first.code, QueryTypeError)
    code = f"{first.code}: " if first.code.startswith("T") else ""
    message = f"{first.line}:{first.column}: {code}{sentence(first)}"
    if len(diagnostics) > 1:
        message += f" (and {len(diagnostics) - 1} more)"
    place = SourceError(
        line=first.line,
        column=first.column,
        file=first.file,
        end_line=first.end_line,
        end_column=first.end_column,
        lint_code=first.code or None,
        snippet=first.snippet,
    )
    raise kind(
        message, source_error=place, candidates=first.candidates, diagnostics=diagnostics, hint=first.hint
    )
