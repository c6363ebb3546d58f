"""Commands that tell what commits changed: one commit, a branch from a cursor on, a state to start with."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnigraph.cli import output
from omnigraph.cli.changes import ends
from omnigraph.cli.history import instant
from omnigraph.cli.opening import reading
from omnigraph.cli.options import Branch, Json, Kinds, Ops, Store, Types, duration, teach
from omnigraph.cli.tables import cell_text
from omnigraph.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnigraph.api.graph import Graph
    from omnigraph.branching.feed import FeedBlock, FeedPage
    from omnigraph.branching.history import EntityChange

_ABSENT = "<absent>"
_NULL = "<null>"

Limit = Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Changes fetched at a time.")]


def register(app: typer.Typer, commit_app: typer.Typer) -> None:
    """Add the commands of this module to the tree."""
    commit_app.command(
        "changes",
        help=teach(
            "Show what one commit changed, entity by entity.",
            "omnigraph commit changes 01JQ3V7Q9M2Z5T8N4B6C1D0E2F --store kb.omni",
        ),
    )(commit_changes)
    changes_app = typer.Typer(help="The changes of a branch as they come.", no_args_is_help=True)
    changes_app.command(
        "poll",
        help=teach(
            "Show the commits after a cursor, each with what it changed, and the next cursor.",
            "omnigraph changes poll --start beginning --store kb.omni",
            "omnigraph changes poll --cursor CURSOR --json --store kb.omni",
            more="Keep the cursor: nothing is stored for you. Delivery is at least once.",
        ),
    )(poll)
    changes_app.command(
        "baseline",
        help=teach(
            "Write the state of a branch to a file and print the cursor that goes on from it.",
            "omnigraph changes baseline --out people.jsonl --store kb.omni",
        ),
    )(baseline)
    app.add_typer(changes_app, name="changes")


def commit_changes(
    commit: Annotated[str, typer.Argument(metavar="COMMIT", help="A commit id, a tag or a branch.")],
    limit: Limit = None,
    page_token: Annotated[
        str | None, typer.Option("--page-token", metavar="TOKEN", help="Print exactly this page.")
    ] = None,
    kinds: Kinds = None,
    types: Types = None,
    ops: Ops = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show the changes of one commit."""
    with reading(store) as graph:
        chosen: dict[str, Any] = {"types": types, "ops": ops, "kinds": kinds}
        size: dict[str, Any] = {} if limit is None else {"changes_max": limit}
        token = page_token
        found: list[dict[str, Any]] = []
        # Resolved once: the pages of one answer are about one commit, even if the branch moves meanwhile.
        commit_id = graph.commits.show(commit).id
        while True:
            page = graph.feed.changes(commit_id, page_token=token, **chosen, **size)
            token = page.next_page_token
            if page_token is not None and as_json:
                output.document(page.to_dict())
                return
            for change in page.changes:
                if as_json:
                    found.append(change.to_dict())
                else:
                    _print_change(change)
            if token is None or page_token is not None:
                break
        if as_json:
            output.document({**page.to_dict(), "changes": found})
        elif page_token is not None:
            output.line(f"next page: {token}" if token else "last page")


def poll(
    branch: Branch = "main",
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="CURSOR", help="Go on behind this cursor.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--start", metavar="START", help="now, beginning or after:COMMIT.")
    ] = None,
    limit: Limit = None,
    kinds: Kinds = None,
    types: Types = None,
    ops: Ops = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep polling; one JSON block and one cursor per line.")
    ] = False,
    interval: Annotated[
        str, typer.Option("--interval", metavar="TIME", help="Between two polls, as in 2s.")
    ] = "2s",
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show the commits after a cursor."""
    if cursor is not None and start is not None:
        raise UsageError("give either --cursor or --start, not both")
    seconds = duration(interval, "--interval")
    if not seconds:
        raise UsageError("--interval must be at least one second")
    with reading(store) as graph:
        chosen: dict[str, Any] = {"branch": branch, "types": types, "ops": ops, "kinds": kinds}
        position = graph.feed.start(start or "now", **chosen) if cursor is None else cursor
        size: dict[str, Any] = {} if limit is None else {"changes_max": limit}
        if follow:
            _follow(graph, position, {**chosen, **size}, seconds)
            return
        _poll_once(graph, position, {**chosen, **size}, as_json=as_json)


def _poll_once(graph: "Graph", position: str, chosen: "Mapping[str, Any]", *, as_json: bool) -> None:
    blocks: list[dict[str, Any]] = []
    while True:
        page: FeedPage = graph.feed.poll(position, **chosen)
        for block in page.blocks:
            if as_json:
                _add_block(blocks, block)
            else:
                _print_block(block)
        if page.next_page_token is None:
            break
        position = page.next_page_token
    if as_json:
        output.document({"blocks": blocks, "cursor": page.cursor, "caught_up": page.caught_up})
        return
    if not page.blocks:
        output.line("(no new commits)")
    output.line(f"cursor: {page.cursor}")
    if not page.caught_up:
        output.line("more commits are waiting")


def _add_block(blocks: list[dict[str, Any]], block: "FeedBlock") -> None:
    """Join the parts of a commit that came on several pages."""
    told = block.to_dict()
    if blocks and blocks[-1]["cause"] == told["cause"]:
        blocks[-1]["changes"] += told["changes"]
    else:
        blocks.append(told)


def _follow(graph: "Graph", position: str, chosen: "Mapping[str, Any]", seconds: int) -> None:
    """Poll until somebody presses Ctrl-C or nobody reads any more."""
    while True:
        page: FeedPage = graph.feed.poll(position, **chosen)
        for block in page.blocks:
            output.json_line(block.to_dict())
        if page.next_page_token is not None:
            position = page.next_page_token
            continue
        position = page.cursor or position
        if page.blocks:
            output.json_line({"cursor": position, "caught_up": page.caught_up})
        output.finish()
        # Ctrl-C ends a sleep of the main thread at once, and nothing is held meanwhile.
        time.sleep(seconds)


def baseline(
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="The file to write.")],
    branch: Branch = "main",
    kinds: Kinds = None,
    types: Types = None,
    ops: Ops = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Write the state of a branch and print its cursor."""
    with reading(store) as graph:
        made = graph.feed.baseline(out, branch=branch, types=types, ops=ops, kinds=kinds)
    if as_json:
        output.document(made.to_dict())
        return
    output.line(f"{out} holds {branch} at {made.snapshot_commit_id}")
    output.line(f"cursor: {made.resume_cursor}")


def _print_block(block: "FeedBlock") -> None:
    commit = block.commit
    output.line(f"{commit.id}  {instant(commit.time_us)}  {commit.actor or '-'}")
    for change in block.changes:
        _print_change(change)


def _print_change(change: "EntityChange") -> None:
    """One change: what happened to whom, then its properties."""
    output.line(f"{change.op.value} {change.kind} {change.type_name} {change.id}{ends(change)}")
    before, after = change.before, change.after
    for name in change.properties:
        if name in {"id", "src", "dst"}:
            continue
        if before is None:
            output.line(f"  + {name}: {_shown(after, name)}")
        elif after is None:
            output.line(f"  - {name}: {_shown(before, name)}")
        else:
            output.line(f"  {name}: {_shown(before, name)} -> {_shown(after, name)}")


def _shown(image: "Mapping[str, Any] | None", name: str) -> str:
    if image is None or name not in image:
        return _ABSENT
    return _NULL if image[name] is None else cell_text(image[name])
