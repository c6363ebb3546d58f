"""The log of the server: one JSON object per line on stderr. No token, parameter or row ever gets here."""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import orjson
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


def _encoded(event: Any, **_: Any) -> str:
    """One line as JSON."""
    try:
        return orjson.dumps(event, default=str).decode()
    except TypeError:  # half a surrogate pair is no text there; a line is written whatever it holds
        return json.dumps(event, default=str)


@cache
def log() -> Any:
    """The logger of this process."""
    level = logging.getLevelNamesMapping().get(os.environ.get(LEVEL, "info").upper(), logging.INFO)
    return structlog.wrap_logger(
        _Lines(),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(_encoded),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )


def told(event: str, members: dict[str, Any]) -> None:
    """A line of every request, at the level `info`: as `log().info`, without the steps between."""
    if not log().is_enabled_for(logging.INFO):
        return
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    members |= {"event": event, "level": "info", "timestamp": now}
    write_line(_encoded(members))


def audit(
    actor: str | None, request_id: str, graph_id: str | None, question: Question, decision: Decision
) -> None:
    """The line of one decision."""
    told(
        "decision",
        {
            "actor": actor,
            "action": question.action,
            "branch": question.branch,
            "target": question.target,
            "graph": graph_id,
            "allowed": decision.allowed,
            "rule": decision.rule,
            "request_id": request_id,
        },
    )
