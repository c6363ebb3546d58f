"""The log of the server: one JSON object per line on stderr. No token, parameter or row ever gets here."""

import logging
import os
import sys
from functools import cache
from typing import Any, Final

import structlog

LEVEL: Final = "OMNIGRAPH_LOG"


@cache
def log() -> Any:
    """The logger of this process."""
    level = logging.getLevelNamesMapping().get(os.environ.get(LEVEL, "info").upper(), logging.INFO)
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
