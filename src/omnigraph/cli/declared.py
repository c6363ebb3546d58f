"""Arguments and options of commands, declared without loading the parser.

The parser takes longer to load than most commands run. A call that is spelled plainly is read here
(`plain_call`); help, mistakes and everything unusual is for the parser, which gets the same declarations.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from types import FunctionType, NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin


class Argument:
    """A word of the command line that has no flag."""

    param_decls: tuple[str, ...] = ()
    callback: Callable[..., Any] | None = None

    def __init__(self, *, metavar: str | None = None, help: str = "") -> None:  # noqa: A002  the parser's word
        self.words: dict[str, Any] = {"metavar": metavar, "help": help}


class Option:
    """A flag, its spellings, and what the parser is told. `callback` gets all arguments and its value."""

    def __init__(
        self, *spellings: str, callback: Callable[..., Any] | None = None, **words: str | int | bool
    ) -> None:
        self.param_decls = spellings
        self.callback = callback
        self.words: dict[str, Any] = dict(words)


def for_parser(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same command with its parameters declared in the parser's own words."""
    import typer

    annotations = dict(function.__annotations__)
    for name, declared in annotations.items():
        type_, found = _taken_apart(declared)
        if isinstance(found, Argument):
            annotations[name] = Annotated[type_, typer.Argument(**found.words)]
        elif isinstance(found, Option):
            known = typer.Option(*found.param_decls, callback=_for_parser(found.callback), **found.words)
            annotations[name] = Annotated[type_, known]
    # A copy: the next call in this process may be a plain one.
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__doc__, copy.__kwdefaults__ = function.__doc__, function.__kwdefaults__
    copy.__annotations__ = annotations
    return copy


def _for_parser(callback: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """A callback as the parser calls it."""
    if callback is None:
        return None
    import typer

    def called(context: typer.Context, value: Any) -> Any:
        return callback(context.params, value)

    return called


def plain_call(function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any] | None:
    """The arguments of a command that is called plainly; None for anything the parser has to look at.

    Plain are known flags in full, their values in the next word or behind `=`, and words without a flag.
    """
    call = _Call(function)
    rest = list(words)
    while rest:
        if not call.take(rest):
            return None
    return call.arguments()


class _Call:
    """A call while its words are read."""

    def __init__(self, function: Callable[..., Any]) -> None:
        code = function.__code__
        self._names = code.co_varnames[: code.co_argcount]
        self._defaults = dict(zip(self._names[::-1], (function.__defaults__ or ())[::-1], strict=False))
        self._types: dict[str, Any] = {}
        self._callbacks: dict[str, Callable[..., Any]] = {}
        self._flags: dict[str, str] = {}
        self._places: list[str] = []
        self._given: dict[str, Any] = {}
        for name in self._names:
            self._types[name], found = _taken_apart(function.__annotations__[name])
            if found.callback is not None:
                self._callbacks[name] = found.callback
            if "Argument" in type(found).__name__:
                self._places.append(name)
            for spelling in found.param_decls or ():
                self._flags[spelling] = name

    def take(self, rest: list[str]) -> bool:
        """Take the next word, and its value. Returns whether that was plain."""
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            return bool(self._places) and self._set(self._places.pop(0), word)
        flag, separator, value = word.partition("=")
        name = self._flags.get(flag)
        if name is None or (separator and not flag.startswith("--")):
            return False
        if self._types[name] is bool:
            self._given[name] = True
            return not separator
        if not separator:
            if not rest or (rest[0].startswith("-") and rest[0] != "-"):
                return False
            value = rest.pop(0)
        return self._set(name, value)

    def _set(self, name: str, text: str) -> bool:
        type_ = _without_none(self._types[name])
        if type_ is str:
            self._given[name] = text
        elif type_ == list[str]:
            self._given.setdefault(name, []).append(text)
        elif isinstance(type_, type) and issubclass(type_, Enum) and text in [each.value for each in type_]:
            self._given[name] = type_(text)
        else:
            return False
        return True

    def arguments(self) -> dict[str, Any] | None:
        """Everything the command takes; None when something is missing."""
        values = self._defaults | self._given
        if len(values) < len(self._names):
            return None
        for name, callback in self._callbacks.items():
            values[name] = callback(values, values[name])
        return values


def _taken_apart(declared: Any) -> tuple[Any, Any]:
    """The type of a parameter and its declaration; None for what is not declared."""
    if get_origin(declared) is not Annotated:
        return declared, None
    type_, found = get_args(declared)
    return type_, found


def _without_none(type_: Any) -> Any:
    if not isinstance(type_, UnionType):
        return type_
    (one,) = [each for each in get_args(type_) if each is not NoneType]
    return one
