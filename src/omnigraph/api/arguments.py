"""What a caller hands over, looked at once: text where text is meant, a whole number where one is."""

import functools
import inspect
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import Final, ParamSpec, SupportsIndex, TypeVar, cast

from omnigraph.core.bounds import LIMIT_WORDS, bounds_of, check_bounds, shown_value, within
from omnigraph.core.errors import BadRequest

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")
Class = TypeVar("Class", bound=type)

NUMBER_MAX: Final = 2**63 - 1
"""The greatest number a caller may give: what counts and what is stored has no room for more."""


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise BadRequest(f"'{name}' is text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRequest(f"'{name}' holds half of a surrogate pair, which is not text") from None


def _text_or_none(name: str, value: object) -> None:
    if value is not None:
        _text(name, value)


def _text_or_number(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        _text(name, value)


def _path(name: str, value: object) -> None:
    if not isinstance(value, (str, os.PathLike)):
        raise BadRequest(f"'{name}' is text or a path, not {type(value).__name__}")


def _path_or_none(name: str, value: object) -> None:
    if value is not None:
        _path(name, value)


def _path_or_mapping_or_none(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        _path_or_none(name, value)


def _texts(name: str, value: object) -> None:
    if not isinstance(value, Sequence):
        raise BadRequest(f"'{name}' is a list of texts, not {type(value).__name__}")
    for each in cast("Sequence[object]", value):
        _text(name, each)


def _texts_or_none(name: str, value: object) -> None:
    if value is not None:
        _texts(name, value)


def _number(name: str, value: object) -> None:
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        number = operator.index(value)
        if -NUMBER_MAX <= number <= NUMBER_MAX:
            return
    raise BadRequest(f"'{name}' is a whole number of at most 63 bits, not {shown_value(value)}")


def _number_or_none(name: str, value: object) -> None:
    if value is not None:
        _number(name, value)


def _duration_or_none(name: str, value: object) -> None:
    if value is not None and not isinstance(value, timedelta):
        raise BadRequest(
            f"'{name}' is a timedelta, not {shown_value(value)}", hint="such as datetime.timedelta(days=7)"
        )


_LIMITS: Final = frozenset(LIMIT_WORDS)
_ONLY_LIMITS: Final = "Unpack[CallLimits]"
"""The annotation of `**_limits` where a call takes no other words."""
_CHECKS: Final[dict[str, Callable[[str, object], None]]] = {
    "str": _text,
    "str | None": _text_or_none,
    "str | int": _text_or_number,
    "int": _number,
    "int | None": _number_or_none,
    "timedelta | None": _duration_or_none,
    "Sequence[str]": _texts,
    "Sequence[str] | None": _texts_or_none,
    "str | os.PathLike[str]": _path,
    "str | os.PathLike[str] | None": _path_or_none,
    "str | os.PathLike[str] | Mapping[str, Any] | None": _path_or_mapping_or_none,
}
"""By the annotation of a parameter."""
_OF_TEXTS: Final = frozenset(
    {_text, _text_or_none, _text_or_number, _path, _path_or_none, _path_or_mapping_or_none}
)
"""Checks that let every text pass that is ASCII."""


def text_checked(call: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """The call; it refuses what its annotations do not allow where they ask for text, a path or a number.

    Raises BadRequest that names the parameter. Cost: one test for each argument.
    """
    # A signature of the whole call would take longer than all the rest of loading the module.
    code = inspect.unwrap(call).__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    checks = {
        name: _CHECKS[spelled]
        for name, annotation in call.__annotations__.items()
        if (spelled := inspect.formatannotation(annotation).strip("'")) in _CHECKS and name in names
    }

    by_place = [
        (place, name, checks[name] in _OF_TEXTS) for place, name in enumerate(names) if name in checks
    ]

    @functools.wraps(call)
    def checked(*given: Parameters.args, **named: Parameters.kwargs) -> Returned:
        for place, name, of_text in by_place:
            if place < len(given):
                value: object = given[place]
            elif name in named:
                value = named[name]
            else:
                continue
            # Nearly every argument is ASCII, and that is told without a call.
            if not (of_text and value.__class__ is str and value.isascii()):  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  it is a string there
                checks[name](name, value)
        return call(*given, **named)

    return checked if checks else call


def limited(call: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """The call; the words of `CallLimits` bound what it does in its thread. Cost without any: one look.

    A call that takes keywords for these words alone would take any: those it does not know are refused here.
    """
    code = inspect.unwrap(call).__code__
    own = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    known = own | _LIMITS
    only_limits = (
        inspect.formatannotation(call.__annotations__.get("_limits")).strip("'").endswith(_ONLY_LIMITS)
    )

    @functools.wraps(call)
    def bounded(*given: Parameters.args, **named: Parameters.kwargs) -> Returned:
        if not named or named.keys() <= own:
            return call(*given, **named)
        if only_limits and not named.keys() <= known:
            raise _unexpected(code.co_name, next(each for each in named if each not in known), known)
        if not named.keys() & _LIMITS:
            return call(*given, **named)
        words = {each: named.pop(each) for each in LIMIT_WORDS if each in named}
        with within(bounds_of(words)):
            check_bounds()
            return call(*given, **named)

    return bounded


def _unexpected(call: str, name: str, known: AbstractSet[str]) -> TypeError:
    """What Python says of a keyword that a call does not have, and what may have been meant."""
    from omnigraph.language.diagnostics import near_names  # noqa: PLC0415  only a slip needs it

    text = f"{call}() got an unexpected keyword argument '{name}'"
    near = near_names(name, sorted(known - {"self"}))
    if near:
        return TypeError(f"{text}; did you mean '{near[0]}'?")
    if "params" in known:
        return TypeError(f"{text}; parameters of a query are given as {{'{name}': ...}}")
    return TypeError(text)


def text_checked_methods(cls: Class) -> Class:
    """The class; its public methods are `text_checked`, and `limited` where they take the words for it."""
    for name, member in list(vars(cls).items()):
        if inspect.isfunction(member) and not name.startswith("_"):
            takes_limits = any(
                each.kind is inspect.Parameter.VAR_KEYWORD
                for each in inspect.signature(member).parameters.values()
            )
            checked = text_checked(member)
            setattr(cls, name, limited(checked) if takes_limits else checked)
    return cls
