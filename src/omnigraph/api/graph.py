"""`Graph`: everything a caller can do with one graph. It wires the rooms below and holds no rule of its
own.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from omnigraph.api.arguments import limited, text_checked, text_checked_methods
from omnigraph.api.at import GraphAt
from omnigraph.api.branches import Branches, Commits, writable_branch
from omnigraph.api.bulk import SPARK_WHEN_LARGE
from omnigraph.api.loads import Loads
from omnigraph.api.mutations import Mutations
from omnigraph.api.schemas import Schemas
from omnigraph.api.texts import in_file, source_text
from omnigraph.api.upkeep import Upkeep
from omnigraph.core.bounds import current_bounds, unbounded
from omnigraph.core.errors import BadRequest, SourceFailure, StorageNotFound, TargetConflict
from omnigraph.core.ids import normalize_branch, show_branch
from omnigraph.core.permission import Action, Question
from omnigraph.engine.session import GraphSession, open_session
from omnigraph.engine.upkeep import refresh_session
from omnigraph.engine.write.entering import settled_for_write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from omnigraph.api.history import Feed, Tags
    from omnigraph.branching.blame import Blame
    from omnigraph.branching.history import Diff
    from omnigraph.branching.merge_report import MergeReport
    from omnigraph.core.bounds import CallLimits
    from omnigraph.core.ids import TableKey
    from omnigraph.core.permission import Policy
    from omnigraph.core.settings import Settings
    from omnigraph.engine.entities.lookup import Entity
    from omnigraph.engine.read.explain import Explanation
    from omnigraph.engine.read.result import Rows
    from omnigraph.engine.search.embedding import Embedder
    from omnigraph.manifest.recoveries import RecoveryRecord
    from omnigraph.manifest.state import Snapshot
    from omnigraph.planning.keys import EntityKey
    from omnigraph.recovery.verify import VerifyReport


@cache
def _run_query() -> Callable[..., Rows]:
    """What runs a query; imported with the first one, because a writer never needs it."""
    from omnigraph.engine.read.query import run_query  # noqa: PLC0415

    return run_query


def _reconcile(
    session: GraphSession, snapshot: Snapshot, tables: Sequence[TableKey], *, always: bool = False
) -> None:
    """Build the indexes a publish made worthwhile; a process that only reads never loads what builds them."""
    from omnigraph.maintenance.reconciler import reconcile  # noqa: PLC0415

    reconcile(session, snapshot, tables, always=always)


@text_checked_methods
class Graph(Upkeep, Loads, Mutations, Schemas):
    """One open graph. Thread-safe; use it as a context manager or call `close`."""

    def __init__(self, session: GraphSession) -> None:
        self._session = session
        session.after_publish = _reconcile
        self.commits = Commits(session)
        self.branches = Branches(session)

    @cached_property
    def tags(self) -> Tags:
        """The tags of this graph."""
        from omnigraph.api.history import Tags  # noqa: PLC0415  most processes look at no history

        return Tags(self._session)

    @cached_property
    def feed(self) -> Feed:
        """The commits of a branch as they come, with what each changed."""
        from omnigraph.api.history import Feed  # noqa: PLC0415  as in tags

        return Feed(self._session)

    @property
    def session(self) -> GraphSession:
        """The engine behind this handle; for the rooms of this package."""
        return self._session

    @property
    def uri(self) -> str:
        """Where the graph lives."""
        return self._session.root.uri

    def query(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        branch: str | None = None,
        at: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Rows:
        """Run a read query at the head of a branch (`main` unless named), or at the commit or tag `at`.

        `at` is also the beginning of a commit id, `main~1` for the commit before, or a moment as in
        `2026-11-01T12:00Z` and, of another branch, `draft@2026-11-01T12:00Z`.

        ```python
        rows = graph.query("queries.gq", {"handle": "ada"}, name="friends")
        rows.to_arrow(), rows.to_pandas(), list(rows), rows[0]["friend.name"]
        ```

        The whole query sees one commit. `source` is query text or a path.
        """
        snapshot = self._state(branch, at)
        text, file = source_text(source)
        try:
            return _run_query()(
                self._session,
                snapshot,
                text,
                params,
                name=name,
                at_commit=at,
                cancellation=current_bounds().cancel,
            )
        except SourceFailure as error:
            raise in_file(error, file) from None
        except StorageNotFound as error:
            raise self._session.manifest.gone(snapshot.branch, snapshot.manifest_version, error) from error

    def explain(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        analyze: bool = False,
        name: str | None = None,
        branch: str | None = None,
        at: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Explanation:
        """How a read query would be answered; with `analyze` it is run and measured.

        ```python
        print(graph.explain("queries.gq", {"handle": "ada"}, name="friends", analyze=True))
        ```
        """
        from omnigraph.engine.read.query import explain_query  # noqa: PLC0415  as in query

        snapshot = self._state(branch, at)
        text, file = source_text(source)
        try:
            return explain_query(self._session, snapshot, text, params, name=name, analyze=analyze)
        except SourceFailure as error:
            raise in_file(error, file) from None

    def at(
        self, reference: str | int, *, branch: str | None = None, **_limits: Unpack[CallLimits]
    ) -> GraphAt:
        """The graph as it was at a commit, a tag, or the present head of a branch; for reading.

        ```python
        graph.at("v1").query("queries.gq", name="most_cited")
        graph.at(graph.commits.list()[1].manifest_version).query("queries.gq", name="most_cited")
        ```

        A number is a version of the graph as `branch` counts them, `main` unless named. A branch has the
        versions since it was created; those before are its parent's.
        """
        from omnigraph.branching.references import resolve_reference  # noqa: PLC0415  as in tags

        self._session.begin_read()
        if isinstance(reference, int):
            home = normalize_branch(branch or "main")
            return GraphAt(self, self._session.manifest.at_version(home, reference).head)
        if branch is not None:
            raise TargetConflict("a branch is given with a version number only", hint="leave out branch")
        return GraphAt(self, resolve_reference(self._session, reference).head)

    def diff(
        self,
        old: str,
        new: str,
        *,
        types: Sequence[str] | None = None,
        ops: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Diff:
        """What differs between two states, each a branch, a tag or a commit id.

        ```python
        for change in graph.diff("main", "review", types=["Person"]):
            print(change.op, change.id, change.properties)
        ```

        `types`, `ops` (`insert`, `update`, `delete`) and `kinds` (`node`, `edge`) narrow it. Rows are read as
        the result is iterated.
        """
        from omnigraph.api.history import diff  # noqa: PLC0415  as in tags

        return diff(self._session, old, new, types, ops, kinds)

    def revert(
        self,
        commit: str,
        *,
        branch: str = "main",
        parent: str | None = None,
        actor: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> MergeReport:
        """Take back what one commit did, as a new commit; later changes of other entities stay.

        ```python
        graph.revert(graph.commits.list(actor="import")[0].id, actor="ines")
        ```

        `commit` is an id, a tag, or a branch for its newest commit that changed rows. `parent` chooses which
        parent of a merge commit to go back to (the first unless named). Raises `MergeConflicts` when later
        commits changed the same entities, `BadRequest` when there is nothing to take back.
        """
        from omnigraph.branching import references  # noqa: PLC0415  most processes never revert
        from omnigraph.branching.revert import revert_commit  # noqa: PLC0415

        target = writable_branch(branch)
        self._session.check_open()
        self._session.ask(actor, Question(Action.CHANGE, show_branch(target)))
        return revert_commit(
            self._session,
            references.resolve_change(self._session, commit).id,
            branch=target,
            parent=None if parent is None else references.resolve_commit(self._session, parent).id,
            actor=actor,
            bulk=SPARK_WHEN_LARGE,
        )

    def blame(
        self, type_name: str, entity_id: EntityKey, *, at: str = "main", **_limits: Unpack[CallLimits]
    ) -> Blame:
        """Which commit, actor and branch gave each property of an entity its present value.

        ```python
        graph.blame("Person", "ada")["name"].commit.actor
        ```
        """
        from omnigraph.api.history import blame_entity  # noqa: PLC0415  as in tags

        return blame_entity(self._session, type_name, entity_id, at)

    def entity(
        self,
        type_name: str,
        entity_id: EntityKey,
        *,
        branch: str | None = None,
        at: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Entity:
        """One node or edge by its id, as a branch shows it or a commit or tag showed it.

        A node is named by its id as text or by its key in the key's own type; a key of several properties by
        their values. Raises `EntityNotFound`, `TypeNotFound`, `BadRequest`.

        ```python
        graph.entity("Person", "ada").properties["name"]
        graph.entity("Airport", 421), graph.entity("Seat", {"row": 12, "letter": "C"})
        ```
        """
        from omnigraph.engine.entities.lookup import find_entity  # noqa: PLC0415

        snapshot = self._state(branch, at)
        with self._session.manifest.reading(snapshot):
            return find_entity(self._session, snapshot, type_name, entity_id)

    def snapshot(
        self, *, branch: str | None = None, at: str | None = None, **_limits: Unpack[CallLimits]
    ) -> Snapshot:
        """What a branch shows now, or showed at a commit or tag: the version and size of every table."""
        return self._state(branch, at)

    def pending(self, **_limits: Unpack[CallLimits]) -> tuple[str, ...]:
        """The operations whose writers stopped half-way and that recovery has not settled yet."""
        self._session.check_open()
        return tuple(name.removesuffix(".json") for name in self._session.sidecars.list())

    def refresh(self, **_limits: Unpack[CallLimits]) -> None:
        """Settle what dead writers left, as far as that is possible beside live ones, and re-read the
        schema.
        """
        settled_for_write(self._session, heal=False)
        refresh_session(self._session)

    def recoveries(self, **_limits: Unpack[CallLimits]) -> tuple[RecoveryRecord, ...]:
        """What recovery did to this graph, oldest first."""
        self._session.check_open()
        return self._session.recovery.recoveries.list()

    def verify(self, *, deep: bool = False, **_limits: Unpack[CallLimits]) -> VerifyReport:
        """Check every invariant of the graph without changing it. `deep`: every file against its checksum."""
        from omnigraph.recovery.verify import verify  # noqa: PLC0415  rarely used and large

        own, caches = self._session, self._session.cache_files
        own.check_open()
        return verify(own.recovery, own.catalog_of, deep=deep, damaged_caches=caches.damaged)

    def close(self) -> None:
        """Finish the commit tables and let go of threads. Calling it again does nothing."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Graph({self.uri!r})"

    def _repr_html_(self) -> str:
        from omnigraph.core import html  # noqa: PLC0415  only a notebook needs it

        snapshot = self._state(None, None)
        keys = sorted(snapshot.entries, key=lambda key: (key.startswith("edge:"), key))
        entries = [(*key.split(":", 1), snapshot.entries[key]) for key in keys]
        rows = [(kind, name, entry.row_count, entry.version) for kind, name, entry in entries]
        branches = ", ".join(self.branches.list())
        about = {"branches": branches, "commit": snapshot.head, "version": snapshot.manifest_version}
        shown = html.facts(self.uri, about) + html.table(("kind", "type", "entities", "version"), rows)
        return shown.html()


