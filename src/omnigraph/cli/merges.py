"""Commands that delete and merge branches."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.failures import CONFLICTS_SHOWN_MAX, conflict_lines
from omnigraph.cli.opening import addressed, confirm, reading, writing
from omnigraph.cli.options import Actor, Json, Quiet, Store, Yes, teach
from omnigraph.core.errors import OmnigraphError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnigraph.api.graph import Graph


def register(branch_app: typer.Typer) -> None:
    """Add the commands of this module to the tree."""
    branch_app.command(
        "delete",
        help=teach(
            "Delete a branch. What it shares with others stays.",
            "omnigraph branch delete review --store kb.omni",
        ),
    )(branch_delete)
    branch_app.command(
        "restore",
        help=teach(
            "Make a branch show an earlier state again, as a new commit.",
            "omnigraph branch restore main --to before-the-import --store kb.omni",
            more="What the branch showed stays in its history: restore to that commit to have it back.",
        ),
    )(branch_restore)
    branch_app.command(
        "merge",
        help=teach(
            "Merge a branch into another as one commit, or change nothing.",
            "omnigraph branch merge review --store kb.omni",
            "omnigraph branch merge review --dry-run --conflicts conflicts.json --store kb.omni",
            "omnigraph branch merge review --on-conflict theirs --store kb.omni",
            more="ours is the branch merged into, theirs the one merged. Conflicts: exit status 3.",
        ),
    )(branch_merge)


def branch_restore(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The branch.")],
    to: Annotated[
        str, typer.Option("--to", metavar="REF", help="What it shall show: a tag, a commit or a branch.")
    ],
    store: Store = None,
    actor: Actor = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Restore a branch."""
    with writing(store, "branch restore", quiet=quiet) as graph:
        report = graph.branches.restore(name, to=to, actor=actor)
    if as_json:
        output.document({"restored": name, "to": to, **report.to_dict()})
        return
    for key, counts in sorted(report.stats.items()):
        output.line(
            f"{key.replace(':', ' ')}: {', '.join(f'{rows:,} {what}' for what, rows in counts.items())}"
        )
    made = "it shows that already" if report.commit is None else f"commit {report.commit.id}"
    output.line(f"restored {name} to {to}; {made}")


def branch_delete(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The branch.")],
    store: Store = None,
    actor: Actor = None,
    yes: Yes = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Delete a branch."""
    uri = addressed(store)
    confirm("branch delete", uri, yes=yes, as_json=as_json)
    with writing(uri, "branch delete", quiet=quiet) as graph:
        done = graph.branches.delete(name)
    if as_json:
        output.document({"uri": uri, **done.to_dict(), "actor_id": actor})
    else:
        output.line(f"deleted branch {done.name}")


def branch_merge(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The branch whose changes are taken.")],
    into: Annotated[
        str, typer.Option("--into", metavar="BRANCH", help="The branch that gets them.")
    ] = "main",
    on_conflict: Annotated[
        list[str] | None,
        typer.Option("--on-conflict", metavar="SIDE", help="ours or theirs, or TYPE=SIDE. Repeatable."),
    ] = None,
    resolve: Annotated[
        str | None, typer.Option("--resolve", metavar="FILE", help="An edited list written by --conflicts.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen; write nothing.")] = False,
    conflicts: Annotated[
        str | None,
        typer.Option("--conflicts", metavar="FILE", help="With --dry-run: write conflicts here."),
    ] = None,
    delete_branch: Annotated[
        bool, typer.Option("--delete-branch", help="Delete the source branch after the merge.")
    ] = False,
    store: Store = None,
    actor: Actor = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Merge one branch into another."""
    sides = _sides(on_conflict or [])
    if conflicts is not None and not dry_run:
        raise UsageError("--conflicts goes with --dry-run")
    if dry_run:
        with reading(store) as graph:
            return _preview(graph, source, into, sides, resolve, conflicts, as_json=as_json)
    with writing(store, "branch merge", quiet=quiet) as graph:
        report = graph.branches.merge(source, into=into, actor=actor, on_conflict=sides, resolve=resolve)
        form = report.to_dict()
        if delete_branch:
            form |= _deleted(graph, report.source, actor)
    if as_json:
        output.document(form)
        return 0
    commit = "" if report.commit is None else f"; commit {report.commit.id}"
    output.line(f"merged {report.source} into {report.target}: {report.outcome.value}{commit}")
    if form.get("branch_deleted"):
        output.line(f"deleted branch {report.source}")
    return 0


def _sides(given: list[str]) -> "str | Mapping[str, str] | None":
    """One side for everything, or a side per type."""
    if not given:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    sides: dict[str, str] = {}
    for item in given:
        name, separator, side = item.partition("=")
        if not separator:
            raise UsageError("--on-conflict takes one side for everything, or TYPE=SIDE for each type")
        sides[name] = side
    return sides


def _deleted(graph: "Graph", name: str, actor: str | None) -> dict[str, Any]:
    """The outcome of the optional deletion. The merge has happened: a refusal is a warning."""
    try:
        graph.branches.delete(name, actor=actor)
    except OmnigraphError as error:
        output.note(f"warning: the merge is done, but branch {name} stays: {error.message}")
        return {"branch_deleted": False, "branch_delete_error": error.message}
    return {"branch_deleted": True}


def _preview(
    graph: "Graph",
    source: str,
    into: str,
    sides: "str | Mapping[str, str] | None",
    resolve: str | None,
    conflicts: str | None,
    *,
    as_json: bool,
) -> int:
    preview = graph.branches.preview(source, into=into, on_conflict=sides, resolve=resolve)
    if conflicts is not None:
        preview.write_conflicts(conflicts)
    if as_json:
        output.document(preview.to_dict())
    else:
        verdict = "nothing would be merged" if preview.conflicts_total else preview.outcome.value
        output.line(f"{preview.source} into {preview.target}: {verdict}")
        _show_stats(preview.stats, "without conflict: " if preview.conflicts_total else "")
        for conflict in preview.conflicts[:CONFLICTS_SHOWN_MAX]:
            for line in conflict_lines(conflict.to_dict()):
                output.line(line)
        if preview.conflicts_total:
            output.line(output.counted(preview.conflicts_total, "conflict"))
            output.note(f"hint: {preview.advice}")
    return 3 if preview.conflicts_total else 0


def _show_stats(stats: "Mapping[str, Mapping[str, int]]", before: str = "") -> None:
    for key, counts in stats.items():
        kind, _, name = key.partition(":")
        shown = ", ".join(f"{number:,} {word}" for word, number in counts.items())
        output.line(f"{before}{kind} {name}: {shown}")
