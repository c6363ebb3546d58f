"""Query sources and parameters as a user gives them."""

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, cast

import typer

from omnigraph.cli.sources import read_bytes, shown
from omnigraph.core.errors import BadRequest, ParameterTypeError, SourceFailure, UsageError

QueryName = Annotated[str | None, typer.Argument(metavar="NAME", help="Which query of the source to run.")]
QueryFile = Annotated[
    str | None, typer.Option("--query", metavar="FILE", help="The file with the query; - for stdin.")
]
QueryText = Annotated[str | None, typer.Option("-e", metavar="GQ", help="The query itself.")]
Params = Annotated[str | None, typer.Option("--params", metavar="JSON", help="Parameters as a JSON object.")]
ParamsFile = Annotated[
    str | None, typer.Option("--params-file", metavar="FILE", help="A file with that object; - for stdin.")
]
Param = Annotated[
    list[str] | None,
    typer.Option("-p", metavar="NAME=VALUE", help="One parameter; VALUE is JSON or else text. Repeatable."),
]


def query_source(name: str | None, file: str | None, text: str | None) -> str:
    """The text to compile, from exactly one of the two ways to give it."""
    if file is not None and text is not None:
        raise UsageError("--query and -e exclude each other")
    if text is not None:
        if not text.strip():
            raise UsageError("the query given with -e is empty")
        return _as_text(text)
    if file is None:
        named = name if name is not None and name.endswith(".gq") else "FILE"
        raise UsageError(
            "a store has no stored queries; the query must be given",
            hint=f"pass -e 'query …' or --query {named}",
        )
    try:
        return _as_text(read_bytes(file).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadRequest(f"'{shown(file)}' is not UTF-8 text", hint="save the file as UTF-8") from error


@contextmanager
def naming(file: str | None, single: Sequence[str] | None = None) -> Generator[None]:
    """Failures inside name the file the query is from, and how a text that looks like a number is given."""
    try:
        yield
    except ParameterTypeError as error:
        given = {item.partition("=")[0] for item in single or ()}
        if error.expected.startswith("String") and error.parameter in given:
            error.hint = f"-p reads JSON first; write a text as -p '{error.parameter}=\"…\"'"
        raise
    except SourceFailure as error:
        if file is not None:
            error.name_file(shown(file))
        raise


def _as_text(text: str) -> str:
    # The Python API takes a path or a text; a line break makes it a text beyond doubt.
    return text if "\n" in text else text + "\n"


def parameters(given: str | None, file: str | None, single: Sequence[str] | None) -> dict[str, Any]:
    """The parameter values of a call."""
    if given is not None and file is not None:
        raise UsageError("--params and --params-file exclude each other")
    values: dict[str, Any] = {}
    if given is not None:
        values = _object(given, "--params")
    elif file is not None:
        try:
            text = read_bytes(file).decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"'{shown(file)}' is not UTF-8 text") from error
        values = _object(text, f"'{shown(file)}'")
    for item in single or ():
        name, separator, text = item.partition("=")
        if not separator or not name:
            raise UsageError(f"-p takes NAME=VALUE, not '{item}'")
        values[name] = _json_or_text(name, text)
    return values


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}") from error
    except RecursionError:
        raise UsageError(f"{where} is nested too deeply") from None
    if not isinstance(value, dict):
        raise UsageError(f"{where} is not a JSON object", hint='write it like {"name": "Ada"}')
    return cast("dict[str, Any]", value)


def _json_or_text(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
    except RecursionError:
        raise UsageError(f"-p {name} is nested too deeply") from None
