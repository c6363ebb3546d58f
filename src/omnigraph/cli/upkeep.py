"""Commands that copy a whole graph and keep it fast."""

from typing import TYPE_CHECKING, Annotated

import typer

from omnigraph.cli import inspection, output
from omnigraph.cli.exports import Silent
from omnigraph.cli.opening import addressed, writing
from omnigraph.cli.opening import confirm as ask
from omnigraph.cli.options import Actor, Branch, Json, Quiet, Store, Yes, duration, teach
from omnigraph.cli.progress import reporting
from omnigraph.core.errors import UsageError

if TYPE_CHECKING:
    from omnigraph.maintenance.cleanup_report import CleanupReport
    from omnigraph.maintenance.erase_report import EraseReceipt
    from omnigraph.maintenance.optimize import OptimizedTable

SomeTypes = Annotated[list[str] | None, typer.Argument(metavar="[TYPE]...", help="Only these types.")]

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
    app.command(
        "optimize",
        help=teach(
            "Write small fragments as few, drop deleted rows from files, bring indexes up to date.",
            "omnigraph optimize --store kb.omni",
            "omnigraph optimize Person Knows --branch review --store kb.omni",
            more="No row changes. Run twice, it has nothing to do. Writers wait for its commit only.",
        ),
    )(optimize)
    app.command(
        "repair",
        help=teach(
            "Look at tables that were moved without a publish, and put them in order.",
            "omnigraph repair --store kb.omni",
            "omnigraph repair --confirm --store kb.omni",
            "omnigraph repair --confirm --restore --store kb.omni",
            more=(
                "Without --confirm it only looks. With it, rewrites that kept every row are published;"
                " --force publishes the rest, --restore undoes it. Exit status 1 when a table was refused."
            ),
        ),
    )(repair)
    inspection.register(app)
    _register_removals(app)


def _register_removals(app: typer.Typer) -> None:
    app.command(
        "cleanup",
        help=teach(
            "Remove old states, and every file that only they are read from.",
            "omnigraph cleanup --keep 3 --older-than 7d --store kb.omni",
            "omnigraph cleanup --keep 3 --dry-run --store kb.omni",
            "omnigraph cleanup --keep 3 --older-than 7d --confirm --store kb.omni",
            more=(
                "Without --confirm it only looks. Each branch keeps its newest N states and those it showed"
                " within the time; heads, tags and merge bases always stay. --dry-run says of every file"
                " whether it goes, and why. Exit status 1 when a table failed; the others were cleaned."
            ),
        ),
    )(cleanup)
    app.command(
        "erase",
        help=teach(
            "Forget an entity: on every branch, in every older state, in every file of the graph.",
            "omnigraph erase Person ada --dry-run --store kb.omni",
            "omnigraph erase Person ada --store kb.omni",
            "omnigraph erase Person ada --tags --json --store kb.omni",
            more=(
                "Its edges go with it. The older states of its tables can be read no more; a tag that names"
                " one refuses the command, unless --tags lets it go. The receipt says what went, what was"
                " left and what lies outside the graph. Stopped, run it again. Exit status 1 when something"
                " of it was left."
            ),
        ),
    )(erase)


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


