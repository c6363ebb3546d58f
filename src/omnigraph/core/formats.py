"""Numbers of durable formats that more than one room must know."""

from typing import Final

INTERNAL_SCHEMA_VERSION: Final = 3
"""The format of a graph this version writes; printed by `omnigraph version` and stamped into the manifest."""
