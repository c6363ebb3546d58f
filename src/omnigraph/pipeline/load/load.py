"""The entry points of a bulk load: words become values, sources become splits, an engine is chosen."""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, TypeGuard, cast

from omnigraph.core.cancel import NEVER, Cancellation
from omnigraph.core.errors import BadRequest, LoadNotFound
from omnigraph.core.events import tidying
from omnigraph.core.ids import OperationId, new_ulid, normalize_branch, show_branch
from omnigraph.core.limits import QUICK_START_BYTES_MAX
from omnigraph.core.load_options import ColumnForm, EngineName, LoadMode, LoadOptions, SourceFormat, word
from omnigraph.core.permission import Action, Question
from omnigraph.engine.evolve.adopt import adopt_schema
from omnigraph.engine.session import GraphSession
from omnigraph.engine.write.entering import entering_write
from omnigraph.manifest.commit_record import RequestKey
from omnigraph.manifest.state import Snapshot
from omnigraph.pipeline.input.sources import (
    expand,
    input_bytes,
    plan_splits,
    read_once,
    spool,
    spool_pipes,
    stream_name,
)
from omnigraph.pipeline.load.answers import answer, answer_of_key, requested
from omnigraph.pipeline.load.frames import is_spark_frame, spool_frames
from omnigraph.pipeline.load.journal import (
    Differences,
    Journal,
    check_inputs,
    only_driver,
    own_files,
    read_record,
)
from omnigraph.pipeline.load.rejects import RejectsFile
from omnigraph.pipeline.load.run import Load
from omnigraph.pipeline.plan import Split
from omnigraph.pipeline.report import LoadReport
from omnigraph.pipeline.spark.executors import Executor, LocalExecutor, SparkExecutor
from omnigraph.pipeline.spark.session import spark_runtime
from omnigraph.recovery.outcome import WriteCourse
from omnigraph.storage.layout import LOADS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Sources: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | BinaryIO"


@dataclass(frozen=True, slots=True)
class RunBy:
    """Who runs a load, how it is stopped, who is told how far it has come. It loads the same in any case."""

    course: WriteCourse
    engine: str = EngineName.SPARK.value
    spark: "SparkSession | None" = None
    cancel: Cancellation = NEVER
    model: str | None = None
    """Who makes the vectors that records leave out, if not the model of the handle."""


def load_files(
    session: GraphSession,
    sources: "Sources | None",
    options: LoadOptions,
    by: RunBy,
    *,
    format_: str | None = None,
    type_name: str | None = None,
    columns: ColumnForm | None = None,
    resume: str | None = None,
) -> LoadReport:
    """Load files into one branch as one commit, or change nothing.

    `sources` are files, directories and patterns, or a stream; a stream or a pipe is copied to a file first.
    `resume` goes on with a load that ended before its commit: options left at their defaults are then taken
    from it, and every other one must agree. Raises BadRequest for an unknown format. A refused input is one
    error that lists the first problems of each kind in `details["problems"]`, with exact totals.
    Cost: one pass over the input plus its key columns, in memory that does not follow its size.
    """
    if resume is not None:
        return _resume(session, resume, sources, options, by)
    session.ask(options.actor, _changing(options))
    if sources is None:
        raise BadRequest("a load needs an input, or the id of a load to resume")
    kind = None if format_ is None else word(SourceFormat, format_, "format")
    cut = partial(plan_splits, format_=kind, type_name=type_name, columns=columns)
    form = (format_, type_name, None if columns is None else asdict(columns))
    if _is_stream(sources):
        stream = sources

        def spooled(workspace: Path | None, _executor: Executor) -> list[Split]:
            path = spool(stream, _seen_by_tasks(workspace) / "stdin.jsonl")
            return cut([path], names=[stream_name(stream)])

        return _load(session, spooled, 0, options, by, requested(options, form, ()))
    files = expand(_listed(sources))
    if any(read_once(path) for path in files):

        def copied(workspace: Path | None, _executor: Executor) -> list[Split]:
            paths = spool_pipes(files, _seen_by_tasks(workspace))
            return cut(paths, names=[str(path) for path in files])

        return _load(session, copied, 0, options, by, requested(options, form, ()))
    splits = cut(files)
    request = requested(options, form, files)
    return _load(session, lambda _workspace, _executor: splits, input_bytes(splits), options, by, request)


