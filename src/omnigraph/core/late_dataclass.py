"""Data classes whose methods are made when they are needed.

A data class of the standard library writes and compiles up to six methods when its module is loaded. A
command loads hundreds of such classes and makes objects of a few: that was a third of what a query cost. Here
a class gets its slots at once, `__init__` with the first objects, and the rest from the standard library when
the first of it is asked for. As with slots there, the class is made anew: `super()` needs its arguments.

Most classes of a command have a few objects. Their fields are set one by one; an `__init__` is compiled for
the classes that have more.
"""

import dataclasses
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, cast

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, **how: bool) -> type | Callable[[type], type]:
        """What `dataclasses.dataclass` does, later; at once where other options are asked for than these."""

        def made(template: type) -> type:
            if how.keys() <= {"slots", "frozen", "eq"}:
                return _Making(template, how).cls
            return _STANDARD(**how)(template)

        return made if cls is None else made(cls)


_STANDARD: Final = dataclasses.dataclass
"""What it was when this was loaded: a command puts another decorator there while it loads a library."""

_ALWAYS: Final = ("__init__", "__repr__", "__dataclass_fields__", "__dataclass_params__", "__match_args__")
_SINCE_3_13: Final = ("__replace__",) if sys.version_info >= (3, 13) else ()
_FROZEN: Final = ("__setattr__", "__delattr__")
_FROZEN_SLOTS: Final = ("__getstate__", "__setstate__")
_MAKING: Final = "_late_dataclass"

_LOCK: Final = threading.RLock()
"""Finishing a class finishes its bases."""

OBJECTS_BEFORE_COMPILING: Final = 8
"""Compiling an `__init__` takes as long as setting the fields of some twenty objects one by one."""


class _Field(NamedTuple):
    """What an `__init__` has to know about a field."""

    type: Any
    default: Any
    factory: Any
    init: bool
    kw_only: bool


class _Making:
    """A class that still lacks what makes it a data class."""

    def __init__(self, template: type, how: dict[str, bool]) -> None:
        self._template = template
        self._how = how
        self._slots, self._frozen = how.get("slots", False), how.get("frozen", False)
        self._finished = False
        self._few: dict[str, _Field] | None = None
        self._objects = 0
        self._namespace = dict(vars(template))
        # Every class makes these two for itself.
        self._namespace.pop("__dict__", None)
        self._namespace.pop("__weakref__", None)
        self._types = {
            name: type_ for name, type_ in template.__annotations__.items() if not _of_the_class(type_)
        }
        self._missing = self._find_missing()
        waiting = {name: _WAITING[name] for name in self._missing}
        self.cls = self._class({**self._unfinished(), **waiting, _MAKING: self})

    def complete(self, name: str) -> Any:
        """Give the class this member, and return it."""
        if name != "__init__" or not self._begin():
            self._finish()
        return vars(self.cls)[name]

    def initialize(self, instance: object, /, *values: Any, **named: Any) -> None:
        """Set the fields of an object: what the `__init__` does that is not compiled yet."""
        self._objects += 1
        if self._few is None:
            self._few = self._fields()
        found = None
        if self._few is not None and self._objects <= OBJECTS_BEFORE_COMPILING:
            found = _arranged(self._few, values, named)
        if found is None:  # it has many objects, or says itself what is wrong with the arguments
            self.complete("__init__")(instance, *values, **named)
            return
        for name, value in found.items():
            if self._frozen:
                object.__setattr__(instance, name, value)
            else:
                setattr(instance, name, value)
        after = getattr(instance, "__post_init__", None)
        if after is not None:
            after()

    def _begin(self) -> bool:
        """Give the class its `__init__`. Returns whether it is one that is written here."""
        fields = self._fields()
        if fields is None:
            return False
        self.cls.__init__ = _written(self.cls, fields, frozen=self._frozen)
        return True

    def _finish(self) -> None:
        """Give the class everything. Whoever is interrupted here leaves a class that can be finished."""
        with _LOCK:
            if self._finished:
                return
            make = cast("Callable[[type], type]", _STANDARD(**self._how))
            whole = vars(make(self._class(dict(self._namespace))))
            if whole.get("__slots__") != vars(self.cls).get("__slots__"):
                raise TypeError(f"{self.cls.__qualname__} should have other slots")
            for name in self._missing:
                setattr(self.cls, name, whole[name])
            self._finished = True

    def _class(self, namespace: dict[str, Any]) -> type:
        like = self._template
        made = type(like)(like.__name__, like.__bases__, namespace)
        made.__qualname__ = like.__qualname__
        return made

    def _unfinished(self) -> dict[str, Any]:
        """The members the class has from the beginning."""
        members = {name: value for name, value in self._namespace.items() if name not in self._types}
        if self._slots:
            known = {name for base in self._template.__mro__[1:] for name in vars(base).get("__slots__", ())}
            return {**members, "__slots__": tuple(name for name in self._types if name not in known)}
        defaults = {name: field.default for name, field in self.own_fields().items()}
        return members | {name: value for name, value in defaults.items() if value is not dataclasses.MISSING}

    def _find_missing(self) -> list[str]:
        """What the standard library will add: nothing that the class says itself."""
        equal, own = self._how.get("eq", True), self._namespace
        names = [*_ALWAYS, *_SINCE_3_13]
        if self._frozen:
            names += (*_FROZEN, *_FROZEN_SLOTS) if self._slots else _FROZEN
        if equal:
            names.append("__eq__")
        missing = [name for name in names if name not in own]
        # A class that says what is equal gets the hash None from the language.
        unsaid = own.get("__hash__") is None and ("__eq__" in own or "__hash__" not in own)
        return [*missing, "__hash__"] if equal and self._frozen and unsaid else missing

    def _fields(self) -> dict[str, _Field] | None:
        """The fields, those of its bases first; None when only the standard library can read them."""
        fields: dict[str, _Field] = {}
        for base in reversed(self.cls.__mro__):
            making = vars(base).get(_MAKING)
            if making is not None:
                fields |= making.own_fields()
            elif "__dataclass_fields__" in vars(base):
                fields |= {field.name: _described(field, field.type) for field in dataclasses.fields(base)}
        return None if any(field.kw_only for field in fields.values()) else fields

    def own_fields(self) -> dict[str, _Field]:
        """The fields this class declares."""
        return {
            name: _described(self._namespace.get(name, dataclasses.MISSING), type_)
            for name, type_ in self._types.items()
        }


