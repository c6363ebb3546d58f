"""Generated reference pages: commands, error kinds, Python. `make docs` writes them, a test compares them."""

import dataclasses
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import typer

import omnigraph
from omnigraph.cli.app import tree
from omnigraph.cli.arguments import COMMANDS
from omnigraph.core.errors import KINDS, RESERVED
from omnigraph.server.openapi import openapi

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


def commands_page() -> str:
    """The help of every command, in the order of their names."""
    parts = ["# Commands", "", "Made by `make docs` from the help of each command.", ""]
    for path in ((), *sorted(COMMANDS)):
        title = " ".join(("omnigraph", *path))
        parts += [f"## `{title}`", "", "```text", help_of(path), "```", ""]
    return "\n".join(parts)


def help_of(path: tuple[str, ...]) -> str:
    """The help text of one command, at a fixed width."""
    command: Any = typer.main.get_command(tree())
    context = command.make_context(
        "omnigraph", [], resilient_parsing=True, max_content_width=100, terminal_width=100
    )
    for word in path:
        command = command.get_command(context, word)
        context = command.make_context(
            word, [], parent=context, resilient_parsing=True, max_content_width=100, terminal_width=100
        )
    return str(command.get_help(context)).rstrip()


def errors_page() -> str:
    """One row per kind."""
    parts = [
        "# Error kinds",
        "",
        "Made by `make docs` from `core/errors`. Decide on `kind`, never on the text of a message. *Effect*:",
        "whether something may have happened before the failure.",
        "",
        "| kind | Python class | HTTP | code | exit | retry | effect |",
        "|---|---|---|---|---|---|---|",
    ]
    for info in KINDS.values():
        row = (
            f"`{info.kind}`",
            f"`{info.cls.__name__}`",
            str(info.http_status or "-"),
            f"`{info.code}`" if info.code else "-",
            str(info.exit_status),
            f"`{info.retry}`",
            "none" if info.effect_free else "possible",
        )
        parts.append(f"| {' | '.join(row)} |")
    parts += ["", "Nothing raises these kinds yet:", "", "| reserved for | kinds |", "|---|---|"]
    for capability, kinds in RESERVED.items():
        parts.append(f"| {capability} | {', '.join(f'`{kind}`' for kind in kinds)} |")
    return "\n".join([*parts, ""])


SIGNATURE_WIDTH_MAX = 100
PYTHON_HEAD = """# Python

Made by `make docs` from the names of the package `omnigraph` and their docstrings. Import from the top
package only; everything else may change. Importing it loads no table format, no Arrow and no Spark; that
happens when a graph is opened.

Calls that read or write take limits, shown as `**limits`: `timeout_s`, the seconds the call may take;
`memory_bytes`, what it may hold at once; `cancel`, a `Cancellation` by which another thread stops it. They
are those of this call alone. A write is never stopped after its first effect.
"""


def python_page() -> str:
    """Every public name: functions, then classes with their methods, then modules."""
    names = sorted(set(omnigraph.__all__) - {"__version__"})
    values = {name: getattr(omnigraph, name) for name in names}
    parts = [PYTHON_HEAD, "`omnigraph.__version__` is the version.\n", "## Functions\n"]
    for name, value in values.items():
        if inspect.isfunction(value):
            parts.append(member_text(f"omnigraph.{name}", value, level=3))
    parts.append("## Classes\n")
    for name, value in values.items():
        if inspect.isclass(value) and not issubclass(value, BaseException):
            parts += class_parts(name, value)
            if value is omnigraph.Graph:
                parts += graph_parts()
    parts.append("## Errors\n")
    parts.append(member_text("omnigraph.OmnigraphError", omnigraph.OmnigraphError, level=3))
    parts.append("`omnigraph.errors` holds every class of [the table of kinds](errors.md).\n")
    parts.append("## Events\n")
    parts += event_parts(omnigraph.events)
    return "\n".join(parts).rstrip() + "\n"


def graph_parts() -> Iterator[str]:
    """What hangs on a graph."""
    from omnigraph.api.at import GraphAt  # noqa: PLC0415
    from omnigraph.api.branches import Branches, Commits  # noqa: PLC0415
    from omnigraph.api.history import Feed, Tags  # noqa: PLC0415

    for name, cls in (
        ("graph.branches", Branches),
        ("graph.commits", Commits),
        ("graph.tags", Tags),
        ("graph.feed", Feed),
        ("graph.at(…)", GraphAt),
    ):
        yield from class_parts(name, cls)


def class_parts(name: str, cls: type) -> Iterator[str]:
    """A class: what it is, its fields, its methods."""
    yield f"### `{name}`\n"
    yield paragraphs(cls)
    if dataclasses.is_dataclass(cls):
        fields = ", ".join(
            f"`{each.name}`" for each in dataclasses.fields(cls) if not each.name.startswith("_")
        )
        yield f"Fields: {fields}.\n"
    members: list[tuple[str, Any]] = inspect.getmembers(cast("Any", cls))
    for member, value in sorted(members):
        if member.startswith("_"):
            continue
        if isinstance(value, property):
            yield f"#### `.{member}`\n\n{paragraphs(value)}"
        elif inspect.isfunction(value) or inspect.ismethod(value):
            yield member_text(f".{member}", value, level=4)


