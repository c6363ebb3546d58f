"""The tree of commands. Bodies live in their own modules and import what they need when they run."""

from typing import Annotated

import typer

from omnigraph import __version__
from omnigraph.cli import language, output
from omnigraph.cli.options import Json, teach

app = typer.Typer(
    name="omnigraph",
    help=teach(
        "A typed property graph with git-style branches and atomic commits.",
        "omnigraph lint --schema schema.pg --query queries.gq",
        "omnigraph schema plan --from old.pg --schema new.pg",
        "omnigraph fmt schema.pg queries.gq",
        more="Every command explains itself: omnigraph COMMAND --help.",
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
schema_app = typer.Typer(help="Look at a schema and at what a change of it would do.", no_args_is_help=True)
app.add_typer(schema_app, name="schema")


def _print_version(wanted: bool) -> None:
    if wanted:
        output.line(f"omnigraph {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "-v", "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    # The option acts in its callback, before a command is looked for.
    del version


@app.command(help=teach("Print the version and the storage format.", "omnigraph version --json"))
def version(as_json: Json = False) -> None:
    """Print the version and the storage format."""
    from omnigraph.core.formats import INTERNAL_SCHEMA_VERSION

    if as_json:
        output.document({"version": __version__, "internal_schema_version": INTERNAL_SCHEMA_VERSION})
        return
    output.line(f"omnigraph {__version__}")
    output.line(f"internal-schema {INTERNAL_SCHEMA_VERSION}")


language.register(app, schema_app)
