"""Commands that say in which shape a graph is. They open it read-only and read no row."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.opening import reading
from omnigraph.cli.options import At, Json, ReadBranch, Store, check_one_state, teach
from omnigraph.cli.tables import display_width

if TYPE_CHECKING:
    from omnigraph.maintenance.index_report import IndexesReport
    from omnigraph.maintenance.stats import StatsReport

SomeTypes = Annotated[list[str] | None, typer.Argument(metavar="[TYPE]...", help="Only these types.")]
EveryBranch = Annotated[
    str | None, typer.Option("--branch", metavar="NAME", help="Only this branch; all of them if not given.")
]

_Row = Sequence[str | int]


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the tree."""
    app.command(
        "indexes",
        help=teach(
            "Show the indexes of every type: which are declared, which are built, what they cover.",
            "omnigraph indexes --store kb.omni",
            "omnigraph indexes Person --branch review --json --store kb.omni",
            more="An index never decides an answer, only its speed: rows it does not cover are scanned.",
        ),
    )(indexes)
    app.command(
        "stats",
        help=teach(
            "Show how large a graph is: rows, bytes, fragments, versions and indexes, per type and branch.",
            "omnigraph stats --store kb.omni",
            "omnigraph stats --branch main --json --store kb.omni",
            more=(
                "It reads metadata and lists the files. `omnigraph optimize` drops deleted rows and makes few"
                " fragments of many."
            ),
        ),
    )(stats)


def indexes(
    types: SomeTypes = None,
    branch: ReadBranch = None,
    at: At = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show the indexes of a branch."""
    check_one_state(branch, at)
    with reading(store) as graph:
        uri, report = graph.uri, graph.indexes(branch=branch, at=at, types=types or None)
    if as_json:
        output.document({"uri": uri, **report.to_dict()})
        return
    for text in _aligned(_index_rows(report)):
        output.line(text)


def stats(
    branch: EveryBranch = None,
    at: At = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show how large a graph is."""
    check_one_state(branch, at)
    with reading(store) as graph:
        uri, report = graph.uri, graph.stats(branch=branch, at=at)
    if as_json:
        output.document({"uri": uri, **report.to_dict()})
        return
    for text in _aligned(_table_rows(report)):
        output.line(text)
    output.line("")
    for text in _aligned(_stored_rows(report)):
        output.line(text)
    output.line(f"caches: {report.cache_file_bytes:,} bytes in files")


def _index_rows(report: "IndexesReport") -> list[_Row]:
    head = ("type", "column", "index", "kind", "state", "segments", "covered", "uncovered", "bytes")
    return [
        head,
        *(
            (
                column.type_name,
                column.column,
                each.name,
                each.kind,
                each.state.value,
                each.segments,
                each.covered,
                each.uncovered,
                each.bytes,
            )
            for column in report
            for each in column.indexes
        ),
    ]


def _table_rows(report: "StatsReport") -> list[_Row]:
    names = "branch type owner rows deleted fragments bytes versions indexes segments uncovered index-bytes"
    return [
        names.split(),
        *(
            (
                branch.branch,
                each.table_key,
                each.owner,
                each.rows,
                each.deleted_rows,
                each.fragments,
                each.bytes,
                each.versions,
                each.indexes,
                each.segments,
                each.uncovered_fragments,
                each.index_bytes,
            )
            for branch in report.branches
            for each in branch.tables
        ),
    ]


def _stored_rows(report: "StatsReport") -> list[_Row]:
    rows = [(each.name, each.files, each.bytes, each.cache_bytes) for each in report.stored]
    total = ("all", sum(row[1] for row in rows), sum(row[2] for row in rows), sum(row[3] for row in rows))
    return [("stored", "files", "bytes", "cache-bytes"), *rows, total]


def _aligned(rows: Sequence[_Row]) -> Iterator[str]:
    """The rows under each other: text to the left, numbers to the right; the first one names the columns."""
    texts = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in rows]
    widths = [max(map(display_width, column)) for column in zip(*texts, strict=True)]
    numbers = [isinstance(cell, int) for cell in rows[-1]]
    for row in texts:
        yield "  ".join(
            " " * (width - display_width(cell)) + cell
            if number
            else cell + " " * (width - display_width(cell))
            for cell, width, number in zip(row, widths, numbers, strict=True)
        ).rstrip()
