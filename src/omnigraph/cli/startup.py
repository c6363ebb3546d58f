"""Keep out of a command what it never uses: pandas, masked arrays, and wrappers of functions.

Loading modules is most of what a short command costs. Libraries prepare much more than one command calls, and
can be made to wait until somebody asks:

- The first `pyarrow.array(...)` of a process asks whether pandas can be imported, and importing it costs more
  than most commands do. While this process imports pyarrow, it gets to ask once with the answer no; after
  that pandas can be imported as usual, and `to_pandas` still works.
- `pyarrow.compute` wraps some 250 functions. Here a function is wrapped when it is first named, without the
  documentation that would be put together for it; so the module that reads documentation waits, too.
- pyarrow asks of every numpy array whether it is masked, and that question loads `numpy.ma`. No array is
  masked before somebody else has loaded it.
- numpy writes the documentation of its functions when it is loaded. Here `numpy.ma` has it written: it puts
  parts of it together.
- The import system lists directories and tries the endings of every kind of module. Modules of this package
  are files that end in `.py`.
- msgspec takes from `typing_extensions` what `typing` has as well.
- Lance has some forty data classes, each with methods that are compiled for it. Here they are made late, as
  those of this package are.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:  # loading these for a base class costs as much as a small module
    from importlib.abc import Loader

_SPELLED: Final = {"and_": "and", "or_": "or", "utf8_zfill": "utf8_zero_fill"}
"""How pyarrow spells functions whose names are words of Python, and the one that has two names."""

_NAMED_IN_ITS_TEXT: Final = ("utf8_zero_fill", "utf8_zfill")
"""What the text of `pyarrow.compute` itself takes from the functions it has wrapped."""


def spare() -> None:
    """Do all of it for this process."""
    if "pyarrow" not in sys.modules and "numpy" not in sys.modules:
        sys.meta_path[:0] = [_Finder(), _OwnFinder()]


class _OwnFinder:
    """Finds the modules of this package by their names alone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module or a package; None leaves the question to the import system."""
        del target
        if path is None or not fullname.startswith("omnigraph."):
            return None
        place = os.path.join(path[0], fullname.rpartition(".")[2])  # noqa: PTH118  a path object takes longer
        for origin, is_package in ((f"{place}.py", False), (os.path.join(place, "__init__.py"), True)):  # noqa: PTH118
            if os.path.exists(origin):  # noqa: PTH110
                loader = SourceFileLoader(fullname, origin)
                spec = ModuleSpec(fullname, loader, origin=origin, is_package=is_package)
                spec.has_location = True
                if spec.submodule_search_locations is not None:
                    spec.submodule_search_locations.append(place)
                return spec
        return None


class _Finder:
    """Finds these modules as usual, each once, and has them loaded in another way."""

    def __init__(self) -> None:
        self._loaders: dict[str, Callable[[Any], Any]] = {
            "lance": _DataClassesLate,
            "msgspec": _WithoutExtensions,
            "numpy": _MaskingLate,
            "numpy.ma": _Documented,
            "numpy._core._add_newdocs": _Undocumented,
            "numpy._core._add_newdocs_scalars": _Undocumented,
            "pyarrow": _AskingEarly,
            "pyarrow.compute": _WrappingLate,
            "pyarrow.vendored.docscrape": _Late,
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of these; nothing else is touched."""
        loader = self._loaders.pop(fullname, None)
        if loader is None:
            return None
        if not self._loaders:
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = loader(spec.loader)
        return spec


class _Wrapper:
    """Loads a module as another loader does."""

    def __init__(self, wrapped: "Loader") -> None:
        self.wrapped = wrapped

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the real loader does."""
        return self.wrapped.create_module(spec)


class _Absent:
    """Says that there is no such module, for as long as somebody asks."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuse the one, know nothing else."""
        del path, target
        if fullname == self._name:
            raise ModuleNotFoundError(f"{fullname} is not needed here", name=fullname)
        return None

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)


class _AskingEarly(_Wrapper):
    """Loads pyarrow and lets it ask for pandas at once."""

    def exec_module(self, module: ModuleType) -> None:
        """Import pyarrow, then make it decide about pandas."""
        self.wrapped.exec_module(module)
        if "pandas" in sys.modules:
            return
        with _Absent("pandas"):
            module.array([])


class _WithoutExtensions(_Wrapper):
    """Loads a package that does without `typing_extensions`."""

    def exec_module(self, module: ModuleType) -> None:
        """Import it while there is none."""
        with _Absent("typing_extensions"):
            self.wrapped.exec_module(module)