def load_frames(
    session: GraphSession,
    frames: Mapping[str, Any],
    options: LoadOptions,
    by: RunBy,
    columns: ColumnForm,
) -> LoadReport:
    """Load DataFrames, one per type, as one commit, or change nothing.

    A frame is a Spark DataFrame, a pandas one, an Arrow table or a list of rows. Columns are `id`, `from` and
    `to` (or `src` and `dst`) and property names. An overwrite replaces every type that has a frame, also one
    without rows.
    """
    if not isinstance(cast("Any", frames), Mapping):
        raise BadRequest(
            f"frames are given by their types, not as {type(frames).__name__}",
            hint='name the type of each frame: {"Person": people}',
        )
    session.ask(options.actor, _changing(options))
    if options.mode is LoadMode.OVERWRITE:
        replaced = tuple(dict.fromkeys((*options.replace_types, *frames)))
        options = replace(options, replace_types=replaced)
    owner = next((frame for frame in frames.values() if is_spark_frame(frame)), None)
    if by.spark is None and owner is not None:
        by = replace(by, spark=owner.sparkSession)

    def splits(workspace: Path | None, executor: Executor) -> list[Split]:
        runtime = executor.runtime if isinstance(executor, SparkExecutor) else None
        spooled = spool_frames(frames, _seen_by_tasks(workspace), runtime)
        return [replace(split, columns=columns) for split in spooled]

    request = requested(options, (sorted(frames), asdict(columns)), ())
    return _load(session, splits, 0, options, by, request)


def load_spooled(
    session: GraphSession,
    spooled: Callable[[Path], list[Path]],
    type_name: str,
    options: LoadOptions,
    by: RunBy,
) -> LoadReport:
    """Load Parquet files of one type that `spooled` writes into a directory once the branch is entered."""

    def splits(workspace: Path | None, _executor: Executor) -> list[Split]:
        files = spooled(_seen_by_tasks(workspace))
        return plan_splits(files, format_=SourceFormat.PARQUET, type_name=type_name) if files else []

    return _load(session, splits, 0, options, by, requested(options, (type_name,), ()))


def _enter(session: GraphSession, options: LoadOptions) -> None:
    """As every write; a branch that exists follows the accepted schema afterwards."""
    entering_write(session, options.actor, _changing(options))
    branch = normalize_branch(options.branch)
    if session.manifest.branch_exists(branch):
        adopt_schema(session, branch)
    elif options.base is not None:
        base = show_branch(normalize_branch(options.base))
        session.ask(options.actor, Question(Action.BRANCH_CREATE, base, show_branch(branch)))


def _changing(options: LoadOptions) -> Question:
    return Question(Action.CHANGE, show_branch(normalize_branch(options.branch)))


def _load(
    session: GraphSession,
    make_splits: Callable[[Path | None, Executor], list[Split]],
    size: int,
    options: LoadOptions,
    by: RunBy,
    request: RequestKey | None,
) -> LoadReport:
    options.chosen_mode()
    load_id = OperationId(new_ulid())
    repeated = _answer(session, options, request)
    if repeated is not None:
        return repeated
    _refuse_taken_rejects(session, options, load_id)
    _enter(session, options)
    executor = _executor(session, by, size)
    with own_files(session.root, load_id), only_driver(session, load_id, new=True):
        workspace = _workspace(session, executor, load_id)
        load = Load(
            session,
            options,
            executor,
            workspace,
            load_id,
            cancel=by.cancel,
            course=by.course,
            request=request,
            model=by.model,
        )
        return _run(load, partial(make_splits, workspace, executor))


def _answer(session: GraphSession, options: LoadOptions, request: RequestKey | None) -> LoadReport | None:
    """The report of an earlier load with this key, before anything is read or started for this one."""
    snapshot = _entered_state(session, options)
    return None if snapshot is None else answer(session, snapshot, options, request)


def _entered_state(session: GraphSession, options: LoadOptions) -> Snapshot | None:
    """What the branch shows, with what dead processes had finished; None without a key or a branch."""
    if options.idempotency_key is None:
        return None
    _enter(session, options)
    branch = normalize_branch(options.branch)
    return session.manifest.current(branch) if session.manifest.branch_exists(branch) else None


