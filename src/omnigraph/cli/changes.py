"""Commands that compare states, name them, and tell where values came from."""

from typing import TYPE_CHECKING, Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.history import instant
from omnigraph.cli.opening import reading, writing
from omnigraph.cli.options import Actor, Branch, Json, Kinds, Ops, Quiet, Store, Types, teach
from omnigraph.cli.tables import cell_text

if TYPE_CHECKING:
    from omnigraph.branching.history import EntityChange

_SIGNS = {"insert": "+", "update": "~", "delete": "-"}


def register(app: typer.Typer, tag_app: typer.Typer) -> None:
    """Add the commands of this module to the tree."""
    app.command(
        "diff",
        help=teach(
            "Show what differs between two states; each is a branch, a tag or a commit.",
            "omnigraph diff main review --stat --store kb.omni",
            "omnigraph diff v1 main --type Person --store kb.omni",
        ),
    )(diff)
    app.command(
        "blame",
        help=teach(
            "Show which commit gave each property of one entity its value.",
            "omnigraph blame Person ada --store kb.omni",
        ),
    )(blame)
    app.command(
        "revert",
        help=teach(
            "Take back what one commit did, as a new commit.",
            "omnigraph revert 01JQ3V7Q9M2Z5T8N4B6C1D0E2F --store kb.omni",
            more="Later changes stay; if they touched the same entities, nothing happens.",
        ),
    )(revert)
    tag_app.command(
        "create",
        help=teach(
            "Name a commit for good.",
            "omnigraph tag create v1 --store kb.omni",
            "omnigraph tag create reviewed 01JQ3V7Q9M2Z5T8N4B6C1D0E2F --store kb.omni",
        ),
    )(tag_create)
    tag_app.command("list", help=teach("List the tags.", "omnigraph tag list --store kb.omni"))(tag_list)
    tag_app.command(
        "delete",
        help=teach("Forget a tag; the commit stays.", "omnigraph tag delete v1 --store kb.omni"),
    )(tag_delete)


def diff(
    old: Annotated[str, typer.Argument(metavar="FROM", help="A branch, a tag or a commit.")],
    new: Annotated[str, typer.Argument(metavar="TO", help="A branch, a tag or a commit.")],
    types: Types = None,
    ops: Ops = None,
    kinds: Kinds = None,
    stat: Annotated[bool, typer.Option("--stat", help="Print the counts alone.")] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show what differs."""
    with reading(store) as graph:
        found = graph.diff(old, new, types=types, ops=ops, kinds=kinds)
        if as_json:
            changes = [] if stat else [change.to_dict() for change in found]
            output.document({**found.to_dict(), **({} if stat else {"changes": changes})})
            return
        for change in () if stat else found:
            output.line(_change_line(change))
        for key, counts in found.stats.items():
            shown = ", ".join(f"{number:,} {what}" for what, number in counts.items() if number)
            output.line(f"{key.replace(':', ' ', 1)}: {shown}")
        if not found.stats:
            output.line("no difference")


def _change_line(change: "EntityChange") -> str:
    head = f"{_SIGNS[change.op.value]} {change.type_name} {change.id}{ends(change)}"
    if change.before is None or change.after is None:
        return head
    changed = (
        f"{name}: {cell_text(change.before.get(name))} -> {cell_text(change.after.get(name))}"
        for name in change.properties
        if name not in {"src", "dst"}
    )
    return f"{head}  {', '.join(changed)}"


def ends(change: "EntityChange") -> str:
    """Where an edge leads, both ways when it was moved; nothing for a node."""
    if change.kind != "edge":
        return ""
    sides = [side for side in (change.before, change.after) if side is not None]
    told = [f"{side['src']} -> {side['dst']}" for side in sides]
    return "  " + ", ".join(dict.fromkeys(told))


def blame(
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="A node or edge type.")],
    entity_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the entity.")],
    branch: Branch = "main",
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show the origin of every property."""
    with reading(store) as graph:
        found = graph.blame(type_name, entity_id, at=branch)
    if as_json:
        output.document(found.to_dict())
        return
    width = max((len(each.property) for each in found.properties), default=0)
    for each in found.properties:
        when = (
            f"before {each.commit.id}" if each.before else f"{each.commit.id}  {instant(each.commit.time_us)}"
        )
        output.line(
            f"{each.property.ljust(width)}  {when}  {each.commit.actor or '-'}  {cell_text(each.said)}"
        )


def tag_create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new tag.")],
    commit: Annotated[
        str, typer.Argument(metavar="COMMIT", help="A branch (its head), a tag or a commit.")
    ] = "main",
    store: Store = None,
    actor: Actor = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Name a commit."""
    with writing(store, "tag create", quiet=quiet) as graph:
        named = graph.tags.create(name, at=commit)
    if as_json:
        output.document({"name": name, "graph_commit_id": named, "actor_id": actor})
    else:
        output.line(f"{name} names {named}")


def tag_list(store: Store = None, as_json: Json = False) -> None:
    """List the tags."""
    with reading(store) as graph:
        tags = graph.tags.list()
    if as_json:
        output.document(
            {"tags": [{"name": name, "graph_commit_id": commit} for name, commit in tags.items()]}
        )
        return
    for name, commit in tags.items():
        output.line(f"{name}  {commit}")


def tag_delete(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The tag.")],
    store: Store = None,
    actor: Actor = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Forget a tag."""
    with writing(store, "tag delete", quiet=quiet) as graph:
        graph.tags.delete(name)
    if as_json:
        output.document({"name": name, "actor_id": actor})
    else:
        output.line(f"deleted tag {name}")


def revert(
    commit: Annotated[
        str,
        typer.Argument(
            metavar="COMMIT", help="The commit to take back, a tag, or a branch for its newest change."
        ),
    ],
    branch: Branch = "main",
    parent: Annotated[
        str | None, typer.Option("--parent", metavar="COMMIT", help="Which parent of a merge to go back to.")
    ] = None,
    store: Store = None,
    actor: Actor = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Undo one commit."""
    with writing(store, "revert", quiet=quiet) as graph:
        report = graph.revert(commit, branch=branch, parent=parent, actor=actor)
    taken_back = commit if report.commit is None else report.commit.operation.partition(":")[2]
    if as_json:
        output.document({"reverted": taken_back, **report.to_dict()})
        return
    made = "" if report.commit is None else f"; commit {report.commit.id}"
    output.line(f"reverted {taken_back} on {branch}{made}")
