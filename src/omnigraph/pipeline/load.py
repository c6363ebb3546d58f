"""The entry points of a bulk load: words become values, sources become splits, an engine is chosen."""

import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias, TypedDict, TypeGuard, TypeVar, Unpack

from omnigraph.core.errors import BadRequest
from omnigraph.core.ids import Branch, CommitId, new_ulid
from omnigraph.core.limits import MIB
from omnigraph.engine.cancel import NEVER, Cancellation
from omnigraph.engine.session import GraphSession
from omnigraph.pipeline.executors import Executor, LocalExecutor, SparkExecutor
from omnigraph.pipeline.frames import is_spark_frame, spool_frames
from omnigraph.pipeline.loading import Load, LoadRequest
from omnigraph.pipeline.plan import LoadMode, SourceFormat, Split
from omnigraph.pipeline.report import LoadReport
from omnigraph.pipeline.session import spark_runtime
from omnigraph.pipeline.sources import expand, input_bytes, plan_splits, spool
from omnigraph.storage.layout import LOADS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_START_BYTES_MAX: Final = 64 * MIB
"""Inputs up to this size start a JVM shaped for a short command."""

Sources: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | BinaryIO"
Word = TypeVar("Word", bound=StrEnum)


class EngineName(StrEnum):
    """Who executes a load."""

    SPARK = "spark"
    LOCAL = "local"


class LoadWords(TypedDict, total=False):
    """What files and frames have in common, as a caller says it."""

    mode: str
    branch: Branch
    base: str | None
    actor: str | None
    if_commit: str | None
    replace_types: Sequence[str]
    rejects: str | os.PathLike[str] | None
    cancel: Cancellation
    engine: str
    spark: "SparkSession | None"


def load_files(
    session: GraphSession,
    sources: Sources,
    *,
    format_: str | None = None,
    type_name: str | None = None,
    **words: Unpack[LoadWords],
) -> LoadReport:
    """Load files into one branch as one commit, or change nothing.

    `sources` are files, directories and patterns, or a stream, which is copied to a file first. Raises
    BadRequest for an unknown word. A refused input is one error that lists the first problems of each kind in
    `details["problems"]`, with exact totals.
    Cost: one pass over the input plus its key columns, in memory that does not follow its size.
    """
    kind = None if format_ is None else _word(SourceFormat, format_, "format")
    if _is_stream(sources):
        stream = sources
        return _load(
            session,
            lambda workspace, _: plan_splits([spool(stream, workspace)], format_=kind, type_name=type_name),
            0,
            words,
        )
    splits = plan_splits(expand(_listed(sources)), format_=kind, type_name=type_name)
    return _load(session, lambda _workspace, _executor: splits, input_bytes(splits), words)


def load_frames(session: GraphSession, frames: Mapping[str, Any], **words: Unpack[LoadWords]) -> LoadReport:
    """Load DataFrames, one per type, as one commit, or change nothing.

    A frame is a Spark DataFrame, a pandas one, an Arrow table or a list of rows. Columns are `id`, `from` and
    `to` (or `src` and `dst`) and property names.
    """
    if "spark" not in words:
        owner = next((frame for frame in frames.values() if is_spark_frame(frame)), None)
        words["spark"] = None if owner is None else owner.sparkSession

    def splits(workspace: Path, executor: Executor) -> list[Split]:
        runtime = executor.runtime if isinstance(executor, SparkExecutor) else None
        return spool_frames(frames, workspace, runtime)

    return _load(session, splits, 0, words)


def _load(
    session: GraphSession,
    make_splits: Callable[[Path, Executor], list[Split]],
    size: int,
    words: LoadWords,
) -> LoadReport:
    rejects, if_commit = words.get("rejects"), words.get("if_commit")
    request = LoadRequest(
        mode=_word(LoadMode, words.get("mode", ""), "mode"),
        branch=words.get("branch"),
        base=words.get("base"),
        actor=words.get("actor"),
        if_commit=None if if_commit is None else CommitId(if_commit),
        replace_types=tuple(words.get("replace_types", ())),
        rejects=None if rejects is None else Path(rejects),
        cancel=words.get("cancel", NEVER),
    )
    if request.replace_types and request.mode is not LoadMode.OVERWRITE:
        raise BadRequest("only an overwrite load replaces types that the input does not name")
    engine = _word(EngineName, words.get("engine", EngineName.SPARK), "engine")
    session.begin_write()
    executor = _executor(session, engine, words.get("spark"), size)
    with _workspace(session, executor) as workspace:
        return Load(session, request, executor, workspace).run(make_splits(workspace, executor))


def _word(words: type[Word], text: str, what: str) -> Word:
    try:
        return words(text)
    except ValueError:
        known = ", ".join(word.value for word in words)
        raise BadRequest(f"unknown {what} '{text}'", hint=f"use one of {known}") from None


def _is_stream(sources: Sources) -> TypeGuard[BinaryIO]:
    return hasattr(sources, "read")


def _listed(sources: Any) -> Sequence[str | os.PathLike[str]]:
    return [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)


def _executor(session: GraphSession, engine: EngineName, spark: "SparkSession | None", size: int) -> Executor:
    match engine:
        case EngineName.LOCAL:
            return LocalExecutor(session.settings, "load")
        case EngineName.SPARK:
            quick = size <= QUICK_START_BYTES_MAX
            return SparkExecutor(spark_runtime(session.settings, session=spark, quick_start=quick), "load")


@contextmanager
def _workspace(session: GraphSession, executor: Executor) -> Generator[Path]:
    """A directory for spooled input and key facts that every task sees, removed when the load ends."""
    if executor.shares_files:
        session.settings.merge_staging_dir.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(prefix="omnigraph-load-", dir=session.settings.merge_staging_dir))
    elif session.root.is_local:
        path = Path(session.root.local_path(LOADS)) / new_ulid()
        path.mkdir(parents=True)
    else:
        raise BadRequest("a load through a cluster needs a graph on a file system the cluster shares")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
