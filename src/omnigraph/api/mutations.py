"""Mutations: one call, one commit. Part of `Graph`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Unpack

from omnigraph.api.arguments import text_checked_methods
from omnigraph.api.branches import writable_branch
from omnigraph.api.texts import in_file, source_text
from omnigraph.core.bounds import current_bounds
from omnigraph.core.errors import OmnigraphError, ReadSetConflict, SourceFailure
from omnigraph.core.ids import CommitId, show_branch
from omnigraph.core.permission import Action, Question
from omnigraph.engine.write.entering import entering_write
from omnigraph.manifest.request_keys import request_key
from omnigraph.recovery.outcome import WriteCourse

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from omnigraph.core.bounds import CallLimits
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.write.requests import MutationResult
    from omnigraph.planning.ir import MutationPlan
    from omnigraph.planning.values import Value

    _Call = tuple[
        str | os.PathLike[str],
        Sequence[Mapping[str, Any] | None],
        str | None,
        str,
        str | None,
        str | None,
        str | None,
    ]
    """Source, parameter sets, name, branch, actor, `if_commit` and idempotency key."""

SCHEMAS_MET_MAX: Final = 3
"""How many schemas a mutation is compiled against when the schema changes while it is prepared."""


@text_checked_methods
class Mutations:
    """The mutating methods of `Graph`."""

    _session: GraphSession

    def mutate(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str = "main",
        actor: str | None = None,
        if_commit: str | None = None,
        idempotency_key: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> MutationResult:
        """Run a mutation query as one atomic, durable commit, or change nothing.

        ```python
        graph.mutate("queries.gq", {"handle": "ada", "name": "Ada"}, name="add_person", actor="ines")
        ```

        `source` is query text or a path. `if_commit` makes the write conditional on the head of the branch.
        With an `idempotency_key` the request is carried out once: sent again by the same actor within 24
        hours it gets the first commit for an answer, and another request with this key is refused.
        Inserts that several threads send for one branch and actor while a commit is under way share the next
        commit; each call gets its own result. Raises `OmnigraphError`: the kind says whether trying again can
        help. A `KeyboardInterrupt` has a note that says what became of the write.
        """
        return self._mutate(source, [params], name, branch, actor, if_commit, idempotency_key)

    def mutate_many(
        self,
        source: str | os.PathLike[str],
        parameter_sets: Iterable[Mapping[str, Any]],
        *,
        name: str | None = None,
        branch: str = "main",
        actor: str | None = None,
        if_commit: str | None = None,
        idempotency_key: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> MutationResult:
        """Run a mutation query once for each set of parameters, in order, as one commit, or change nothing.

        ```python
        graph.mutate_many("queries.gq", [{"handle": "ada"}, {"handle": "bob"}], name="add_person")
        ```

        The counts and the inserted entities are those of all sets together. An error names the set it is
        about by its number, counted from 1, also as `details["parameter_set"]`. Without any set nothing
        happens. Everything else is as in `mutate`.
        """
        return self._mutate(source, list(parameter_sets), name, branch, actor, if_commit, idempotency_key)

    def _mutate(self, *call: *_Call) -> MutationResult:
        """Carry a call out. When the schema changes before it had an effect, it is compiled anew."""
        for _ in range(SCHEMAS_MET_MAX - 1):
            try:
                return self._mutate_once(*call)
            except ReadSetConflict as conflict:
                if conflict.member != "schema":
                    raise
        return self._mutate_once(*call)

    def _mutate_once(
        self,
        source: str | os.PathLike[str],
        parameter_sets: Sequence[Mapping[str, Any] | None],
        name: str | None,
        branch: str,
        actor: str | None,
        if_commit: str | None,
        idempotency_key: str | None,
    ) -> MutationResult:
        target = writable_branch(branch)
        session = self._session
        with WriteCourse("the mutation") as course:
            from omnigraph.engine.write.mutate import run_mutation  # noqa: PLC0415 - loads the query language
            from omnigraph.engine.write.requests import MutationRequest, time_of  # noqa: PLC0415

            # First of all: what is healed may be a schema change, and the query is checked against that.
            change = Question(Action.CHANGE, show_branch(target))
            contract = entering_write(session, actor, change, waits=False)
            text, file = source_text(source)
            snapshot = session.manifest.current(target)
            if snapshot.schema_hash != contract.hash:
                from omnigraph.engine.evolve.adopt import adopt_schema  # noqa: PLC0415  few branches are behind

                adopt_schema(session, target)
                snapshot = session.manifest.current(target)
            catalog = (
                contract.catalog if snapshot.schema_hash == contract.hash else session.catalog_of(snapshot)
            )
            try:
                plan = session.plans.mutation(text, name, catalog, snapshot.schema_hash)
                if plan.without_embedder and session.embedder is None:
                    from omnigraph.planning.compile import raise_diagnostics  # noqa: PLC0415

                    raise_diagnostics(plan.without_embedder)
            except SourceFailure as error:
                raise in_file(error, file) from None
            request = MutationRequest(
                plan,
                bound_sets(plan, parameter_sets),
                target,
                snapshot.schema_hash,
                time_of(session.clock),
                course,
                actor=actor,
                if_commit=None if if_commit is None else CommitId(if_commit),
                bounds=current_bounds(),
                key=request_key(idempotency_key, actor, text, plan.name, branch, if_commit, parameter_sets),
            )
            return run_mutation(session, request)


def bound_sets(
    plan: MutationPlan, parameter_sets: Sequence[Mapping[str, Any] | None]
) -> tuple[Mapping[str, Value], ...]:
    """The parameters of each set as values; of several sets, a wrong one is named by its number."""
    from omnigraph.planning.params import bind_params  # noqa: PLC0415 - loads the query language

    if len(parameter_sets) == 1:
        return (bind_params(plan, parameter_sets[0]),)
    bound: list[Mapping[str, Value]] = []
    for number, params in enumerate(parameter_sets, 1):
        try:
            bound.append(bind_params(plan, params))
        except OmnigraphError as error:
            raise error.in_parameter_set(number) from None
    return tuple(bound)