def optimize(
    types: SomeTypes = None,
    branch: Branch = "main",
    store: Store = None,
    actor: Actor = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compact tables and extend indexes, as one commit."""
    with writing(store, "optimize", quiet=quiet) as graph:
        uri, report = graph.uri, graph.optimize(branch=branch, types=types or None, actor=actor)
    if as_json:
        output.document({"uri": uri, **report.to_dict()})
        return
    for each in report.tables:
        output.line(f"{each.type_name}: {_said(each)}")
    output.line(f"commit {report.commit_id}" if report.commit_id else "nothing to do")


def _said(table: "OptimizedTable") -> str:
    if table.skipped is not None:
        versions = f"shown at {table.manifest_version}, newest {table.lance_head_version}"
        return f"skipped, {table.skipped}" + (f" ({versions})" if table.skipped.startswith("drift") else "")
    pending = (
        f"; no index yet on {', '.join(each.column for each in table.pending_indexes)}"
        if table.pending_indexes
        else ""
    )
    if not table.committed:
        return f"nothing to do{pending}"
    if not table.fragments_removed:
        return f"indexes up to date{pending}"
    removed = output.counted(table.fragments_removed, "fragment")
    return f"{removed} became {table.fragments_added}, indexes up to date{pending}"


Keep = Annotated[
    int | None, typer.Option("--keep", metavar="N", help="States of each branch that stay, the newest ones.")
]
OlderThan = Annotated[
    str | None,
    typer.Option("--older-than", metavar="TIME", help="Keep what was shown since; 12h, 7d, 4w."),
]


def cleanup(
    keep: Keep = None,
    older_than: OlderThan = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say of every file what happens to it.")] = False,
    confirm: Annotated[bool, typer.Option("--confirm", help="Remove something.")] = False,
    store: Store = None,
    actor: Actor = None,
    yes: Yes = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Remove old states and the files of them."""
    from datetime import timedelta

    if keep is None and older_than is None:
        raise UsageError("nothing says what may go", hint="give --keep, --older-than, or both")
    if dry_run and confirm:
        raise UsageError("--dry-run and --confirm exclude each other", hint="give one of them")
    age = None if older_than is None else timedelta(seconds=duration(older_than, "--older-than"))
    if confirm:
        ask("cleanup", addressed(store), yes=yes, as_json=as_json)
    with writing(store, "cleanup", quiet=quiet) as graph:
        uri, report = graph.uri, graph.cleanup(keep=keep, older_than=age, dry_run=not confirm, actor=actor)
    if as_json:
        output.document({"uri": uri, **report.to_dict(files=dry_run)})
    else:
        _tell_cleanup(report, files=dry_run)
    if report.failed:
        raise typer.Exit(1)


def _tell_cleanup(report: "CleanupReport", *, files: bool) -> None:
    if files:
        for each in report.fates:
            output.line(f"{each.bytes:>12,}  {'goes ' if each.goes else 'stays'}  {each.name}  {each.why}")
    for each in report.datasets:
        if each.files or each.error is not None:
            error = f"; {each.error}" if each.error is not None else ""
            versions, count = output.counted(each.versions, "version"), output.counted(each.files, "file")
            output.line(f"{each.name}: {versions}, {count}, {each.bytes:,} bytes{error}")
    gone = report.removed
    said = "would go; --confirm removes them" if report.dry_run else "removed"
    size = sum(each.bytes for each in gone)
    output.line(f"{output.counted(len(gone), 'file')} of {len(report.fates):,}, {size:,} bytes, {said}")


def erase(
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="Its type.")],
    entity_id: Annotated[str, typer.Argument(metavar="ID", help="Its id.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    tags: Annotated[bool, typer.Option("--tags", help="Delete tags of older states, too.")] = False,
    store: Store = None,
    actor: Actor = None,
    yes: Yes = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Forget an entity for good."""
    if not dry_run:
        ask("erase", addressed(store), yes=yes, as_json=as_json)
    with writing(store, "erase", quiet=quiet) as graph:
        uri, receipt = graph.uri, graph.erase(type_name, entity_id, tags=tags, dry_run=dry_run, actor=actor)
    if as_json:
        output.document({"uri": uri, **receipt.to_dict()})
    else:
        _tell_erasure(receipt)
    if receipt.left:
        raise typer.Exit(1)


def _tell_erasure(receipt: "EraseReceipt") -> None:
    would = "would go" if receipt.dry_run else "removed"
    for each in receipt.branches:
        rows, edges = output.counted(each.rows, "row"), output.counted(each.edges, "edge")
        output.line(f"{each.branch}: {rows}, {edges}")
    output.line(f"{output.counted(receipt.files_held, 'data file')} held {receipt.type_name} {receipt.id}")
    states = output.counted(receipt.states_removed, "older state")
    if receipt.dry_run:
        output.line(f"{states} {would}")
    else:
        files = output.counted(receipt.files_removed, "file")
        output.line(f"{states}, {files}, {receipt.bytes_removed:,} bytes {would}")
    if receipt.tags_removed:
        output.line(f"tags {would}: {', '.join(receipt.tags_removed)}")
    for name, why in receipt.left:
        output.line(f"left: {name}  {why}")
    for each in receipt.outside:
        output.line(f"outside the graph: {each}")


def repair(
    branch: Branch = "main",
    confirm: Annotated[bool, typer.Option("--confirm", help="Change something.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Publish also what may have changed rows.")] = False,
    restore: Annotated[bool, typer.Option("--restore", help="Undo what may have changed rows.")] = False,
    store: Store = None,
    actor: Actor = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Publish or undo what was done to tables from outside."""
    with writing(store, "repair", quiet=quiet) as graph:
        uri, report = (
            graph.uri,
            graph.repair(branch=branch, confirm=confirm, force=force, restore=restore, actor=actor),
        )
    if as_json:
        output.document({"uri": uri, **report.to_dict()})
    else:
        for each in report.tables:
            versions = f"shown at {each.manifest_version}, newest {each.lance_head_version}"
            made = f" ({', '.join(each.operations)})" if each.operations else ""
            output.line(f"{each.table_key}: {each.classification}, {each.action}; {versions}{made}")
    if report.refused:
        raise typer.Exit(1)
