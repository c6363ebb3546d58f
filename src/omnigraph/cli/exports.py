"""The export command."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.engines import SparkConf, SparkMaster, spark_settings
from omnigraph.cli.loads import DataFormat
from omnigraph.cli.options import Json, Store, teach
from omnigraph.cli.parameters import (
    Param,
    Params,
    ParamsFile,
    QueryFile,
    QueryName,
    QueryText,
    parameters,
    query_source,
)
from omnigraph.cli.targets import addressed, reading
from omnigraph.core.errors import AmbiguousTarget, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from omnigraph.api.graph import Graph
    from omnigraph.pipeline.export import ExportReport


class ExportEngine(StrEnum):
    """Who writes the files."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


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
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The same as NAME.")] = None,
    params: Params = None,
    params_file: ParamsFile = None,
    param: Param = None,
    store: Store = None,
    branch: Annotated[
        str | None, typer.Option("--branch", metavar="NAME", help="The branch to read; main if not given.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", "--snapshot", metavar="ID", help="Read the state of this commit.")
    ] = None,
    types: Annotated[
        list[str] | None, typer.Option("--type", metavar="TYPE", help="Only this type. Repeatable.")
    ] = None,
    form: Annotated[
        DataFormat | None,
        typer.Option("--format", help="What is written; else by the end of --out."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="PATH", help="A file or directory; it appears when complete."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an export that is at PATH already.")
    ] = False,
    engine: Annotated[
        ExportEngine, typer.Option("--engine", help="Spark, this process, or by size; Spark needs --out.")
    ] = ExportEngine.AUTO,
    spark_master: SparkMaster = None,
    spark_conf: SparkConf = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing on stderr.")] = False,
    as_json: Json = False,
) -> None:
    """Write what a graph holds."""
    if branch is not None and at is not None:
        raise AmbiguousTarget("--branch and --at exclude each other", hint="give one of them")
    if query_name is not None and name is not None:
        raise UsageError("the query is named twice", hint="give NAME or --name")
    queried = file is not None or text is not None
    query = query_source(file, text) if queried else None
    values = parameters(params, params_file, param)
    chosen = query_name or name
    if query is None and (chosen is not None or values):
        raise UsageError("a name and parameters need a query", hint="pass -e 'query …' or --query FILE")
    if query is not None and types:
        raise UsageError("--type and a query exclude each other")
    if out is None:
        if as_json or overwrite or engine is ExportEngine.SPARK:
            raise UsageError("--json, --overwrite and --engine spark describe files", hint="pass --out PATH")
        with reading(store) as graph:
            for chunk in _stream(graph, query, chosen, values, types, branch, at, form):
                output.write_bytes(chunk)
        return
    from omnigraph.api.graph import open_read_only
    from omnigraph.cli.progress import TerminalListener
    from omnigraph.core.events import listen

    settings = spark_settings(spark_master, spark_conf)
    listener = TerminalListener(quiet=quiet)
    uri = addressed(store)
    with open_read_only(uri, settings=settings) as graph, listen(listener, everywhere=True):
        try:
            report = graph.export_to(
                out,
                format=None if form is None else form.value,
                types=types or None,
                query=query,
                name=chosen,
                params=values if query is not None else None,
                branch=branch,
                at=at,
                engine=engine.value,
                overwrite=overwrite,
            )
        finally:
            listener.clear()
    if as_json:
        output.document({"uri": uri, **report.to_dict()})
    elif not quiet:
        _note(report)


def _stream(
    graph: "Graph",
    query: str | None,
    name: str | None,
    values: "Mapping[str, Any]",
    types: list[str] | None,
    branch: str | None,
    at: str | None,
    form: DataFormat | None,
) -> "Iterator[bytes]":
    chosen = form or DataFormat.JSONL
    if chosen is DataFormat.PARQUET:
        raise UsageError("parquet is not a stream", hint="pass --out PATH")
    if query is None:
        return graph.export_chunks(branch=branch, at=at, types=types or None, format=chosen.value)
    from omnigraph.pipeline.export import encoded_text
    from omnigraph.pipeline.plan import SourceFormat

    rows = graph.query(query, values, name=name, branch=branch, at=at)
    return encoded_text(rows, SourceFormat(chosen.value))


def _note(report: "ExportReport") -> None:
    rows = output.counted(report.rows, "row")
    where = f"{report.target} ({report.format}, {report.engine})"
    output.note(f"exported {rows}, {report.bytes:,} bytes, to {where}; commit {report.commit_id}")
