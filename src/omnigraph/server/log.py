"""The log of the server: one JSON object per line on stderr. No token, parameter or row ever gets here."""

import logging
import os
import sys
from contextlib import suppress
from functools import cache
from typing import Any, Final

import structlog

LEVEL: Final = "OMNIGRAPH_LOG"


class _Lines:
    """Writes lines to stderr, whatever that is at the moment. A log nobody can write fails no request."""

    def msg(self, message: str) -> None:
        """Write one line."""
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{message}\n")
            sys.stderr.flush()

    debug = info = warning = error = critical = msg


@cache
def log() -> Any:
    """The logger of this process."""
    level = logging.getLevelNamesMapping().get(os.environ.get(LEVEL, "info").upper(), logging.INFO)
    return structlog.wrap_logger(
        _Lines(),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
