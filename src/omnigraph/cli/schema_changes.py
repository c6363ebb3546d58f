"""The command that changes the schema of a graph."""

from typing import TYPE_CHECKING, Annotated

from omnigraph.cli import output
from omnigraph.cli.declared import Option
from omnigraph.cli.opening import writing
from omnigraph.cli.options import Actor, Fill, Json, Quiet, Store, teach
from omnigraph.cli.sources import read_bytes, shown

if TYPE_CHECKING:
    import typer


def register(schema_app: "typer.Typer") -> None:
    """Add the command to the tree."""
    schema_app.command(
        "apply",
        help=teach(
            "Change the schema of a graph, as one atomic commit.",
            "omnigraph schema apply --schema new.pg --store kb.omni",
            "omnigraph schema apply --schema new.pg --store kb.omni --dry-run",
            "omnigraph schema apply --schema new.pg --store kb.omni --fill 'Person.tier = \"basic\"'",
            more="Rows stay where they are: an added property is null, a renamed one keeps its values. "
            "A rule that is added is asked of every row first, and rows that break it are listed.",
        ),
    )(apply)


def apply(
    schema: Annotated[str, Option("--schema", metavar="FILE", help="The schema wanted; - for stdin.")],
    dry_run: Annotated[
        bool, Option("--dry-run", help="Check everything and say what would happen; change nothing.")
    ] = False,
    allow_data_loss: Annotated[
        bool, Option("--allow-data-loss", help="Drop hard: what is dropped goes out of the files, too.")
    ] = False,
    fill: Fill = None,
    store: Store = None,
    actor: Actor = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Change the schema of a graph."""
    from omnigraph.cli import schema_plans

    text = read_bytes(schema)
    with writing(store, "schema apply", quiet=quiet) as graph:
        done = graph.apply_schema(
            text,
            file=shown(schema),
            actor=actor,
            dry_run=dry_run,
            allow_data_loss=allow_data_loss,
            fills=fill or (),
        )
        if as_json:
            output.document({"uri": graph.uri, "schema": shown(schema), "dry_run": dry_run, **done.to_dict()})
            return
    for step, cost in zip(done.steps, done.costs, strict=True):
        output.line(schema_plans.step_line(step) + schema_plans.cost_line(cost))
    if not done.steps:
        output.line("no change")
    elif done.applied:
        output.line(f"applied {output.counted(len(done.steps), 'step')} as commit {done.commit}")
    else:
        output.line(f"{output.counted(len(done.steps), 'step')}, nothing was changed")
    if done.tells_reclaimed:
        output.line(f"reclaimed {done.reclaimed_bytes:,} bytes")
    for what in done.kept_by:
        output.line(f"kept by {what}")
