"""Commands over schema and query files: lint, fmt, schema plan."""

import typer


def register(app: typer.Typer, schema_app: typer.Typer) -> None:
    """Add the commands of this module to the tree."""