@limited
@text_checked
def init(
    uri: str | os.PathLike[str],
    *,
    schema: str | os.PathLike[str],
    actor: str | None = None,
    force: bool = False,
    settings: Settings | None = None,
    storage_options: Mapping[str, str] | None = None,
    blob_sources: Sequence[str | os.PathLike[str]] | None = None,
    embedder: Embedder | None = None,
    **_limits: Unpack[CallLimits],
) -> Graph:
    """Create a graph and open it. `schema` is schema text or a path; the rest is as in `open`.

    ```python
    graph = omnigraph.init("people.omni", schema="node Person { handle: String @key }")
    ```

    Raises `AlreadyInitialized`; `force` only takes over what an interrupted creation left.
    """
    from omnigraph.engine.create import create_graph  # noqa: PLC0415 - most processes make no graph

    text, file = source_text(schema)
    with unbounded():  # a creation that stops half-way would have to be taken over
        session = create_graph(
            os.fspath(uri),
            text,
            schema_file=file,
            actor=actor,
            force=force,
            settings=_with_blob_sources(settings, blob_sources),
            storage_options=storage_options,
            embedder=embedder,
        )
    return Graph(session)


def _with_blob_sources(
    settings: Settings | None, blob_sources: Sequence[str | os.PathLike[str]] | None
) -> Settings | None:
    if blob_sources is None:
        return settings
    from omnigraph.core.settings import Settings  # noqa: PLC0415

    if isinstance(blob_sources, (str, os.PathLike)):
        raise BadRequest("blob_sources is a list of places")
    chosen = settings or Settings.from_environment()
    return replace(chosen, blob_sources=tuple(os.fspath(each) for each in blob_sources))