def _described(said: Any, type_: Any) -> _Field:
    """A field from what stands behind its name in the class: nothing, a default, or `field(...)`."""
    if not isinstance(said, dataclasses.Field):
        return _Field(type_, said, dataclasses.MISSING, init=True, kw_only=False)
    field = cast("dataclasses.Field[Any]", said)
    return _Field(type_, field.default, field.default_factory, init=field.init, kw_only=field.kw_only is True)


def _arranged(
    fields: dict[str, _Field], values: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, Any] | None:
    """The value of each field; None when these are not the arguments of the class."""
    taken = [name for name, field in fields.items() if field.init]
    given = dict(zip(taken, values, strict=False)) | named
    if len(given) != len(values) + len(named) or not named.keys() <= set(taken):
        return None
    found: dict[str, Any] = {}
    for name, field in fields.items():
        if name in given:
            found[name] = given[name]
        elif field.factory is not dataclasses.MISSING:
            found[name] = field.factory()
        elif field.default is not dataclasses.MISSING:
            found[name] = field.default
        elif field.init:
            return None
    return found


class _Waiting:
    """Stands for a member of a class until somebody asks for it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        found = _complete(owner, self._name)
        return found.__get__(instance, owner) if hasattr(found, "__get__") else found


class _WaitingInit(_Waiting):
    """Stands for `__init__`: whoever makes an object gets its fields set, whoever looks gets a function."""

    def __init__(self) -> None:
        super().__init__("__init__")

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is not None:
            for cls in owner.__mro__:
                if vars(cls).get("__init__") is self:
                    making: _Making = vars(cls)[_MAKING]
                    return partial(making.initialize, instance)
        return super().__get__(instance, owner)


def _complete(owner: type, name: str) -> Any:
    """The member that a class has, or inherits, and that waits to be made."""
    for cls in owner.__mro__:
        if vars(cls).get(name) is _WAITING[name]:
            return vars(cls)[_MAKING].complete(name)
    return getattr(owner, name)  # another thread made it meanwhile


# The language does without these three if looking for them fails, be it by an interrupt: they are called.


def _repr(self: object) -> str:
    return _complete(type(self), "__repr__")(self)


def _eq(self: object, other: object) -> bool:
    return _complete(type(self), "__eq__")(self, other)


def _hash(self: object) -> int:
    return _complete(type(self), "__hash__")(self)


_WAITING: Final[dict[str, Any]] = {
    **{name: _Waiting(name) for name in (*_ALWAYS, *_SINCE_3_13, *_FROZEN, *_FROZEN_SLOTS)},
    "__init__": _WaitingInit(),
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
}


class _Factory:
    """The default of a parameter whose value is made for each object."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY: Final = _Factory()


def _of_the_class(type_: Any) -> bool:
    """Whether an annotation declares something that objects do not have."""
    if isinstance(type_, str):
        return type_.startswith("ClassVar")
    return type_ is ClassVar or getattr(type_, "__origin__", None) is ClassVar


def _written(cls: type, fields: dict[str, _Field], *, frozen: bool) -> Any:
    """An `__init__` that takes and sets these fields."""
    parameters: list[str] = ["self"]
    lines: list[str] = []
    known: dict[str, Any] = {"__name__": cls.__module__, "__set": object.__setattr__, "__factory": _FACTORY}
    for at, (name, field) in enumerate(fields.items()):
        default, value = f"__default{at}", name
        if field.factory is not dataclasses.MISSING:
            known[default] = field.factory
            value = f"{default}() if {name} is __factory else {name}" if field.init else f"{default}()"
            default = "__factory"
        elif field.default is not dataclasses.MISSING:
            known[default] = field.default
            value = name if field.init else default
        elif field.init:
            default = ""
        else:
            continue
        if field.init:
            parameters.append(f"{name}={default}" if default else name)
        lines.append(f"__set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    text = f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"])
    exec(text, known)  # noqa: S102  what the standard library does, too
    written = known["__init__"]
    written.__qualname__ = f"{cls.__qualname__}.__init__"
    types = {name: field.type for name, field in fields.items() if field.init}
    written.__annotations__ = {**types, "return": None}
    return written
