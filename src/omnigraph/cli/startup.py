"""Keep out of a command what it never uses: pandas, and wrappers of functions.

Loading modules is most of what a short command costs. Two libraries prepare much more than one command calls,
and each can be made to wait until somebody asks:

- The first `pyarrow.array(...)` of a process asks whether pandas can be imported, and importing it costs more
  than most commands do. While this process imports pyarrow, it gets to ask once with the answer no; after
  that pandas can be imported as usual, and `to_pandas` still works.
- `pyarrow.compute` wraps some 250 functions. Here a function is wrapped when it is first named.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # loading these for a base class costs as much as a small module
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_KEYWORDS: Final = {"and_": "and", "or_": "or"}
"""How pyarrow spells functions whose names are words of Python."""


def spare() -> None:
    """Do all of it for this process."""
    if "pyarrow" not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds the two modules as usual, each once, and has them loaded in another way."""

    def __init__(self) -> None:
        self._loaders: dict[str, Callable[[Any], Any]] = {
            "pyarrow": _AskingEarly,
            "pyarrow.compute": _WrappingLate,
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """The spec of these two; nothing else is touched."""
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

    def create_module(self, spec: "ModuleSpec") -> "ModuleType | None":
        """As the real loader does."""
        return self.wrapped.create_module(spec)


class _Absent:
    """Says that there is no pandas."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Refuse pandas, know nothing else."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not needed here", name=fullname)
        return None


class _AskingEarly(_Wrapper):
    """Loads pyarrow and lets it ask for pandas at once."""

    def exec_module(self, module: "ModuleType") -> None:
        """Import pyarrow, then make it decide about pandas."""
        self.wrapped.exec_module(module)
        if "pandas" in sys.modules:
            return
        absent = _Absent()
        sys.meta_path.insert(0, absent)
        try:
            module.array([])
        finally:
            sys.meta_path.remove(absent)


class _WrappingLate(_Wrapper):
    """Loads `pyarrow.compute` with the functions it names itself; others when they are asked for."""

    def exec_module(self, module: "ModuleType") -> None:
        """Import the module beside a registry that lists almost nothing."""
        import pyarrow._compute as kernels

        found: Any = kernels
        registry = found.function_registry
        before = dict(vars(module))
        # It lists nothing but the one function that the module names in its own text.
        few = SimpleNamespace(list_functions=lambda: ["utf8_zero_fill"], get_function=registry().get_function)
        found.function_registry = lambda: few
        try:
            self.wrapped.exec_module(module)
        except (AssertionError, AttributeError, LookupError):  # it changed: let it do as it likes
            found.function_registry = registry
            vars(module).clear()
            for name, value in before.items():
                setattr(module, name, value)
            self.wrapped.exec_module(module)
            return
        finally:
            found.function_registry = registry
        vars(module)["function_registry"] = registry
        vars(module)["__getattr__"] = _maker(module, registry())


def _maker(module: "ModuleType", registry: Any) -> Callable[[str], Any]:
    def wrapped(name: str) -> Any:
        known = _KEYWORDS.get(name, name)
        try:
            function = None if name.startswith("__") else registry.get_function(known)
        except KeyError:
            function = None
        nullary = function is not None and function.kind == "scalar_aggregate" and function.arity == 0
        if function is None or function.kind == "hash_aggregate" or nullary:
            raise AttributeError(f"module '{module.__name__}' has no attribute '{name}'")
        made = vars(module)["_wrap_function"](name, function)
        vars(module)[name] = made
        return made

    return wrapped
