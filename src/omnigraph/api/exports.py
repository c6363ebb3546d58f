"""What leaves a graph: streams, files, Spark DataFrames and clones. Part of `Graph`."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, Unpack

from omnigraph.api.arguments import text_checked_methods
from omnigraph.core.bounds import claim_memory, current_bounds
from omnigraph.core.errors import BadRequest, CommitNotFound, TargetConflict
from omnigraph.core.ids import CommitId, normalize_branch

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from omnigraph.core.bounds import CallLimits
    from omnigraph.core.cancel import Cancellation
    from omnigraph.engine.entities.blob_cells import Blob
    from omnigraph.engine.read.result import Rows
    from omnigraph.engine.session import GraphSession
    from omnigraph.maintenance.clone import CloneReport
    from omnigraph.manifest.state import Snapshot
    from omnigraph.pipeline.output.export import ExportReport
    from omnigraph.planning.keys import EntityKey


@text_checked_methods
class Exports:
    """The exporting methods of `Graph`. Each of them reads one commit, whatever writers do meanwhile."""

    _session: GraphSession
    query: Callable[..., Rows]

    def export_chunks(
        self,
        *,
        branch: str | None = None,
        at: str | None = None,
        types: Sequence[str] | None = None,
        format: str = "jsonl",  # noqa: A002  the word of the command line
        **_limits: Unpack[CallLimits],
    ) -> Iterator[bytes]:
        """The state of a branch, or of the commit `at`, as chunks of JSON lines, or of CSV for one type.

        Node types by name, then edge types by name, rows by ascending id. An unknown type raises
        `TypeNotFound` here, before the first chunk.
        """
        from omnigraph.engine.entities.export import (  # noqa: PLC0415  most processes export nothing
            export_csv,
            export_lines,
            select_types,
        )
        from omnigraph.engine.readable import own_names  # noqa: PLC0415

        snapshot = self._state(branch, at)
        cancel = current_bounds().cancel
        if format == "jsonl":
            return _stoppable(export_lines(self._session, snapshot, types=types), cancel)
        if format != "csv":
            raise BadRequest(f"'{format}' cannot be streamed", hint="use jsonl or csv, or export to files")
        names = own_names(self._session, snapshot, types)
        chosen = select_types(self._session.catalog_of(snapshot), names)
        if len(chosen) != 1:
            raise BadRequest("one stream of CSV holds one type", hint="name the type, or export to files")
        return _stoppable(export_csv(self._session, snapshot, chosen[0]), cancel)

    def export(
        self,
        target: IO[bytes] | None = None,
        *,
        branch: str | None = None,
        at: str | None = None,
        types: Sequence[str] | None = None,
        **_limits: Unpack[CallLimits],
    ) -> str:
        """The state of a branch as JSON lines. With `target` the lines go there and the result is empty."""
        chunks = self.export_chunks(branch=branch, at=at, types=types)
        if target is None:
            return _joined(chunks).decode()
        for chunk in chunks:
            target.write(chunk)
        return ""

    def export_to(
        self,
        target: str | os.PathLike[str],
        *,
        format: str | None = None,  # noqa: A002  the word of the command line
        types: Sequence[str] | None = None,
        query: str | os.PathLike[str] | None = None,
        name: str | None = None,
        params: Mapping[str, Any] | None = None,
        branch: str | None = None,
        at: str | None = None,
        engine: str = "auto",
        overwrite: bool = False,
        spark: Any = None,
        **_limits: Unpack[CallLimits],
    ) -> ExportReport:
        """Write the graph, some types, or the result of a query to files that appear when all are complete.

        A `target` that ends like a file (`.jsonl`, `.csv`, `.parquet`; text also with `.gz` or `.zst`) is one
        file, any other is a directory with files per type. `engine` is `auto` (Spark above the bulk limits of
        the settings), `local` or `spark`. An existing target is refused unless `overwrite` is set.
        """
        from omnigraph.pipeline.output.export import export_rows, export_types, plan_target  # noqa: PLC0415

        place = plan_target(target, format, overwrite=overwrite)
        stop = current_bounds().cancel
        if query is not None:
            if types is not None:
                raise BadRequest("give either types or a query, not both")
            rows = self.query(query, params, name=name, branch=branch, at=at)
            return export_rows(self._session, rows, place, engine=engine)
        if name is not None or params is not None:
            raise BadRequest("a name and parameters need a query")
        return export_types(
            self._session,
            self._state(branch, at),
            place,
            types=types,
            engine=engine,
            named_commit=at is not None,
            spark=spark,
            cancel=stop,
        )

    def clone(
        self,
        target: str | os.PathLike[str],
        *,
        branches: Sequence[str] | None = None,
        at: str | None = None,
        heads_only: bool = False,
        storage_options: Mapping[str, str] | None = None,
        **_limits: Unpack[CallLimits],
    ) -> CloneReport:
        """Copy one moment of the graph into another place, beside writers, as a graph of its own.

        ```python
        report = graph.clone("s3://backups/people", heads_only=True)
        ```

        All branches, tags and the whole history come, or the `branches` named with those they grew out of.
        `at`, a commit or a tag, is where its branch ends; other branches stay away. `heads_only` leaves the
        history and the tags behind. A clone that was made before, or was stopped, gets what it lacks.
        `storage_options` are those of the target; left out, those of this graph. A handle that was opened
        read-only writes no pin, so a cleanup could stop the clone. Raises `CloneTarget` when the place holds
        something else.
        """
        from omnigraph.api.clones import clone_session  # noqa: PLC0415  few processes clone

        return clone_session(
            self._session,
            target,
            branches=branches,
            at=at,
            heads_only=heads_only,
            storage_options=storage_options,
            pins=not self._session.read_only,
        )

    def frames(
        self,
        type_name: str,
        *,
        branch: str | None = None,
        at: str | None = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        spark: Any = None,
        **_limits: Unpack[CallLimits],
    ) -> Any:
        """One type as a Spark DataFrame, pinned to one commit. Edges have the columns `src` and `dst`."""
        from omnigraph.pipeline.output.frames import graph_frame  # noqa: PLC0415  only this needs Spark

        snapshot = self._state(branch, at)
        return graph_frame(self._session, snapshot, type_name, columns=columns, where=where, spark=spark)

    def blob(
        self,
        type_name: str,
        entity_id: EntityKey,
        property_name: str,
        *,
        kind: str | None = None,
        branch: str | None = None,
        at: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Blob:
        """One blob of one entity: its bytes by ranges, or the address of an external one.

        ```python
        content = b"".join(graph.blob("Report", "r1", "scan").chunks())
        ```

        `kind`, `node` or `edge`, tells types of one name apart. Raises `TypeNotFound`, `EntityNotFound`,
        `BlobNull`.
        """
        from omnigraph.engine.entities.blob_cells import find_blob  # noqa: PLC0415  few processes read blobs

        if kind not in {None, "node", "edge"}:
            raise BadRequest(f"unknown kind '{kind}'", hint="use node or edge")
        snapshot = self._state(branch, at)
        with self._session.manifest.reading(snapshot):
            return find_blob(self._session, snapshot, type_name, entity_id, property_name, kind=kind)

    def _state(self, branch: str | None, at: str | None) -> Snapshot:
        """What a read sees: the head of a branch, main unless named, or what `at` names: a commit, a tag, or
        a branch for its head.
        """
        if branch is not None and at is not None:
            raise TargetConflict("give either a branch or a commit, not both")
        self._session.begin_read()
        if at is None:
            return self._session.manifest.current(normalize_branch(branch or "main"))
        try:
            # An id first: it is what most callers have, and it needs no look at the names.
            return self._session.manifest.at_commit(CommitId(at))
        except CommitNotFound:
            from omnigraph.branching.references import resolve_reference  # noqa: PLC0415  names are rare

            return resolve_reference(self._session, at)


def _stoppable(chunks: Iterator[bytes], cancel: Cancellation) -> Iterator[bytes]:
    """The chunks, as long as nobody asks to stop: they are made when the call has returned long ago."""
    for chunk in chunks:
        cancel.raise_if_requested()
        yield chunk


def _joined(chunks: Iterator[bytes]) -> bytes:
    whole = bytearray()
    for chunk in chunks:
        whole += chunk
        claim_memory(len(whole), "the export")
    return bytes(whole)
