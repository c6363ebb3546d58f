"""Generated reference pages: commands and error kinds. `make docs` writes them, a test compares them."""

import sys
from pathlib import Path

import typer

from omnigraph.cli.app import app
from omnigraph.cli.arguments import COMMANDS
from omnigraph.core.errors import KINDS

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
    command = typer.main.get_command(app)
    context = command.make_context(
        "omnigraph", [], resilient_parsing=True, max_content_width=100, terminal_width=100
    )
    for word in path:
        command = command.get_command(context, word)
        context = command.make_context(
            word, [], parent=context, resilient_parsing=True, max_content_width=100, terminal_width=100
        )
    return command.get_help(context).rstrip()


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
    return "\n".join([*parts, ""])


PAGES = {"cli.md": commands_page, "errors.md": errors_page}


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
