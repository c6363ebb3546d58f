"""Type check of one query against a catalog. Pure; never raises for what a user wrote."""

from omnigraph.catalog.schema import Catalog
from omnigraph.core.late_dataclass import dataclass
from omnigraph.language import query_tree as tree
from omnigraph.language.diagnostics import Diagnostic, in_source_order
from omnigraph.language.source import Source
from omnigraph.planning import ir


@dataclass(frozen=True, slots=True)
class CheckedQuery:
    """A query with its plan, or with what is wrong with it in source order."""

    query: tree.Query
    plan: ir.Plan | None
    diagnostics: tuple[Diagnostic, ...]

    @property
    def ok(self) -> bool:
        """Whether it can run."""
        return self.plan is not None


def check_query(
    query: tree.Query, catalog: Catalog, source: Source | None = None, *, suggest: bool = True
) -> CheckedQuery:
    """Resolve every name and type of a query. `source` is the text it was parsed from, for the diagnostics.

    Cost: linear in the query; independent of the size of the catalog, except that an unknown name is compared
    with the known ones for a suggestion. `suggest=False` leaves that out.
    """
    where = source if source is not None else Source("")
    plan: ir.Plan | None
    match query.body:
        case tree.MutationBody():
            # A command reads or writes: the rules of the other are not loaded.
            from omnigraph.planning.check_mutation import MutationCheck  # noqa: PLC0415

            check = MutationCheck(query, catalog, where, suggest=suggest)
            plan = check.plan(query.body)
        case tree.ReadBody():
            from omnigraph.planning.check_read import ReadCheck  # noqa: PLC0415

            check = ReadCheck(query, catalog, where, suggest=suggest)
            plan = check.plan(query.body)
    if check.diagnostics:
        plan = None
    return CheckedQuery(query, plan, in_source_order(check.diagnostics))
