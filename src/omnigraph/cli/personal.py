"""Commands over the personal configuration: what it says, and what follows from it."""

import os
from typing import Annotated, Any, cast

import typer

from omnigraph.cli import config, output
from omnigraph.cli.addressing import resolve
from omnigraph.cli.options import Json, teach
from omnigraph.core.errors import BadRequest


def register(profile_app: typer.Typer, config_app: typer.Typer) -> None:
    """Add the commands of this module to the tree."""
    profile_app.command("list", help=teach("List the profiles of config.yaml.", "omnigraph profile list"))(
        profile_list
    )
    profile_app.command(
        "show",
        help=teach(
            "Show where commands go with a profile, or without one.",
            "omnigraph profile show local",
        ),
    )(profile_show)
    config_app.command("path", help=teach("Print where config.yaml is read from.", "omnigraph config path"))(
        config_path
    )
    config_app.command(
        "show",
        help=teach(
            "Show the settings in effect and where each comes from.",
            "omnigraph config show",
            more=(
                "Everything comes from flags, then the environment, then config.yaml, then the built-in"
                " default; for the graph a profile comes before OMNIGRAPH_STORE."
            ),
        ),
    )(config_show)


def profile_dict(profile: config.Profile, *, active: str | None) -> dict[str, Any]:
    """The JSON form of one profile in the list; a broken one is listed with what is wrong."""
    return {
        "name": profile.name,
        "binding": dict(profile.bindings),
        "scope_kind": profile.kind,
        "target": profile.target,
        "valid": profile.problem is None,
        "error": profile.problem,
        "default_graph": profile.default_graph,
        "active": profile.name == active,
    }


def profile_list(as_json: Json = False) -> None:
    """List the profiles."""
    loaded = config.load()
    active = os.environ.get(config.PROFILE_VARIABLE)
    listed = [profile_dict(each, active=active) for _, each in sorted(loaded.profiles.items())]
    if as_json:
        output.document(listed)
        return
    for each in listed:
        mark = "*" if each["active"] else " "
        what = f"{each['scope_kind']} {each['target']}" if each["valid"] else f"invalid: {each['error']}"
        output.line(f"{mark} {each['name']}  {what}")
    if not listed:
        output.line(f"no profiles in {loaded.path}")


def profile_show(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The profile; the active one if not given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show one profile."""
    loaded = config.load()
    name = name or os.environ.get(config.PROFILE_VARIABLE) or None
    form = loaded.defaults.get("output")
    if name is not None:
        profile = loaded.profile(name)
        if profile.problem is not None:
            raise BadRequest(profile.problem, hint="give the profile exactly one of them")
        kind, target, graph = profile.kind, profile.target, profile.default_graph
        form = profile.output or form
    else:
        scope = resolve(None)
        kind, target, graph = "none", None, None
        if scope is not None:
            kind, target, graph = scope.kind, scope.target, scope.graph
    endpoints = {"server": loaded.servers, "cluster": loaded.clusters}.get(kind, {})
    shown = {
        "name": name or "(defaults)",
        "scope_kind": kind,
        "target": target,
        "endpoint": endpoints.get(target or "", target),
        "default_graph": graph,
        "output_format": form or "table",
    }
    if as_json:
        output.document(shown)
        return
    for key, value in shown.items():
        if value is not None:
            output.line(f"{key:13} {value}")


def config_path(as_json: Json = False) -> None:
    """Print where the file is."""
    loaded_from = config.home() / "config.yaml"
    if as_json:
        output.document({"path": str(loaded_from), "exists": loaded_from.is_file()})
    else:
        output.line(str(loaded_from))


def config_show(as_json: Json = False) -> None:
    """Show what is in effect."""
    loaded = config.load()
    rows = [*_addressing(loaded), *_output(loaded), *_engine(loaded)]
    if as_json:
        output.document(
            {
                "path": str(loaded.path),
                "exists": loaded.exists,
                "settings": [
                    {"name": name, "value": value, "source": source} for name, value, source in rows
                ],
            }
        )
        return
    output.line(f"file  {loaded.path}{'' if loaded.exists else ' (not there)'}")
    width = max(len(name) for name, _, _ in rows)
    for name, value, source in rows:
        output.line(f"{name:{width}}  {'-' if value is None else value}  ({source})")


def _addressing(loaded: config.Config) -> list[tuple[str, Any, str]]:
    scope = resolve(None)
    graph = ("graph", None, "nothing names one") if scope is None else ("graph", scope.target, scope.origin)
    actor = ("actor", loaded.actor, "operator.actor" if loaded.actor else "default")
    return [graph, actor]


def _output(loaded: config.Config) -> list[tuple[str, Any, str]]:
    known = {"output": "table", "table_max_column_width": 80, "table_cell_layout": "truncate"}
    return [
        (
            name,
            loaded.defaults.get(name, default),
            f"defaults.{name}" if name in loaded.defaults else "default",
        )
        for name, default in known.items()
    ]


def _engine(loaded: config.Config) -> list[tuple[str, Any, str]]:
    """Every setting of the engine. Values of Spark settings may be secrets, so their names are enough."""
    from dataclasses import fields

    from omnigraph.cli.addressing import settings

    effective = settings()
    rows: list[tuple[str, Any, str]] = []
    for each in fields(effective):
        variable = f"OMNIGRAPH_{each.name.upper()}"
        value = getattr(effective, each.name)
        if each.name == "spark_conf":
            named = [name for name in os.environ if name.startswith("OMNIGRAPH_SPARK_CONF_")]
            source = ", ".join(named) or ("settings" if each.name in loaded.settings else "default")
            rows.append((each.name, ", ".join(sorted(value)) or None, source))
            continue
        source = (
            variable
            if os.environ.get(variable)
            else (f"settings.{each.name}" if each.name in loaded.settings else "default")
        )
        if isinstance(value, tuple):
            value = " ".join(cast("tuple[str, ...]", value)) or None
        rows.append((each.name, value if isinstance(value, int | str | None) else str(value), source))
    return rows
