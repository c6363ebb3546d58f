"""Omnigraph: a typed property graph on Lance and Spark."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from omnigraph.api.graph import Graph, init, open_read_only
    from omnigraph.api.graph import open_graph as open  # noqa: A004
    from omnigraph.core import errors
    from omnigraph.core.errors import OmnigraphError

__version__ = "0.1.0"

# Where each public name lives. Nothing is imported until it is asked for: `import omnigraph` stays light.
_HOMES: Final[Mapping[str, str]] = {
    "Graph": "omnigraph.api.graph",
    "OmnigraphError": "omnigraph.core.errors",
    "errors": "omnigraph.core",
    "init": "omnigraph.api.graph",
    "open": "omnigraph.api.graph",
    "open_read_only": "omnigraph.api.graph",
}
_RENAMED: Final[Mapping[str, str]] = {"open": "open_graph"}

__all__ = ["Graph", "OmnigraphError", "__version__", "errors", "init", "open", "open_read_only"]


def __getattr__(name: str) -> Any:
    """Import the home of a public name on first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'omnigraph' has no attribute '{name}'")
    module = importlib.import_module(home)
    value = (
        importlib.import_module(f"{home}.{name}")
        if name == "errors"
        else getattr(module, _RENAMED.get(name, name))
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
