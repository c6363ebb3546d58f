"""The load command."""

import contextlib
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from omnigraph.cli import output
from omnigraph.cli.engines import SparkConf, SparkMaster, spark_settings
from omnigraph.cli.opening import addressed, confirm, reading, writing
from omnigraph.cli.options import (
    Actor,
    BlobSource,
    Branch,
    IdempotencyKey,
    Json,
    Quiet,
    Store,
    Timeout,
    Yes,
    teach,
)
from omnigraph.cli.sources import STDIN
from omnigraph.core.errors import OmnigraphError, UsageError
from omnigraph.core.limits import QUICK_START_BYTES_MAX
from omnigraph.core.load_options import ColumnWords, EngineName, LoadMode, OnDuplicate, SourceFormat

if TYPE_CHECKING:
    from collections.abc import Generator

    from omnigraph.api.graph import Graph
    from omnigraph.cli.addressing import Address
    from omnigraph.core.settings import Settings
    from omnigraph.pipeline.report import LoadReport


_MODES: Final = (
    "say what happens to entities that exist: --mode append (refuse them), merge, patch or overwrite"
)
_DATA: Final = "name a file, a directory or a pattern, or - for stdin: --data people.jsonl"
PROBLEMS_SHOWN_PER_KIND_MAX: Final = 20
"""Problems of one kind that the terminal shows; --json has up to a hundred."""


ModeOption = Annotated[
    LoadMode | None, typer.Option("--mode", help="What happens to entities that exist already.")
]
Data = Annotated[
    list[str] | None,
    typer.Option("--data", metavar="FILE", help="A file, directory or pattern; - for stdin. Repeatable."),
]
Base = Annotated[
    str | None, typer.Option("--from", metavar="BRANCH", help="Make a missing branch from this one.")
]
Form = Annotated[SourceFormat | None, typer.Option("--format", help="How the input is read.")]
OneType = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="The type of a one-type file.")]
Delimiter = Annotated[
    str | None,
    typer.Option("--delimiter", metavar="CHAR", help="Between the cells of CSV; a comma if not given."),
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="A,B,C", help="The columns of a CSV file that has no header."),
]
Null = Annotated[
    list[str] | None,
    typer.Option(
        "--null", metavar="TEXT", help="A cell of CSV that means null, as an empty one does. Repeatable."
    ),
]
Rename = Annotated[
    list[str] | None,
    typer.Option(
        "--rename", metavar="FILE=PROPERTY", help="A column of the file is this property. Repeatable."
    ),
]
IgnoreExtra = Annotated[
    bool, typer.Option("--ignore-extra", help="Pass over columns that the type does not have.")
]
ReplaceType = Annotated[
    list[str] | None,
    typer.Option("--replace-type", metavar="TYPE", help="With overwrite: empty this type too. Repeatable."),
]
Rejects = Annotated[
    str | None,
    typer.Option("--rejects", metavar="DIR", help="Set refused records aside in DIR/rejects.jsonl."),
]
MaxRejects = Annotated[
    int | None,
    typer.Option(
        "--max-rejects", metavar="N", min=0, help="Refuse the load when more records than this are."
    ),
]
OnDuplicateOption = Annotated[
    OnDuplicate | None,
    typer.Option("--on-duplicate", help="Of records that mean one entity, refuse all or keep one."),
]
Resume = Annotated[
    str | None, typer.Option("--resume", metavar="ID", help="Go on with a load that died before its commit.")
]
Resumable = Annotated[
    bool, typer.Option("--resumable", help="List the loads that can be resumed, and load nothing.")
]
EngineOption = Annotated[
    EngineName, typer.Option("--engine", help="Spark, or this process for small inputs.")
]


def register(app: typer.Typer, spark_app: typer.Typer) -> None:
    """Add the commands of this module to the tree."""
    spark_app.command(
        "doctor",
        help=teach(
            "Say whether a load on Spark would run here, how long Spark takes to start, and what to fix.",
            "omnigraph spark doctor",
            more="Exit status 1 when a load could not run.",
        ),
    )(spark_doctor)
    app.command(
        "load",
        help=teach(
            "Load files as one atomic commit, or change nothing.",
            "omnigraph load --data people.jsonl --mode merge --store kb.omni",
            "omnigraph load --data people.csv --type Person --mode append --engine local --store kb.omni",
            "omnigraph load --resume 01JD8W3V4Z6N7R5T9K2M1Q0XYA --store kb.omni",
            more=(
                "append refuses existing ids, merge replaces them, patch keeps what the input leaves out,"
                " overwrite replaces every type the input touches."
            ),
        ),
    )(load)
    app.command(
        "embed",
        help=teach(
            "Make all vectors of an @embed property again, on a branch, compare them, and merge them.",
            "omnigraph embed Doc.vec --store kb.omni",
            "omnigraph embed Doc.vec --model small-2 --no-merge --store kb.omni",
            more="Run again after it was stopped, it goes on from there.",
        ),
    )(embed)


