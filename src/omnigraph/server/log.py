"""The log of the server: one JSON object per line on stderr. No token, parameter or row ever gets here."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import structlog

if TYPE_CHECKING:
    from omnigraph.core.permission import Decision, Question

LEVEL: Final = "OMNIGRAPH_LOG"


def write_line(message: str) -> None:
    """Write one line to stderr, whatever that is at the moment. A log nobody can write fails no request."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()


class _Lines:
    """Where the lines of every level go."""

    def msg(self, message: str) -> None:
        """Write one line."""
        write_line(message)

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


def audit(
    actor: str | None, request_id: str, graph_id: str | None, question: Question, decision: Decision
) -> None:
    """The line of one decision."""
    log().info(
        "decision",
        actor=actor,
        action=str(question.action),
        branch=question.branch,
        target=question.target,
        graph=graph_id,
        allowed=decision.allowed,
        rule=decision.rule,
        request_id=request_id,
    )
