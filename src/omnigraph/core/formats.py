"""The numbers of everything that is written and read again later, all of them in one place.

`docs/reference/format.md` explains the files. A number grows when what is written changes in a way that an
earlier program would misread; whoever raises one keeps reading the numbers before it.
"""

from collections.abc import Mapping
from typing import Final

INTERNAL_SCHEMA_VERSION: Final = 3
"""A graph as a whole: how `__manifest` is laid out; stamped into it."""
SIDECAR_SCHEMA_VERSION: Final = 2
"""Notes of writes under way, `__recovery/<id>.json`."""
CONFIRMATION_SCHEMA_VERSION: Final = 2
"""The first form of those notes with confirmation. Never derived from the version written."""
LOAD_JOURNAL_FORMAT: Final = 4
"""Journals of bulk loads, `__loads/`."""
IR_FORMAT: Final = 1
"""Compiled schemas: `_schema.ir.json`, `__schemas/`."""
SCHEMA_STATE_FORMAT: Final = 1
"""Which schema is accepted, `__schema_state.json`."""
CLONE_FORMAT: Final = 1
"""Where a clone came from, `__clone.json`."""
PIN_FORMAT: Final = 1
"""States that somebody copies, `__pins/`."""
CLEANUP_FORMAT: Final = 1
"""What a cleanup has released, `__cleanup.json`."""
CACHE_FORMAT: Final = 3
"""Read structures, `__cache/`; files of another number are made anew."""
FEED_TOKEN_FORMAT: Final = 2
"""Places in the change feed, which consumers keep."""
CONFLICT_LIST_FORMAT: Final = 2
"""Lists of merge conflicts, which people decide in and hand back."""
DATA_STORAGE_VERSION: Final = "2.2"
"""The Lance file format that every dataset of a graph is created with."""

FORMATS: Final[Mapping[str, int | str]] = {
    "internal_schema_version": INTERNAL_SCHEMA_VERSION,
    "sidecar": SIDECAR_SCHEMA_VERSION,
    "load_journal": LOAD_JOURNAL_FORMAT,
    "schema_ir": IR_FORMAT,
    "schema_state": SCHEMA_STATE_FORMAT,
    "clone": CLONE_FORMAT,
    "pin": PIN_FORMAT,
    "cleanup": CLEANUP_FORMAT,
    "cache": CACHE_FORMAT,
    "feed_token": FEED_TOKEN_FORMAT,
    "conflict_list": CONFLICT_LIST_FORMAT,
    "lance_data_storage": DATA_STORAGE_VERSION,
}
"""All of them by the names that `omnigraph version --json` prints."""
