"""Options that several commands share, spelled once."""

from typing import Annotated

import typer

from omnigraph.cli.addressing import default_actor

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document; errors become JSON on stderr.")]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URI",
        help="The graph: a directory or s3://bucket/prefix; else --profile, OMNIGRAPH_STORE, config.yaml.",
    ),
]
Branch = Annotated[str, typer.Option("--branch", metavar="NAME", help="The branch to work on.")]
Actor = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="ACTOR",
        callback=default_actor,
        help="Who the write is recorded under; else operator.actor of config.yaml.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Agree to a destructive action on a remote graph.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Do not name the target of the write on stderr.")]


def teach(summary: str, *examples: str, more: str = "") -> str:
    """Help text: what the command does, then examples that are not rewrapped."""
    shown = "\n".join(f"  {example}" for example in examples)
    parts = [summary, *([more] if more else []), f"\b\nExample:\n{shown}" if len(examples) == 1 else ""]
    if len(examples) > 1:
        parts[-1] = f"\b\nExamples:\n{shown}"
    return "\n\n".join(part for part in parts if part)
