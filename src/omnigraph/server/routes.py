"""The one table of routes. Routing, validation, authorization and the OpenAPI document are made from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from omnigraph.server import bodies, reading, writing
from omnigraph.server.answers import ARROW, JSON, LINES
from omnigraph.server.calls import changes_branch, exports_target, loads_branch, reads_main, reads_target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from omnigraph.core.permission import Question
    from omnigraph.server.calls import Work


class Carried(StrEnum):
    """Where a request says what it wants."""

    PARAMETERS = "parameters"
    """In its address."""
    BODY = "body"
    """In one JSON object."""
    RECORDS = "records"
    """In its address; the body is a stream of records."""


class Lane(StrEnum):
    """Which workers do it."""

    READS = "reads"
    WRITES = "writes"


@dataclass(frozen=True, slots=True)
class GraphRoute:
    """One thing a client can ask of a graph."""

    operation: str
    method: str
    path: str
    summary: str
    said: type[bodies.Body]
    carried: Carried
    lane: Lane
    asks: Callable[[Any, Mapping[str, str]], tuple[Question, ...]]
    work: Work
    gives: tuple[str, ...] = (JSON,)
    statuses: tuple[int, ...] = (400,)
    """Statuses that are not common to all routes."""


PREFIX: Final = "/graphs/{graph_id}"

GRAPH_ROUTES: Final[tuple[GraphRoute, ...]] = (
    GraphRoute(
        "query", "POST", "/query", "Run a query that reads.",
        bodies.QueryBody, Carried.BODY, Lane.READS, reads_target, reading.query,
        gives=(JSON, ARROW), statuses=(400, 404, 413, 415, 424, 504),
    ),
    GraphRoute(
        "export", "POST", "/export", "Every record of a state, as lines of the load format.",
        bodies.ExportBody, Carried.BODY, Lane.READS, exports_target, reading.export,
        gives=(LINES,), statuses=(400, 404, 413, 415),
    ),
    GraphRoute(
        "getSchema", "GET", "/schema", "The accepted schema.",
        bodies.Nothing, Carried.PARAMETERS, Lane.READS, reads_main, reading.schema,
    ),
    GraphRoute(
        "listBranches", "GET", "/branches", "All branches, by name.",
        bodies.Nothing, Carried.PARAMETERS, Lane.READS, reads_main, reading.branches,
    ),
    GraphRoute(
        "mutate", "POST", "/mutate", "Run a query that writes, as one commit or not at all.",
        bodies.MutateBody, Carried.BODY, Lane.WRITES, changes_branch, writing.mutate,
        statuses=(400, 404, 409, 412, 413, 415, 424, 429),
    ),
    GraphRoute(
        "load", "POST", "/load", "Load JSON lines as one commit or not at all.",
        bodies.LoadParameters, Carried.RECORDS, Lane.WRITES, loads_branch, writing.load,
        statuses=(400, 404, 409, 412, 413, 415, 429),
    ),
)  # fmt: skip