class _Late(_Wrapper):
    """Loads a module when something of it is asked for."""

    def exec_module(self, module: ModuleType) -> None:
        """Leave it empty."""

        def load(name: str) -> Any:
            vars(module).pop("__getattr__", None)
            self.wrapped.exec_module(module)
            return getattr(module, name)

        vars(module)["__getattr__"] = load


class _MaskingLate(_Wrapper):
    """Loads numpy, and lets it say that no array is masked until `numpy.ma` is there."""

    def exec_module(self, module: ModuleType) -> None:
        """Import numpy; importing `numpy.ma` puts the real one in the place of this answer."""
        self.wrapped.exec_module(module)
        if "numpy.ma" not in sys.modules:
            vars(module)["ma"] = _NothingMasked("numpy.ma")


class _NothingMasked(ModuleType):
    """Stands for `numpy.ma`, and loads it for whoever wants more of it than the class."""

    class MaskedArray:
        """No array is one."""

    def __getattr__(self, name: str) -> Any:
        import numpy.ma as real

        return getattr(real, name)


class _Undocumented(_Wrapper):
    """Leaves a module empty that only writes documentation, until that is asked for."""

    waiting: ClassVar[list[Callable[[], None]]] = []

    def exec_module(self, module: ModuleType) -> None:
        """Remember how it is done."""
        self.waiting.append(lambda: self.wrapped.exec_module(module))


class _Documented(_Wrapper):
    """Loads a module that needs the documentation of numpy."""

    def exec_module(self, module: ModuleType) -> None:
        """Have the documentation written first."""
        while _Undocumented.waiting:
            _Undocumented.waiting.pop(0)()
        self.wrapped.exec_module(module)


class _DataClassesLate(_Wrapper):
    """Loads a package whose data classes get their methods when these are needed."""

    def exec_module(self, module: ModuleType) -> None:
        """Import it with another decorator in the place of the usual one."""
        import dataclasses

        from omnigraph.core import late_dataclass

        place: Any = dataclasses
        usual = place.dataclass

        def decorator(cls: type | None = None, /, **how: bool) -> Any:
            def made(template: type) -> Any:
                late: Any = late_dataclass
                return (usual if _asks_for_its_class(template) else late.dataclass)(**how)(template)

            return made if cls is None else made(cls)

        place.dataclass = decorator
        try:
            self.wrapped.exec_module(module)
        finally:
            place.dataclass = usual


def _asks_for_its_class(template: type) -> bool:
    """Whether a method says `super()`: then the class cannot be made anew."""
    codes = [getattr(member, "__code__", None) for member in vars(template).values()]
    return any(code is not None and "__class__" in code.co_freevars for code in codes)


class _WrappingLate(_Wrapper):
    """Loads `pyarrow.compute` with the functions it names itself; others when they are asked for."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the module beside a registry that lists nothing."""
        import pyarrow._compute as kernels

        found: Any = kernels
        registry = found.function_registry
        own = vars(module)
        before = dict(own)
        few = SimpleNamespace(list_functions=list)
        found.function_registry = lambda: few
        own |= dict.fromkeys(_NAMED_IN_ITS_TEXT)
        try:
            self.wrapped.exec_module(module)
        except (AssertionError, AttributeError, LookupError):  # it changed: let it do as it likes
            found.function_registry = registry
            own.clear()
            own |= before
            self.wrapped.exec_module(module)
            return
        finally:
            found.function_registry = registry
        for name in _NAMED_IN_ITS_TEXT:
            del vars(module)[name]
        vars(module)["function_registry"] = registry
        vars(module)["__getattr__"] = _maker(module, registry())


def _maker(module: ModuleType, registry: Any) -> Callable[[str], Any]:
    def wrapped(name: str) -> Any:
        known = _SPELLED.get(name, name)
        try:
            function = None if name.startswith("__") else registry.get_function(known)
        except KeyError:
            function = None
        nullary = function is not None and function.kind == "scalar_aggregate" and function.arity == 0
        if function is None or function.kind == "hash_aggregate" or nullary:
            raise AttributeError(f"module '{module.__name__}' has no attribute '{name}'")
        own = vars(module)
        made = own["_make_generic_wrapper"](
            known, function, own["_get_options_class"](function), arity=function.arity
        )
        made.__name__ = made.__qualname__ = name
        own[name] = made
        return made

    return wrapped
