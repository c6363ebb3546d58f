"""The tree of commands. Only the modules of the command that was asked for are loaded."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from omnigraph import __version__
from omnigraph.cli import output
from omnigraph.cli.declared import Option, for_parser
from omnigraph.cli.options import Json, teach

if TYPE_CHECKING:
    import typer

Path = tuple[str, ...]

_GROUPS: Final = {
    "schema": "Look at the schema, plan a change of it, and make it.",
    "branch": "Branches of the whole graph.",
    "commit": "The history of the graph.",
    "tag": "Names of commits.",
    "blob": "Files that are kept as properties.",
    "spark": "The engine of bulk loads.",
    "policy": "Who may do what with a served graph.",
    "graphs": "The graphs of a server.",
    "queries": "The stored queries of a graph on a server.",
    "profile": "Named graphs of config.yaml.",
    "config": "The settings in effect.",
}
_MODULES: Final = (
    "language",
    "graphs",
    "loads",
    "exports",
    "upkeep",
    "blobs",
    "reads",
    "explain",
    "history",
    "merges",
    "changes",
    "feeds",
    "serve",
    "policies",
    "servers",
    "personal",
    "completion",
)
"""The modules that add commands, in the order of the help."""

_MODULE_OF: Final[dict[Path, str]] = {
    ("lint",): "language",
    ("query",): "reads",
    ("mutate",): "graphs",
    ("init",): "graphs",
    ("load",): "loads",
    ("embed",): "loads",
    ("export",): "exports",
    ("explain",): "explain",
    ("log",): "history",
    ("verify",): "history",
    ("branch", "create"): "history",
    ("branch", "list"): "history",
    ("branch", "merge"): "merges",
    ("diff",): "changes",
    ("revert",): "changes",
    ("serve",): "serve",
    ("completion",): "completion",
}
"""Where a command is that is run often. Any other one is found in the whole tree."""


def plain_command(path: Path | None) -> Callable[..., Any] | None:
    """A command that is run so often that a plain call of it does not wait for the parser."""
    match path:
        case ("version",):
            return version
        case ("lint",):
            from omnigraph.cli import language

            return language.lint
        case ("query",):
            from omnigraph.cli import reads

            return reads.query
        case ("mutate",):
            from omnigraph.cli import graphs

            return graphs.mutate
        case _:
            return None


def tree(path: Path | None = None) -> "typer.Typer":
    """The whole tree, or for a command as much of it as parsing that command needs."""
    import typer

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
    app.callback()(for_parser(_root))
    app.command(help=teach("Print the version and the storage format.", "omnigraph version --json"))(version)
    groups = {name: typer.Typer(help=text, no_args_is_help=True) for name, text in _GROUPS.items()}
    for module in _needed(path):
        _register(module, app, groups)
    for name, group in groups.items():
        if path is None or group.registered_commands:
            app.add_typer(group, name=name)
    _declare(app)
    return app


def _declare(app: "typer.Typer") -> None:
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = for_parser(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _declare(group.typer_instance)


def _register(module: str, app: "typer.Typer", groups: "dict[str, typer.Typer]") -> None:
    match module:
        case "language":
            from omnigraph.cli import language

            language.register(app, groups["schema"])
        case "graphs":
            from omnigraph.cli import graphs

            graphs.register(app, groups["schema"])
        case "loads":
            from omnigraph.cli import loads

            loads.register(app, groups["spark"])
        case "blobs":
            from omnigraph.cli import blobs

            blobs.register(groups["blob"])
        case "history":
            from omnigraph.cli import history

            history.register(app, groups["branch"], groups["commit"])
        case "merges":
            from omnigraph.cli import merges

            merges.register(groups["branch"])
        case "changes":
            from omnigraph.cli import changes

            changes.register(app, groups["tag"])
        case "feeds":
            from omnigraph.cli import feeds

            feeds.register(app, groups["commit"])
        case "policies":
            from omnigraph.cli import policies

            policies.register(groups["policy"])
        case "servers":
            from omnigraph.cli import servers

            servers.register(app, groups["graphs"], groups["queries"])
        case "personal":
            from omnigraph.cli import personal

            personal.register(groups["profile"], groups["config"])
        case _:
            _register_alone(module, app)


def _register_alone(module: str, app: "typer.Typer") -> None:
    """Register a module whose commands are in no group."""
    match module:
        case "exports":
            from omnigraph.cli import exports

            exports.register(app)
        case "upkeep":
            from omnigraph.cli import upkeep

            upkeep.register(app)
        case "reads":
            from omnigraph.cli import reads

            reads.register(app)
        case "explain":
            from omnigraph.cli import explain

            explain.register(app)
        case "serve":
            from omnigraph.cli import serve

            serve.register(app)
        case "completion":
            from omnigraph.cli import completion

            completion.register(app)
        case _:
            raise AssertionError(module)


def _needed(path: Path | None) -> list[str]:
    if path == ("version",):
        return []
    return [_MODULE_OF[path]] if path in _MODULE_OF else list(_MODULES)


def _print_version(given: Mapping[str, Any], wanted: bool) -> None:
    del given
    if wanted:
        output.line(f"omnigraph {__version__}")
        import typer

        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        Option("-v", "--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
    progress: Annotated[
        str,
        Option(
            "--progress",
            metavar="FORM",
            help="How long work says how far it is, on stderr: auto (a bar on a terminal), bar, json (a line"
            " a second) or none. Goes with every command, before or behind it.",
        ),
    ] = "auto",
    policy: Annotated[
        str | None,
        Option(
            "--policy",
            metavar="FILE",
            help="The policy that a write to a store asks first, with --as. Goes with every command that"
            " writes, before or behind it; else the policy of the profile.",
        ),
    ] = None,
    bypass_policy: Annotated[
        bool,
        Option("--bypass-policy", help="Do not ask the policy of the profile; a warning names it."),
    ] = False,
) -> None:
    # The version acts in its callback; the others are taken out before a command is looked for.
    del version, progress, policy, bypass_policy


def version(as_json: Json = False) -> None:
    """Print the version and the storage format."""
    from omnigraph.core.formats import FORMATS, INTERNAL_SCHEMA_VERSION

    if as_json:
        numbers = {"internal_schema_version": INTERNAL_SCHEMA_VERSION, "formats": dict(FORMATS)}
        output.document({"version": __version__, **numbers})
        return
    output.line(f"omnigraph {__version__}")
    output.line(f"internal-schema {INTERNAL_SCHEMA_VERSION}")
