"""Commands over branches, commits, recovery and the health of a graph."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.commit_lanes import lanes_of
from omnigraph.cli.opening import reading, writing
from omnigraph.cli.options import Actor, Branch, Json, Quiet, Store, teach
from omnigraph.core.errors import UsageError

if TYPE_CHECKING:
    from omnigraph.manifest.commit_record import CommitRecord
    from omnigraph.manifest.recoveries import RecoveryRecord


OneActor = Annotated[str | None, typer.Option("--actor", metavar="ACTOR", help="Only commits of this actor.")]
ActorFilter = Annotated[
    str | None, typer.Option("--filter", metavar="actor=ACTOR", help="The same as --actor.")
]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only commits from then on.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only commits up to then.")]
Upkeep = Annotated[
    bool, typer.Option("--upkeep", help="Also commits that changed no row, such as those of index builds.")
]
Deep = Annotated[
    bool, typer.Option("--deep", help="Compare every file with its checksum; without it, a part of them.")
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="At most this many.")]


def register(app: typer.Typer, branch_app: typer.Typer, commit_app: typer.Typer) -> None:
    """Add the commands of this module to the tree."""
    branch_app.command(
        "create",
        help=teach(
            "Make a branch of the whole graph. Nothing is copied.",
            "omnigraph branch create review --store kb.omni",
            "omnigraph branch create fix/typo --from review --store kb.omni",
        ),
    )(branch_create)
    branch_app.command(
        "list",
        help=teach(
            "List the branches.",
            "omnigraph branch list --store kb.omni",
            "omnigraph branch list --verbose --store kb.omni",
        ),
    )(branch_list)
    commit_app.command(
        "list",
        help=teach(
            "List the commits of a branch, newest first.",
            "omnigraph commit list --limit 10 --store kb.omni",
            "omnigraph commit list --filter actor=omnigraph:recovery --store kb.omni",
        ),
    )(commit_list)
    commit_app.command(
        "show",
        help=teach("Show one commit.", "omnigraph commit show 01JQ3V7Q9M2Z5T8N4B6C1D0E2F --store kb.omni"),
    )(commit_show)
    app.command(
        "log", help=teach("Draw the history of a branch, newest first.", "omnigraph log --store kb.omni")
    )(log)
    app.command(
        "verify",
        help=teach(
            "Check every invariant of a healthy graph and change nothing.",
            "omnigraph verify --store kb.omni",
            "omnigraph verify --deep --store kb.omni",
            more="Exit status 0 when all is well, 1 with findings.",
        ),
    )(verify)
    app.command(
        "recoveries",
        help=teach(
            "Show the writes that were interrupted: those recovery settled and those it has yet to settle.",
            "omnigraph recoveries --store kb.omni",
        ),
    )(recoveries)


def branch_create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new branch; slashes make folders.")],
    source: Annotated[str, typer.Option("--from", metavar="BRANCH", help="What it starts from.")] = "main",
    store: Store = None,
    actor: Actor = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make a branch."""
    with writing(store, "branch create", quiet=quiet) as graph:
        graph.branches.create(name, from_branch=source)
        uri = graph.uri
    if as_json:
        output.document({"uri": uri, "from": source.strip(), "name": name.strip(), "actor_id": actor})
    else:
        output.line(f"created branch {name.strip()} from {source.strip()}")