def member_text(name: str, value: Any, *, level: int) -> str:
    """A function: its signature and its docstring."""
    signature = "" if inspect.isclass(value) else signature_text(value)
    shown = f"```text\n{name.rsplit('.', maxsplit=1)[-1]}{signature}\n```"
    return f"{'#' * level} `{name}`\n\n{shown}\n\n{paragraphs(value)}"


def signature_text(function: Any) -> str:
    """The parameters, one a line when there are many."""
    signature = inspect.signature(function)
    parts: list[str] = []
    for each in signature.parameters.values():
        if each.name in {"self", "cls"}:
            continue
        if each.kind is each.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        if each.kind is each.VAR_KEYWORD:
            parts.append(f"**{each.name.removeprefix('_')}")
            continue
        given = "" if each.default is each.empty else f" = {each.default!r}"
        parts.append(f"{each.name}: {type_text(each.annotation)}{given}")
    returned = type_text(signature.return_annotation)
    short = f"({', '.join(parts)}) -> {returned}"
    if len(short) <= SIGNATURE_WIDTH_MAX:
        return short
    lines = "".join(f"    {part},\n" for part in parts)
    return f"(\n{lines}) -> {returned}"


def type_text(annotation: Any) -> str:
    """An annotation as it was written."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return text.replace('"', "").replace("'", "")


def paragraphs(value: Any) -> str:
    """The docstring, or nothing."""
    text = inspect.getdoc(value)
    return f"{text}\n" if text else ""


def event_parts(module: ModuleType) -> Iterator[str]:
    """How to listen, and what is heard."""
    yield member_text("omnigraph.events.listen", module.listen, level=3)
    yield "| event | fields | when |\n|---|---|---|"
    classes: list[tuple[str, Any]] = inspect.getmembers(module, inspect.isclass)
    for name, cls in sorted(classes):
        if issubclass(cls, module.Event) and cls is not module.Event:
            fields = ", ".join(f"`{each.name}`" for each in dataclasses.fields(cls))
            first = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
            yield f"| `{name}` | {fields} | {first} |"


def http_page() -> str:
    """Every route of a server, from its OpenAPI document."""
    document = openapi(secured=True)
    parts = [
        "# HTTP",
        "",
        "Made by `make docs` from the OpenAPI document, which a server gives at `/openapi.json`. A failure",
        "is a JSON object with `error`, `kind`, `retry`, `request_id` and what else is known; its kinds are",
        "in [errors](errors.md).",
        "",
    ]
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            parts += [f"## `{method.upper()} {path}`", "", told["summary"], ""]
            rows = [
                (
                    f"`{each['name']}`",
                    each["in"],
                    schema_text(each["schema"]),
                    "yes" if each["required"] else "",
                )
                for each in told.get("parameters", ())
            ]
            for media, body in told.get("requestBody", {}).get("content", {}).items():
                rows += body_rows(media, body["schema"], document["components"]["schemas"])
            if rows:
                parts += ["| name | in | type | required |", "|---|---|---|---|"]
                parts += [f"| {' | '.join(row)} |" for row in rows] + [""]
            gives = ", ".join(f"`{each}`" for each in told["responses"]["200"]["content"])
            statuses = ", ".join(each for each in told["responses"] if each != "200")
            parts += [f"200: {gives}. Also {statuses}.", ""]
    return "\n".join(parts)


def body_rows(media: str, schema: dict[str, Any], known: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """The members of a body; one row for a body that is no object."""
    name = schema.get("$ref", "").rpartition("/")[2]
    if not name:
        return [("body", f"`{media}`", schema_text(schema), "yes")]
    members = known[name]["properties"]
    needed = known[name].get("required", ())
    return [
        (f"`{each}`", "body", schema_text(said), "yes" if each in needed else "")
        for each, said in members.items()
    ]


def schema_text(schema: dict[str, Any]) -> str:
    """A type in a word or two."""
    if "anyOf" in schema:
        return " or ".join(schema_text(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    return f"list of {schema_text(schema['items'])}" if "items" in schema else schema.get("type", "any")


PAGES = {"cli.md": commands_page, "errors.md": errors_page, "http.md": http_page, "python.md": python_page}


def main() -> int:
    """Write the pages; with `--check` only say whether they are up to date."""
    stale = [name for name, make in PAGES.items() if current(name) != make()]
    if "--check" in sys.argv[1:]:
        print(f"stale: {', '.join(stale)}" if stale else "the generated pages are up to date")
        return 1 if stale else 0
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (REFERENCE / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"wrote docs/reference/{name}")
    return 0


def current(name: str) -> str | None:
    """The page as it is on disk."""
    page = REFERENCE / name
    return page.read_text(encoding="utf-8") if page.exists() else None


if __name__ == "__main__":
    sys.exit(main())
