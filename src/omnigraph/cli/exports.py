"""The export command."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.engines import SparkConf, SparkMaster, spark_settings
from omnigraph.cli.opening import addressed, reading
from omnigraph.cli.options import At, Json, ReadBranch, Store, Types, check_one_state, teach
from omnigraph.cli.parameters import (
    Param,
    Params,
    ParamsFile,
    QueryFile,
    QueryName,
    QueryText,
    naming,
    parameters,
    query_source,
)
from omnigraph.core.errors import UsageError
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.load_options import SourceFormat

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from omnigraph.api.graph import Graph
    from omnigraph.pipeline.output.export import ExportReport


class ExportEngine(StrEnum):
    """Who writes the files."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


NameOption = Annotated[str | None, typer.Option("--name", metavar="NAME", help="The same as NAME.")]
Form = Annotated[
    SourceFormat | None, typer.Option("--format", help="What is written; else by the end of --out.")
]
Out = Annotated[
    str | None, typer.Option("--out", metavar="PATH", help="A file or directory; it appears when complete.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an export that is at PATH already.")]
EngineOption = Annotated[
    ExportEngine, typer.Option("--engine", help="Spark, this process, or by size; Spark needs --out.")
]
Silent = Annotated[bool, typer.Option("--quiet", help="Say nothing on stderr.")]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is to be exported, as a user said it."""

    query: str | None
    name: str | None
    values: dict[str, Any]
    types: list[str] | None
    branch: str | None
    at: str | None
    form: SourceFormat | None


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the tree."""
    app.command(
        "export",
        help=teach(
            "Write a graph, some types of it or the result of a query, at one commit.",
            "omnigraph export --store kb.omni > kb.jsonl",
            "omnigraph export --type Person --out people.csv --store kb.omni",
            "omnigraph export --format parquet --out backup --at 01JD8W3V4Z6N7R5T9K2M1Q0XYA --store kb.omni",
            "omnigraph export by_city --query queries.gq -p city=Oslo --out oslo.parquet --store kb.omni",
            more=(
                "Without --out, JSON lines or CSV go to stdout. An --out that ends like a file is one file;"
                " any other is a directory with files per type. It appears when it is complete."
            ),
        ),
    )(export)


def export(
    query_name: QueryName = None,
    file: QueryFile = None,
    text: QueryText = None,
    name: NameOption = None,
    params: Params = None,
    params_file: ParamsFile = None,
    param: Param = None,
    store: Store = None,
    branch: ReadBranch = None,
    at: At = None,
    types: Types = None,
    form: Form = None,
    out: Out = None,
    overwrite: Overwrite = False,
    engine: EngineOption = ExportEngine.AUTO,
    spark_master: SparkMaster = None,
    spark_conf: SparkConf = None,
    quiet: Silent = False,
    as_json: Json = False,
) -> None:
    """Write what a graph holds."""
    check_one_state(branch, at)
    if query_name is not None and name is not None:
        raise UsageError("the query is named twice", hint="give NAME or --name")
    query = query_source(None, file, text) if file is not None or text is not None else None
    values = parameters(params, params_file, param)
    wanted = _Wanted(query, query_name or name, values, types or None, branch, at, form)
    _check(wanted)
    if out is None:
        if as_json or overwrite or engine is ExportEngine.SPARK:
            raise UsageError("--json, --overwrite and --engine spark describe files", hint="pass --out PATH")
        # Rows on a terminal and a bar over them would be read by nobody.
        with reading(store, quiet=quiet or sys.stdout.isatty()) as graph, naming(file, param):
            for chunk in _stream(graph, wanted):
                output.write_bytes(chunk)
        return
    uri = addressed(store)
    settings = spark_settings(spark_master, spark_conf)
    with naming(file, param):
        opened = reading(store, settings=settings, quiet=quiet)
        report = _write(opened, wanted, out, engine, overwrite=overwrite)
    if as_json:
        output.document({"uri": uri, **report.to_dict()})
    elif not quiet:
        rows = output.counted(report.rows, "row")
        where = f"{report.target} ({report.format}, {report.engine})"
        output.note(f"exported {rows}, {report.bytes:,} bytes, to {where}; commit {report.commit_id}")


def _check(wanted: _Wanted) -> None:
    if wanted.query is None and (wanted.name is not None or wanted.values):
        hint = "pass -e 'query …' or --query FILE"
        if wanted.name is not None and Path(wanted.name).suffix:
            hint = f"what is exported is written to a file with --out {wanted.name}"
        raise UsageError("a name and parameters need a query", hint=hint)
    if wanted.query is not None and wanted.types:
        raise UsageError("--type and a query exclude each other")


def _stream(graph: "Graph", wanted: _Wanted) -> "Iterator[bytes]":
    chosen = wanted.form or SourceFormat.JSON_LINES
    if chosen is SourceFormat.PARQUET:
        raise UsageError("parquet is not a stream", hint="pass --out PATH")
    if wanted.query is None:
        return graph.export_chunks(
            branch=wanted.branch, at=wanted.at, types=wanted.types, format=chosen.value
        )
    from omnigraph.pipeline.output.export import encoded_text

    rows = graph.query(wanted.query, wanted.values, name=wanted.name, branch=wanted.branch, at=wanted.at)
    return encoded_text(rows, chosen)


def _write(
    opened: "AbstractContextManager[Graph]",
    wanted: _Wanted,
    out: str,
    engine: ExportEngine,
    *,
    overwrite: bool,
) -> "ExportReport":
    with opened as graph:
        return graph.export_to(
            out,
            format=None if wanted.form is None else wanted.form.value,
            types=wanted.types,
            query=wanted.query,
            name=wanted.name,
            params=wanted.values if wanted.query is not None else None,
            branch=wanted.branch,
            at=wanted.at,
            engine=engine.value,
            overwrite=overwrite,
        )
