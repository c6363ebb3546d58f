"""The tree of commands. Bodies live in their own modules and import what they need when they run."""

from typing import Annotated

import typer

from omnigraph import __version__
from omnigraph.cli import (
    blobs,
    changes,
    clones,
    completion,
    explain,
    exports,
    feeds,
    graphs,
    history,
    language,
    loads,
    merges,
    output,
    personal,
    reads,
)
from omnigraph.cli.options import Json, teach

app = typer.Typer(
    name="omnigraph",
    help=teach(
        "A typed property graph with git-style branches and atomic commits.",
        "omnigraph lint --schema schema.pg --query queries.gq",
        "omnigraph init --schema schema.pg kb.omni",
        "omnigraph mutate add_person --query queries.gq -p handle=ada -p 'name=Ada Lune' --store kb.omni",
        "omnigraph query document --query queries.gq -p slug=hello --store kb.omni",
        more="Every command explains itself: omnigraph COMMAND --help.",
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
schema_app = typer.Typer(help="Look at a schema and at what a change of it would do.", no_args_is_help=True)
branch_app = typer.Typer(help="Branches of the whole graph.", no_args_is_help=True)
spark_app = typer.Typer(help="The engine of bulk loads.", no_args_is_help=True)
tag_app = typer.Typer(help="Names of commits.", no_args_is_help=True)
profile_app = typer.Typer(help="Named graphs of config.yaml.", no_args_is_help=True)
config_app = typer.Typer(help="The settings in effect.", no_args_is_help=True)
blob_app = typer.Typer(help="Files that are kept as properties.", no_args_is_help=True)
commit_app = typer.Typer(help="The history of the graph.", no_args_is_help=True)


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
    progress: Annotated[
        str,
        typer.Option(
            "--progress",
            metavar="FORM",
            help="How long work says how far it is, on stderr: auto (a bar on a terminal), bar, json (a line"
            " a second) or none. Goes with every command, before or behind it.",
        ),
    ] = "auto",
) -> None:
    # The version acts in its callback; progress is taken out before a command is looked for.
    del version, progress


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
graphs.register(app, schema_app)
loads.register(app, spark_app)
exports.register(app)
clones.register(app)
blobs.register(blob_app)
reads.register(app)
explain.register(app)
history.register(app, branch_app, commit_app)
merges.register(branch_app)
changes.register(app, tag_app)
feeds.register(app, commit_app)
personal.register(profile_app, config_app)
completion.register(app)
app.add_typer(schema_app, name="schema")
app.add_typer(branch_app, name="branch")
app.add_typer(commit_app, name="commit")
app.add_typer(tag_app, name="tag")
app.add_typer(blob_app, name="blob")
app.add_typer(spark_app, name="spark")
app.add_typer(profile_app, name="profile")
app.add_typer(config_app, name="config")