def embed(
    target: Annotated[str, typer.Argument(metavar="TYPE.PROPERTY", help="A Vector with @embed.")],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="The model, if not that of OMNIGRAPH_EMBED_MODEL."),
    ] = None,
    store: Store = None,
    branch: Branch = "main",
    no_merge: Annotated[
        bool, typer.Option("--no-merge", help="Leave the vectors on the working branch.")
    ] = False,
    engine: EngineOption = EngineName.SPARK,
    actor: Actor = None,
    timeout: Timeout = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make all vectors of a property again."""
    with writing(store, "embed", quiet=quiet, engine=engine.value) as graph:
        report = graph.embed(
            target,
            model=model,
            branch=branch,
            merge=not no_merge,
            actor=actor,
            engine=engine.value,
            timeout_s=timeout,
        )
    if as_json:
        output.document(report.to_dict())
        return
    alike = "" if report.similarity is None else f", mean cosine with the former ones {report.similarity:.3f}"
    texts, vectors = output.counted(report.rows, "text"), output.counted(report.changed, "vector")
    output.line(f"embedded {texts} of {target} with {report.model}; {vectors} changed{alike}")
    if report.merged:
        output.line(f"merged into {report.branch}; commit {report.commit}")
    else:
        output.line(f"on branch {report.working_branch}; `omnigraph branch merge {report.working_branch}`")


def load(
    mode: ModeOption = None,
    data: Data = None,
    store: Store = None,
    branch: Branch = "main",
    base: Base = None,
    form: Form = None,
    type_name: OneType = None,
    delimiter: Delimiter = None,
    columns: Columns = None,
    null: Null = None,
    rename: Rename = None,
    ignore_extra: IgnoreExtra = False,
    replace_type: ReplaceType = None,
    rejects: Rejects = None,
    max_rejects: MaxRejects = None,
    on_duplicate: OnDuplicateOption = None,
    resume: Resume = None,
    resumable: Resumable = False,
    engine: EngineOption = EngineName.SPARK,
    spark_master: SparkMaster = None,
    spark_conf: SparkConf = None,
    blob_source: BlobSource = None,
    actor: Actor = None,
    idempotency_key: IdempotencyKey = None,
    timeout: Timeout = None,
    yes: Yes = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Load files into a graph. Exit status 1 when every record was refused."""
    uri = addressed(store)
    if resumable:
        _list_resumable(uri, as_json=as_json)
        return 0
    sources = _sources(mode, data, resume)
    if mode is LoadMode.OVERWRITE:
        confirm("load --mode overwrite", uri, yes=yes, as_json=as_json)
    opened = _opened(uri, engine, spark_settings(spark_master, spark_conf), data, blob_source, quiet=quiet)
    with _telling_problems(as_json=as_json), opened as graph:
        report = graph.load(
            sources,
            mode="" if mode is None else mode.value,
            branch=branch,
            base=base,
            actor=actor,
            engine=engine.value,
            replace_types=replace_type or (),
            rejects=rejects,
            max_rejects=max_rejects,
            on_duplicate=None if on_duplicate is None else on_duplicate.value,
            resume=resume,
            idempotency_key=idempotency_key,
            timeout_s=timeout,
            format=None if form is None else form.value,
            type_name=type_name,
            **_form(delimiter, columns, null, rename, ignore_extra=ignore_extra),
        )
    _show(uri, report, as_json=as_json)
    return 1 if report.records_refused and not report.total_entities else 0


def _opened(
    uri: "Address",
    engine: EngineName,
    settings: "Settings",
    data: list[str] | None,
    blob_sources: list[str] | None,
    *,
    quiet: bool,
) -> "contextlib.AbstractContextManager[Graph]":
    """The graph, open for writing once Spark is on its way."""
    starts = engine is EngineName.SPARK and uri.server is None
    before = partial(_start_spark, settings, data) if starts else None
    return writing(
        uri, "load", quiet=quiet, engine=engine, settings=settings, blob_sources=blob_sources, before=before
    )


def _form(
    delimiter: str | None,
    columns: str | None,
    nulls: list[str] | None,
    rename: list[str] | None,
    *,
    ignore_extra: bool,
) -> ColumnWords:
    """How the columns of the input are read."""
    return {
        "delimiter": delimiter,
        "columns": None if columns is None else columns.split(","),
        "nulls": nulls or (),
        "rename": _renamed(rename),
        "ignore_extra": ignore_extra,
    }