@limited
@text_checked
def open_graph(
    uri: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    storage_options: Mapping[str, str] | None = None,
    blob_sources: Sequence[str | os.PathLike[str]] | None = None,
    embedder: Embedder | None = None,
    policy: str | os.PathLike[str] | Policy | None = None,
    **_limits: Unpack[CallLimits],
) -> Graph:
    """Open a graph for reading and writing; what dead writers left is settled first.

    ```python
    with omnigraph.open("people.omni") as graph:
        print(graph.branches.list())
    ```

    `blob_sources` are the places below which writes may read external blobs, addresses or directories; none
    unless named here or in the settings. `embedder` embeds the texts that queries compare with vectors; else
    the settings name one. `policy` is a policy file, or what decides: every write of this handle asks
    whether its `actor` may do that; reads are not asked about. Raises `GraphNotFound`.
    """
    chosen = _with_blob_sources(settings, blob_sources)
    decides = _policy_of(policy)
    session = open_session(
        os.fspath(uri), settings=chosen, storage_options=storage_options, embedder=embedder
    )
    session.policy = decides
    return Graph(session)


def _policy_of(given: str | os.PathLike[str] | Policy | None) -> Policy | None:
    if not isinstance(given, (str, os.PathLike)):
        return given
    try:
        from omnigraph.policy.decisions import load_policy  # noqa: PLC0415  few handles have one
    except ImportError as missing:
        raise BadRequest(
            "what reads a policy file is not installed", hint="pip install 'omnigraph[server]'"
        ) from missing
    return load_policy(Path(given))


@limited
@text_checked
def open_read_only(
    uri: str | os.PathLike[str],
    *,
    settings: Settings | None = None,
    storage_options: Mapping[str, str] | None = None,
    embedder: Embedder | None = None,
    **_limits: Unpack[CallLimits],
) -> Graph:
    """Open a graph without ever writing to it, not even to settle what dead writers left. Raises
    `GraphNotFound`.
    """
    return Graph(
        open_session(
            os.fspath(uri),
            read_only=True,
            settings=settings,
            storage_options=storage_options,
            embedder=embedder,
        )
    )
