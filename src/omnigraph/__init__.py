"""Omnigraph: a typed property graph on Lance and Spark."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from omnigraph.core import errors
    from omnigraph.core.errors import OmnigraphError

__version__ = "0.1.0"

# Where each public name lives. Nothing is imported until it is asked for: `import omnigraph` stays light.
_HOMES: Final[Mapping[str, str]] = {
    "OmnigraphError": "omnigraph.core.errors",
    "errors": "omnigraph.core",
}

__all__ = ["OmnigraphError", "__version__", "errors"]


def __getattr__(name: str) -> Any:
    """Import the home of a public name on first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'omnigraph' has no attribute '{name}'")
    module = importlib.import_module(home)
    value = importlib.import_module(f"{home}.{name}") if name == "errors" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
