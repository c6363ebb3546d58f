"""What comes into a graph in bulk: files, streams and frames. Part of `Graph`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast

from omnigraph.api.arguments import text_checked_methods
from omnigraph.api.branches import writable_branch
from omnigraph.api.bulk import SPARK_WHEN_LARGE
from omnigraph.core.bounds import CallLimits, current_bounds
from omnigraph.core.load_options import ColumnForm, ColumnWords, LoadOptions
from omnigraph.recovery.outcome import WriteCourse

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from omnigraph.engine.session import GraphSession
    from omnigraph.pipeline.load.journal import ResumableLoad
    from omnigraph.pipeline.load.load import Sources
    from omnigraph.pipeline.load.reembed import Reembedded
    from omnigraph.pipeline.report import LoadReport


class LoadWords(ColumnWords, CallLimits, total=False):
    """The form of a file of one type, and the limits of the call."""


@text_checked_methods
class Loads:
    """The loading methods of `Graph`. Each load is one commit, or changes nothing."""

    _session: GraphSession

    def load(
        self,
        sources: Sources | None = None,
        *,
        mode: str = "",
        branch: str = "main",
        base: str | None = None,
        actor: str | None = None,
        engine: str = "spark",
        replace_types: Sequence[str] = (),
        rejects: str | os.PathLike[str] | None = None,
        max_rejects: int | None = None,
        on_duplicate: str | None = None,
        resume: str | None = None,
        format: str | None = None,  # noqa: A002  the word of the command line
        type_name: str | None = None,
        if_commit: str | None = None,
        idempotency_key: str | None = None,
        spark: Any = None,
        **form: Unpack[LoadWords],
    ) -> LoadReport:
        """Load files, directories, patterns or a stream as one atomic commit, or change nothing.

        ```python
        report = graph.load("people/*.jsonl", mode="merge", actor="import")
        ```

        `mode` is append, merge, overwrite or patch. `engine="local"` runs in this process, without Spark. A
        missing branch is made from `base` when everything is checked. With `rejects`, refused records are set
        aside in `rejects.jsonl` of that directory, which must not be there yet, and the others are loaded;
        mended there, the file is itself an input. More than `max_rejects` of them refuse the whole load.
        Of records that mean the same entity, `on_duplicate` refuses all (refuse) or keeps one (first, last).
        For CSV there are `delimiter`, `columns` where there is no header, and further `nulls`; `rename` maps
        columns of the file to properties, and `ignore_extra` passes over those the type does not have.
        `resume` goes on from what the load of this id had staged when its process died, with its options.
        With an `idempotency_key` the load happens once: sent again by the same actor within 24 hours it gets
        the first commit for an answer, and another load with this key is refused; files are compared by name
        and size.
        """
        with WriteCourse("the load") as course:
            from omnigraph.pipeline.load.load import RunBy, load_files  # noqa: PLC0415  only a load needs it

            options = LoadOptions.of(
                mode=mode,
                branch=writable_branch(branch),
                base=base,
                actor=actor,
                if_commit=if_commit,
                replace_types=replace_types,
                rejects=rejects,
                max_rejects=max_rejects,
                on_duplicate=on_duplicate,
                idempotency_key=idempotency_key,
            )
            by = RunBy(course, engine, spark, current_bounds().cancel)
            columns = ColumnForm.of(**cast("ColumnWords", form))
            files = partial(load_files, format_=format, type_name=type_name, columns=columns)
            return files(self._session, sources, options, by, resume=resume)

    def resumable_loads(self, **_limits: Unpack[CallLimits]) -> list[ResumableLoad]:
        """Loads that ended before their commit and left what they had staged, oldest first."""
        from omnigraph.pipeline.load.journal import resumable_loads  # noqa: PLC0415  only a load needs the pipeline

        self._session.begin_read()
        return resumable_loads(self._session)

    def embed(
        self,
        target: str,
        *,
        model: str | None = None,
        branch: str = "main",
        merge: bool = True,
        actor: str | None = None,
        engine: str = "spark",
        spark: Any = None,
        **_limits: Unpack[CallLimits],
    ) -> Reembedded:
        """Make all vectors of an `@embed` property again, on a branch of their own, and merge them.

        ```python
        report = graph.embed("Doc.vec", engine="local")
        report.rows, report.changed, report.similarity
        ```

        Every text of the property's source is embedded, by the embedder of the handle or, where settings name
        it, by another `model` of it. `merge=False` leaves the working branch, to be looked at and merged.
        Called again after it was stopped, it goes on from there. Raises `EmbedderError`, and `MergeConflicts`
        when somebody changed the same texts meanwhile.
        """
        with WriteCourse("the embedding") as course:
            from omnigraph.pipeline.load.load import RunBy  # noqa: PLC0415  only a load needs it
            from omnigraph.pipeline.load.reembed import reembed  # noqa: PLC0415

            by = RunBy(course, engine, spark, current_bounds().cancel, model)
            of = writable_branch(branch)
            return reembed(self._session, target, of, by, actor=actor, merge=merge, bulk=SPARK_WHEN_LARGE)

    def load_frames(
        self,
        frames: Mapping[str, Any],
        *,
        mode: str,
        branch: str = "main",
        base: str | None = None,
        actor: str | None = None,
        engine: str = "spark",
        replace_types: Sequence[str] = (),
        rejects: str | os.PathLike[str] | None = None,
        max_rejects: int | None = None,
        on_duplicate: str | None = None,
        rename: Mapping[str, str] | None = None,
        ignore_extra: bool = False,
        if_commit: str | None = None,
        idempotency_key: str | None = None,
        spark: Any = None,
        **_limits: Unpack[CallLimits],
    ) -> LoadReport:
        """Load DataFrames, one per type, as one atomic commit, or change nothing.

        ```python
        graph.load_frames({"Person": people, "Knows": knows}, mode="append", branch="review", base="main")
        ```

        A frame is a Spark or pandas DataFrame, an Arrow table, a list of dictionaries, or anything that gives
        an Arrow stream, such as a Polars frame or a DuckDB relation. Its columns are properties, `id`, and
        `from` and `to` of edges. What a dictionary lacks is not mentioned, as in a record; a null of any
        frame is mentioned. An overwrite replaces every type that has a frame, also one without rows.
        Everything else is as in `load`.
        """
        with WriteCourse("the load") as course:
            from omnigraph.pipeline.load.load import RunBy, load_frames  # noqa: PLC0415  only a load needs it

            options = LoadOptions.of(
                mode=mode,
                branch=writable_branch(branch),
                base=base,
                actor=actor,
                if_commit=if_commit,
                replace_types=replace_types,
                rejects=rejects,
                max_rejects=max_rejects,
                on_duplicate=on_duplicate,
                idempotency_key=idempotency_key,
            )
            by = RunBy(course, engine, spark, current_bounds().cancel)
            form = ColumnForm.of(rename=rename, ignore_extra=ignore_extra)
            return load_frames(self._session, frames, options, by, form)
