"""Keep pandas out of commands that never use it.

The first `pyarrow.array(...)` of a process asks whether pandas can be imported, and importing it costs more
than most commands do. While this process imports pyarrow, it gets to ask once with the answer no; after that
pandas can be imported as usual, and `to_pandas` still works.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class _Absent(MetaPathFinder):
    """Says that there is no pandas."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuse pandas, know nothing else."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not needed here", name=fullname)
        return None


class _AskingEarly(Loader):
    """Loads pyarrow and lets it ask for pandas at once."""

    def __init__(self, wrapped: Loader) -> None:
        self._wrapped = wrapped

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the real loader does."""
        return self._wrapped.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Import pyarrow, then make it decide about pandas."""
        self._wrapped.exec_module(module)
        if "pandas" in sys.modules:
            return
        absent = _Absent()
        sys.meta_path.insert(0, absent)
        try:
            module.array([])
        finally:
            sys.meta_path.remove(absent)


class _PyarrowFinder(MetaPathFinder):
    """Finds pyarrow as usual, once, and hands it to `_AskingEarly`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of pyarrow; nothing else is touched."""
        if fullname != "pyarrow":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _AskingEarly(spec.loader)
        return spec


def spare_pandas() -> None:
    """Do so for this process. Does nothing when pyarrow is already loaded."""
    if "pyarrow" not in sys.modules:
        sys.meta_path.insert(0, _PyarrowFinder())