@contextlib.contextmanager
def _telling_problems(*, as_json: bool) -> "Generator[None]":
    """Show what is wrong with the input before the error that stands for all of it."""
    try:
        yield
    except OmnigraphError as error:
        if not as_json:
            _show_problems(error)
        raise


def _renamed(given: list[str] | None) -> dict[str, str]:
    """`FILE=PROPERTY` of each --rename. Raises UsageError."""
    pairs = [each.partition("=") for each in given or ()]
    for name, _, meant in pairs:
        if not name or not meant:
            raise UsageError("--rename takes FILE=PROPERTY, a column of the file and a property of the type")
    return {name: meant for name, _, meant in pairs}


def _show_problems(error: OmnigraphError) -> None:
    """What is wrong with the input, in its order; the error that follows is the headline."""
    totals: dict[str, int] = error.details.get("problem_totals", {})
    if sum(totals.values()) == 1 and error.kind in {"load_record", "constraint_violation", "key_conflict"}:
        return  # the headline has its place and says it all
    chosen: list[dict[str, Any]] = []
    left: dict[str, int] = {}
    for kind, total in totals.items():
        shown = [each for each in error.details["problems"] if each["kind"] == kind]
        chosen += shown[:PROBLEMS_SHOWN_PER_KIND_MAX]
        left[kind] = total - min(len(shown), PROBLEMS_SHOWN_PER_KIND_MAX)
    for problem in sorted(chosen, key=lambda each: (each.get("file", ""), each.get("line", 0))):
        place = ":".join(str(problem[name]) for name in ("file", "line") if name in problem)
        output.note(f"{place or 'graph'}: {problem['message']} ({problem['kind']})")
    for kind, number in left.items():
        if number:
            output.note(f"and {number:,} more of kind {kind}")


def _sources(
    mode: LoadMode | None, data: list[str] | None, resume: str | None
) -> "BinaryIO | list[str] | None":
    """The input as the load takes it. Only a resumed load knows mode and input already."""
    if resume is None:
        for option, value, hint in (("--mode", mode, _MODES), ("--data", data, _DATA)):
            if not value:
                raise UsageError(f"missing option '{option}'", hint=hint)
    if data and STDIN in data:
        if len(data) > 1:
            raise UsageError("stdin is loaded alone")
        return sys.stdin.buffer
    return data or None


def _start_spark(settings: "Settings", data: list[str] | None) -> None:
    """Let the JVM come up while the graph is opened: the two have nothing to wait for in each other."""
    from omnigraph.pipeline.spark.session import start_early

    size = 0
    for name in data or ():
        with contextlib.suppress(OSError):
            size += Path(name).stat().st_size
    start_early(settings, quick_start=size <= QUICK_START_BYTES_MAX)


def _list_resumable(uri: str, *, as_json: bool) -> None:
    with reading(uri) as graph:
        found = graph.resumable_loads()
    if as_json:
        output.document({"uri": uri, "loads": [each.to_dict() for each in found]})
        return
    for each in found:
        staged = f"{each.splits_staged}/{each.splits} staged"
        output.line(f"{each.id}  {each.mode} on {each.branch}, {staged}: {', '.join(each.sources)}")


def load_dict(uri: str, report: "LoadReport") -> dict[str, Any]:
    """The JSON form of a load; `base_branch` only when one was given."""
    form = {
        name: value for name, value in report.to_dict().items() if name != "base_branch" or value is not None
    }
    return {"uri": uri, **form}


def _show(uri: str, report: "LoadReport", *, as_json: bool) -> None:
    if as_json:
        output.document(load_dict(uri, report))
        return
    if report.repeated and report.commit is not None:
        output.line(f"loaded nothing: commit {report.commit.id} is of an earlier load with this key")
        return
    for line in str(report).splitlines():
        output.line(line)


def spark_doctor(as_json: Json = False) -> int:
    """Look at Java and Spark, and run one small job."""
    from omnigraph.pipeline.spark.doctor import doctor

    report = doctor(spark_settings(None, None))
    if as_json:
        output.document(report.to_dict())
        return 0 if report.ok else 1
    output.line(f"java     {report.java or 'none'} ({report.java_origin or 'nowhere'})")
    output.line(f"spark    {report.spark_version or 'none'} on {report.master}")
    output.line(f"arrow    {report.pyarrow_version}, pandas {report.pandas_version or 'none'}")
    output.line(f"classes  {'archived' if report.archive_present else 'not archived yet'}")
    if report.start_seconds is not None and report.first_job_seconds is not None:
        output.line(f"start    {report.start_seconds:.1f} s, first job {report.first_job_seconds:.1f} s")
    for line in report.to_fix:
        output.line(f"to fix   {line}")
    output.line("a load on Spark can run" if report.ok else "a load on Spark cannot run")
    return 0 if report.ok else 1
