"""The schema of a graph: what it is, and how it changes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from omnigraph.api.arguments import text_checked_methods
from omnigraph.api.bulk import SPARK_WHEN_LARGE
from omnigraph.api.texts import source_text
from omnigraph.core.bounds import current_bounds
from omnigraph.core.errors import OmnigraphError
from omnigraph.recovery.outcome import WriteCourse

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from omnigraph.catalog.schema import Catalog
    from omnigraph.core.bounds import CallLimits
    from omnigraph.core.ids import CommitId
    from omnigraph.engine.evolve.apply import AppliedSchema
    from omnigraph.engine.evolve.costs import GraphPlan
    from omnigraph.engine.session import GraphSession


@text_checked_methods
class Schemas:
    """The part of a graph handle that knows the schema."""

    _session: GraphSession

    def schema_source(self) -> str:
        """The accepted schema, as it was written."""
        return self._session.contract().source

    def catalog(self) -> Catalog:
        """The accepted schema, compiled, with the identities of this graph."""
        return self._session.contract().catalog

    def plan_schema(
        self,
        schema: str | bytes | os.PathLike[str],
        *,
        file: str | None = None,
        allow_data_loss: bool = False,
        fills: Sequence[str] = (),
        **_limits: Unpack[CallLimits],
    ) -> GraphPlan:
        """What a schema would change, step by step, and what each step would do to the rows of main.

        ```python
        [cost.work for cost in graph.plan_schema("schema.pg").costs]
        ```

        The arguments are those of `apply_schema`. No row is read. Raises the errors of schema texts.
        """
        from omnigraph.engine.evolve.costs import plan_on_graph  # noqa: PLC0415  rarely used
        from omnigraph.engine.evolve.request import SchemaRequest  # noqa: PLC0415

        self._session.check_open()
        if not isinstance(schema, bytes):
            schema, named = source_text(schema)
            file = file or named
        request = SchemaRequest(schema, file, allow_data_loss=allow_data_loss, fills=tuple(fills))
        return plan_on_graph(self._session, request)

    def apply_schema(
        self,
        schema: str | bytes | os.PathLike[str],
        *,
        file: str | None = None,
        actor: str | None = None,
        dry_run: bool = False,
        allow_data_loss: bool = False,
        fills: Sequence[str] = (),
        **_limits: Unpack[CallLimits],
    ) -> AppliedSchema:
        """Make a text the schema of the graph, as one commit of main, or change nothing.

        ```python
        graph.apply_schema("schema.pg").steps
        ```

        `schema` is the text or a path, as bytes always the text; `file` names it in messages. With `dry_run`
        everything is checked and nothing changed. With `allow_data_loss` drops are hard: the values go out of
        the files as well, with the older states of these tables, but for those that a tag, a branch or a
        clone names; `kept_by` lists them. Given with the schema that the graph has, it does so for what the
        last change dropped: a hard drop that was stopped half-way is completed like this. `fills` say what
        rows that exist get in an added property, as `Person.tier = "basic"` or `Person.label = $row.name`.
        Raises `MigrationUnsupported`, `MigrationBlocked` while branches are in the way, `ConstraintViolation`
        with the rows that break a new rule, `RecoveryRequired`, and the errors of schema texts.
        """
        from omnigraph.engine.evolve.apply import APPLY, apply_schema  # noqa: PLC0415  rarely used
        from omnigraph.engine.evolve.request import SchemaRequest  # noqa: PLC0415

        if not isinstance(schema, bytes):
            schema, named = source_text(schema)
            file = file or named
        request = SchemaRequest(
            schema, file, actor, dry_run=dry_run, allow_data_loss=allow_data_loss, fills=tuple(fills)
        )
        with WriteCourse(APPLY) as course:
            applied = apply_schema(self._session, request, course=course, bulk=SPARK_WHEN_LARGE)
        if applied.has_hard_drops:
            return self._reclaimed(applied, applied.commit, actor)
        again = allow_data_loss and not dry_run and not applied.steps
        return self._reclaimed(applied, None, actor) if again else applied

    def _reclaimed(self, applied: AppliedSchema, commit: CommitId | None, actor: str | None) -> AppliedSchema:
        """The report of a change with hard drops, once their values are out of the files."""
        from omnigraph.maintenance.hard_drops import reclaim_dropped  # noqa: PLC0415  rarely used
        from omnigraph.pipeline.load.abandoned import JournaledLoads  # noqa: PLC0415

        try:
            with WriteCourse("the reclaiming of dropped values") as course:
                done = reclaim_dropped(
                    self._session,
                    commit,
                    JournaledLoads(self._session),
                    actor=actor,
                    course=course,
                    cancel=current_bounds().cancel,
                    bulk=SPARK_WHEN_LARGE,
                )
        except OmnigraphError as error:
            # The schema has changed: what could not be reclaimed is as after a soft drop.
            return replace(applied, kept_by=(f"all of it: {error.message}; apply it again later",))
        return replace(applied, reclaimed_bytes=done.bytes, kept_by=done.kept_by)