def branch_list(
    store: Store = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Add the head, how far it and main are apart, and the schema.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the branches by name."""
    with reading(store) as graph:
        details = graph.branches.details() if verbose or as_json else ()
        names = [each.name for each in details] or sorted(graph.branches.list())
    if as_json:
        output.document({"branches": names, "details": [each.to_dict() for each in details]})
        return
    width = max(map(len, names))
    for each in details:
        apart = f"{each.ahead:,} ahead, {each.behind:,} behind"
        output.line(
            f"{each.name:{width}}  {each.head}  {instant(each.updated_at_us)}  "
            f"schema {each.generation}  {apart}"
        )
    for name in () if verbose else names:
        output.line(name)


def commit_list(
    store: Store = None,
    branch: Branch = "main",
    actor: OneActor = None,
    only: ActorFilter = None,
    since: Since = None,
    until: Until = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="ID", help="Only commits older than this one.")
    ] = None,
    limit: Limit = None,
    upkeep: Upkeep = False,
    as_json: Json = False,
) -> None:
    """List commits."""
    with reading(store) as graph:
        commits = graph.commits.list(
            branch=branch,
            actor=_actor(actor, only),
            limit=limit,
            since_us=moment_us(since, "--since"),
            until_us=moment_us(until, "--until"),
            before=before,
            upkeep=upkeep,
        )
    if as_json:
        output.document({"commits": [commit_dict(commit) for commit in commits]})
        return
    for commit in commits:
        output.line(f"{commit.id}  {_about(commit)}")


def log(
    store: Store = None,
    branch: Branch = "main",
    limit: Limit = None,
    upkeep: Upkeep = False,
    as_json: Json = False,
) -> None:
    """Draw the history."""
    with reading(store) as graph:
        commits = graph.commits.list(branch=branch, merged=True)
    shown = [commit for commit in commits if upkeep or not commit.is_upkeep][:limit]
    if as_json:
        output.document({"commits": [commit_dict(commit) for commit in shown]})
        return
    for marks, commit in lanes_of(shown, passed_over=() if upkeep else commits):
        if commit is None:
            output.line(marks)
            continue
        merged = f"  merges {commit.merged_parent}" if commit.merged_parent is not None else ""
        output.line(f"{marks}  {commit.id}  {_about(commit)}{merged}")


def _about(commit: "CommitRecord") -> str:
    return f"{_where(commit)}  {instant(commit.time_us)}  {commit.operation}  {commit.actor or '-'}"


def moment_us(text: str | None, flag: str) -> int | None:
    """A moment a user wrote (ISO 8601, UTC unless it says otherwise) in microseconds since the epoch."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{flag} takes a moment such as 2026-05-01T12:00:00Z, not '{text}'") from error
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (zoned - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def _actor(actor: str | None, only: str | None) -> str | None:
    if only is None:
        return actor
    name, separator, value = only.partition("=")
    if name.strip() != "actor" or not separator:
        raise UsageError(f"--filter takes actor=ACTOR, not '{only}'")
    if actor is not None and actor != value:
        raise UsageError("--actor and --filter name different actors")
    return value


def commit_show(
    commit_id: Annotated[str, typer.Argument(metavar="ID", help="The commit.")],
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show one commit."""
    with reading(store) as graph:
        commit = graph.commits.show(commit_id)
    if as_json:
        output.document(commit_dict(commit))
        return
    output.line(f"commit    {commit.id}")
    output.line(f"branch    {_where(commit)}")
    for parent in commit.parents:
        output.line(f"parent    {parent}")
    output.line(f"actor     {commit.actor or '-'}")
    output.line(f"time      {instant(commit.time_us)}")
    output.line(f"operation {commit.operation}")
    if commit.recovers is not None:
        output.line(f"recovers  {commit.recovers}")


def _where(commit: "CommitRecord") -> str:
    return f"{commit.branch} v{commit.manifest_version}"


def commit_dict(commit: "CommitRecord") -> dict[str, Any]:
    """The JSON form of a commit."""
    from omnigraph.manifest.commit_record import commit_dict as engine_form

    return engine_form(commit)


def instant(time_us: int) -> str:
    """A stored moment for people: RFC 3339 in UTC."""
    moment = datetime.fromtimestamp(time_us // 1_000_000, UTC).replace(microsecond=time_us % 1_000_000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def verify(store: Store = None, deep: Deep = False, as_json: Json = False) -> int:
    """Check the whole graph."""
    with reading(store) as graph:
        report = graph.verify(deep=deep)
    if as_json:
        findings = [
            {"rule": str(found.rule), "where": found.where, "message": found.message}
            for found in report.violations
        ]
        output.document(
            {
                "ok": report.ok,
                "branches": report.branches,
                "datasets": report.tables,
                "entities": report.rows,
                "commits": report.commits,
                "files_compared": report.files,
                "bytes_compared": report.bytes,
                "commits_without_checksums": report.commits_without_checksums,
                "pending": list(report.pending),
                "findings": findings,
                "corrupt": [each.details["corrupt"] for each in report.corrupt],
            }
        )
        return 0 if report.ok else 1
    for found in report.violations:
        output.line(f"{found.rule}  {found.where}  {found.message}")
    for operation in report.pending:
        output.line(f"pending recovery: {operation}")
    verdict = "ok" if report.ok else output.counted(len(report.violations), "finding")
    looked = [
        output.counted(report.branches, "branch", "branches"),
        output.counted(report.tables, "type"),
        output.counted(report.rows, "entity", "entities"),
        output.counted(report.commits, "commit"),
    ]
    if deep:
        looked.append(f"{output.counted(report.files, 'file')} compared with their checksums")
        if report.commits_without_checksums:
            without = output.counted(report.commits_without_checksums, "commit")
            output.line(f"not covered: {without} of an older version, whose files have no checksums")
    output.line(f"{verdict}: {', '.join(looked)}")
    return 0 if report.ok else 1


def recoveries(store: Store = None, as_json: Json = False) -> None:
    """Show settled and pending interrupted writes."""
    with reading(store) as graph:
        settled = graph.recoveries()
        pending = graph.pending()
    if as_json:
        output.document({"recoveries": [recovery_dict(one) for one in settled], "pending": list(pending)})
        return
    for one in settled:
        output.line(
            f"{instant(one.created_at_us)}  {one.recovery_kind}  {one.sidecar_writer_kind}  "
            f"operation {one.operation_id}  commit {one.graph_commit_id}"
        )
    for operation in pending:
        output.line(f"pending  operation {operation}")
    if not settled and not pending:
        output.line("nothing was ever interrupted")


def recovery_dict(record: "RecoveryRecord") -> dict[str, Any]:
    """The JSON form of one row of the audit."""
    from dataclasses import asdict

    form = {name: value for name, value in asdict(record).items() if name != "created_at_us"}
    return {**form, "recovery_kind": str(record.recovery_kind), "created_at": record.created_at_us}