def _resume(
    session: GraphSession, load_id: str, sources: "Sources | None", asked: LoadOptions, by: RunBy
) -> LoadReport:
    """Go on with a load that ended before its commit. Raises LoadNotResumable when one fact differs."""
    try:
        record = read_record(session, load_id)
    except LoadNotFound:
        snapshot = _entered_state(session, asked)
        repeated = None if snapshot is None else answer_of_key(session, snapshot, asked)
        if repeated is None:
            raise
        return repeated
    files = None if sources is None or _is_stream(sources) else expand(_listed(sources))
    if sources is not None and (files is None or any(read_once(path) for path in files)):
        raise BadRequest("a stream is kept by the load that read it; resume it without an input")
    differences = Differences(asked.differences(record.options))
    named = None if files is None else [str(path.absolute()) for path in files]
    check_inputs(record, named, differences)
    differences.raise_if_any(load_id)
    options = record.options
    request = record.request
    repeated = _answer(session, options, request)
    if repeated is not None:
        with tidying(f"files of the load {load_id} remain"):
            Journal(session.root, load_id).end()
        return repeated
    _refuse_taken_rejects(session, options, load_id)
    _enter(session, options)
    with own_files(session.root, load_id), only_driver(session, load_id, new=False):
        # Read again now that nobody else can be at it: the load may have ended meanwhile.
        record = read_record(session, load_id)
        executor = _executor(session, by, sum(each.size for each in record.inputs))
        workspace = None if record.workspace is None else Path(record.workspace)
        load = Load(
            session,
            options,
            executor,
            workspace,
            OperationId(load_id),
            earlier=record,
            cancel=by.cancel,
            course=by.course,
            request=request,
            model=by.model,
        )
        return _run(load, lambda: list(record.splits))


def _run(load: Load, make_splits: Callable[[], list[Split]]) -> LoadReport:
    try:
        # Inside: no interrupt comes between making and removing.
        if load.workspace is not None:
            load.workspace.mkdir(parents=True, exist_ok=True)
        return load.run(make_splits())
    finally:
        try:
            _put_away(load)
        except KeyboardInterrupt:  # it came when the load had ended already
            _put_away(load)
            raise


def _put_away(load: Load) -> None:
    """Take away the journal and the workspace of a load that ended, unless another run may need them."""
    if load.resumable:
        return
    with tidying(f"files of the load {load.operation_id} remain"):
        load.journal.end()
    if load.workspace is not None:
        shutil.rmtree(load.workspace, ignore_errors=True)


def _refuse_taken_rejects(session: GraphSession, options: LoadOptions, load_id: str) -> None:
    """Before any work: refused records of another load are not written over."""
    if options.rejects is not None:
        RejectsFile(options.rejects, Journal(session.root, load_id)).refuse_if_taken()


def _is_stream(sources: Sources) -> TypeGuard[BinaryIO]:
    return hasattr(sources, "read")


def _listed(sources: Any) -> Sequence[str | os.PathLike[str]]:
    listed: list[Any] = list(sources) if _is_many(sources) else [sources]
    for source in listed:
        if not isinstance(source, (str, os.PathLike)):
            raise BadRequest(
                f"{type(source).__name__} is not an input",
                hint="give paths, a stream of bytes, or rows to load_frames",
            )
    return listed


def _is_many(sources: Any) -> bool:
    return isinstance(sources, Iterable) and not isinstance(sources, (str, os.PathLike, bytes, bytearray))


def _executor(session: GraphSession, by: RunBy, size: int) -> Executor:
    match word(EngineName, by.engine, "engine"):
        case EngineName.LOCAL:
            return LocalExecutor("load")
        case EngineName.SPARK:
            quick = size <= QUICK_START_BYTES_MAX
            runtime = spark_runtime(session.settings, session=by.spark, quick_start=quick)
            return SparkExecutor(runtime, "load")


def _workspace(session: GraphSession, executor: Executor, load_id: str) -> Path | None:
    """A directory for spooled input and key facts that every task sees; None: they go through the store."""
    if session.root.is_local:
        return Path(session.root.local_path(LOADS)) / load_id
    if executor.shares_files:
        return session.settings.merge_staging_dir / f"omnigraph-load-{load_id}"
    return None


def _seen_by_tasks(workspace: Path | None) -> Path:
    if workspace is None:
        raise BadRequest(
            "a stream or a frame cannot be loaded through a cluster into an object store",
            hint="write it to files that the cluster sees, and load those",
        )
    return workspace
