"""The clone command."""

from typing import Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.exports import Silent
from omnigraph.cli.options import Json, teach
from omnigraph.cli.progress import reporting

Branches = Annotated[
    list[str] | None,
    typer.Option(
        "--branch",
        metavar="NAME",
        help="Only this branch, main, and those it grew out of. Repeatable.",
    ),
]
End = Annotated[
    str | None,
    typer.Option("--snapshot", "--at", metavar="ID", help="End with this commit or tag, on its branch."),
]
HeadsOnly = Annotated[
    bool, typer.Option("--heads-only", help="Only what the branches show now: no history, no tags.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the tree."""
    app.command(
        "clone",
        help=teach(
            "Copy a graph into another place, beside its writers, as a graph of its own.",
            "omnigraph clone kb.omni copy.omni",
            "omnigraph clone kb.omni s3://backups/kb",
            "omnigraph clone s3://backups/kb restored.omni --heads-only",
            "omnigraph clone kb.omni then.omni --at v1",
            more=(
                "It copies one moment: every branch, tag and commit of it. Run again, it copies only what is"
                " new; stopped, it goes on from there. Nothing can be opened at DST before it is complete."
            ),
        ),
    )(clone)


def clone(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A directory or s3://bucket/prefix.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="An empty or new place, or an earlier clone.")],
    branch: Branches = None,
    at: End = None,
    heads_only: HeadsOnly = False,
    quiet: Silent = False,
    as_json: Json = False,
) -> None:
    """Copy a graph into another place."""
    from omnigraph.api.clones import clone as copy

    with reporting(quiet=quiet):
        report = copy(source, target, branches=branch or None, at=at, heads_only=heads_only)
    if as_json:
        output.document(report.to_dict())
        return
    for each in report.branches:
        output.line(f"{each.graph_commit_id}  {each.branch}")
    files = output.counted(report.files_copied, "file")
    kept = output.counted(report.files, "file")
    output.line(f"cloned to {target}: copied {files}, {report.bytes_copied:,} bytes, of {kept}")
