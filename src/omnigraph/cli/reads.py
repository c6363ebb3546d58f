"""The query command."""

import os
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, cast

from omnigraph.api.texts import Text
from omnigraph.cli import output
from omnigraph.cli.addressing import addressed, given
from omnigraph.cli.config import PROFILE_VARIABLE, load
from omnigraph.cli.declared import Option
from omnigraph.cli.opening import reading
from omnigraph.cli.options import At, Json, ReadBranch, Store, Timeout, check_one_state, teach
from omnigraph.cli.parameters import (
    Param,
    Params,
    ParamsFile,
    QueryFile,
    QueryName,
    QueryText,
    is_stored,
    naming,
    parameters,
    query_source,
)
from omnigraph.core.errors import UsageError

if TYPE_CHECKING:
    import typer

    from omnigraph.client.remote import RemoteGraph
    from omnigraph.engine.read.result import Rows


class Format(StrEnum):
    """How rows are printed."""

    TABLE = "table"
    KV = "kv"
    CSV = "csv"
    JSONL = "jsonl"
    JSON = "json"
    ARROW = "arrow"


def register(app: "typer.Typer") -> None:
    """Add the commands of this module to the tree."""
    app.command(
        "query",
        help=teach(
            "Run a query that reads, and print its rows.",
            "omnigraph query document --query queries.gq -p slug=hello --store kb.omni",
            "omnigraph query -e 'query all() { match { $p: Person } return { $p.name } }' --store kb.omni",
            "omnigraph query document -p slug=hello --server quay",
            more="A NAME alone is a stored query of the server."
            " The whole query sees one commit: the head of --branch, or the one named by --snapshot.",
        ),
    )(query)


def query(
    name: QueryName = None,
    file: QueryFile = None,
    text: QueryText = None,
    params: Params = None,
    params_file: ParamsFile = None,
    param: Param = None,
    store: Store = None,
    branch: ReadBranch = None,
    at: At = None,
    form: Annotated[Format | None, Option("--format", help="How to print the rows.")] = None,
    csv_null: Annotated[str, Option("--csv-null", help="What CSV prints for null.")] = "null",
    with_metadata: Annotated[
        bool, Option("--with-metadata", help="Begin jsonl output with an object about the result.")
    ] = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Run a query that reads."""
    if as_json and form is not None:
        raise UsageError("--json and --format exclude each other")
    check_one_state(branch, at)
    chosen = Format.JSON if as_json else form or default_format()
    if chosen is Format.ARROW and sys.stdout.isatty():
        raise UsageError("arrow is not for a terminal", hint="send it to a file or a pipe")
    asked: dict[str, Any] = {"branch": branch, "at": at, "timeout_s": timeout}
    stored = is_stored(name, file, text, store)
    source = Text("") if stored else query_source(name, file, text)
    values = parameters(params, params_file, param)
    address = addressed(store)
    with reading(address) as graph, naming(file, param):
        if chosen is Format.JSON and address.server is not None:
            # As the server says it: a command that prints JSON need not load Arrow.
            there = cast("RemoteGraph", graph)
            said = (
                there.queries.run_document(str(name), values, **asked)
                if stored
                else there.query_document(source, values, name=name, **asked)
            )
            output.document(said)
            return
        if stored:
            rows = cast("RemoteGraph", graph).queries.run(str(name), values, **asked)
        else:
            rows = graph.query(source, values, name=name, **asked)
    print_rows(rows, chosen, csv_null=csv_null, with_metadata=with_metadata)


def default_format() -> Format:
    """What the active profile or the defaults of the personal file say, else a table."""
    config = load()
    name = given.get().profile or os.environ.get(PROFILE_VARIABLE)
    profile = config.profiles.get(name or "")
    chosen = (profile and profile.output) or config.defaults.get("output")
    return Format(chosen or Format.TABLE)


def print_rows(rows: "Rows", form: Format, *, csv_null: str, with_metadata: bool) -> None:
    """Print a result in the chosen form."""
    from omnigraph.cli import tables

    match form:
        case Format.JSON:
            output.document(rows.envelope())
            return
        case Format.ARROW:
            output.write_bytes(_arrow_stream(rows))
            return
        case Format.TABLE:
            defaults = load().defaults
            lines = tables.table_lines(
                rows,
                width_max=defaults.get("table_max_column_width", tables.COLUMN_WIDTH_MAX),
                wrap=defaults.get("table_cell_layout") == "wrap",
            )
        case Format.KV:
            lines = tables.kv_lines(rows)
        case Format.CSV:
            lines = tables.csv_lines(rows, null=csv_null)
        case Format.JSONL:
            lines = tables.jsonl_lines(rows, with_metadata=with_metadata)
    for line in lines:
        output.line(line)


def _arrow_stream(rows: "Rows") -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    table = rows.to_arrow()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()
