"""Query sources and parameters as a user gives them."""

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, cast

from omnigraph.api.texts import Text
from omnigraph.cli.addressing import addressed
from omnigraph.cli.declared import Argument, Option
from omnigraph.cli.sources import read_bytes, shown
from omnigraph.core.errors import (
    BadRequest,
    IoFailure,
    OmnigraphError,
    ParameterTypeError,
    SourceFailure,
    UsageError,
)
from omnigraph.core.errors.base import placed
from omnigraph.core.late_dataclass import dataclass

QueryName = Annotated[str | None, Argument(metavar="NAME", help="Which query of the source to run.")]
QueryFile = Annotated[
    str | None, Option("--query", metavar="FILE", help="The file with the query; - for stdin.")
]
ManyParamsFile = Annotated[
    str | None,
    Option(
        "--params-file",
        metavar="FILE",
        help="A file with that object, - for stdin; in a .jsonl file each line is a set: one run each.",
    ),
]
QueryText = Annotated[str | None, Option("-e", metavar="GQ", help="The query itself.")]
Params = Annotated[str | None, Option("--params", metavar="JSON", help="Parameters as a JSON object.")]
ParamsFile = Annotated[
    str | None, Option("--params-file", metavar="FILE", help="A file with that object; - for stdin.")
]
Param = Annotated[
    list[str] | None,
    Option("-p", metavar="NAME=VALUE", help="One parameter; VALUE is JSON or else text. Repeatable."),
]


def is_stored(name: str | None, file: str | None, text: str | None, store: str | None) -> bool:
    """Whether a query is called by its name alone, which a server knows."""
    return name is not None and file is None and text is None and addressed(store).server is not None


def query_source(name: str | None, file: str | None, text: str | None) -> Text:
    """The text to compile, from exactly one of the two ways to give it."""
    if file is not None and text is not None:
        raise UsageError("--query and -e exclude each other")
    if text is not None:
        if not text.strip():
            raise UsageError("the query given with -e is empty")
        return Text(text)
    if file is None:
        named = name if name is not None and name.endswith(".gq") else "FILE"
        raise UsageError(
            "a store has no stored queries; the query must be given",
            hint=f"pass -e 'query …' or --query {named}, or the name of a stored query with --server",
        )
    try:
        return Text(read_bytes(file).decode("utf-8-sig"))
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
    return values | _single(single)


def _single(given: Sequence[str] | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in given or ():
        name, separator, text = item.partition("=")
        if not separator or not name:
            raise UsageError(f"-p takes NAME=VALUE, not '{item}'")
        values[name] = _json_or_text(name, text)
    return values


def has_many_sets(file: str | None) -> bool:
    """Whether a file of parameters has one set per line."""
    return file is not None and file.lower().endswith((".jsonl", ".ndjson"))


@dataclass(frozen=True, slots=True)
class ParameterLines:
    """The sets of parameters of a file, and the line of each."""

    file: str
    sets: list[dict[str, Any]]
    lines: list[int]

    @contextmanager
    def naming(self) -> Generator[None]:
        """Failures inside that are about one set name its line."""
        try:
            yield
        except OmnigraphError as error:
            number: int | None = error.details.pop("parameter_set", None)
            if number is None:
                raise
            told = error.message.removeprefix(f"parameter set {number}: ")
            line = self.lines[number - 1]
            error.message = placed(told, shown(self.file), line)
            error.args = (error.message, *error.args[1:])
            error.details |= {"file": shown(self.file), "line": line}
            raise


def parameter_lines(given: str | None, file: str, single: Sequence[str] | None) -> ParameterLines:
    """The sets of parameters in a file, one JSON object per line; `-p` adds to each of them."""
    if given is not None:
        raise UsageError("--params and --params-file exclude each other")
    added = _single(single)
    sets: list[dict[str, Any]] = []
    lines: list[int] = []
    try:
        with Path(file).open("rb") as opened:
            for number, line in enumerate(opened, 1):
                if line.strip():
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                    sets.append(_object(text, f"'{shown(file)}', line {number}") | added)
                    lines.append(number)
    except UnicodeDecodeError as error:
        raise UsageError(f"'{shown(file)}' is not UTF-8 text") from error
    except OSError as error:
        raise IoFailure(f"'{file}' cannot be read: {error.strerror or error}") from error
    return ParameterLines(file, sets, lines)


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
