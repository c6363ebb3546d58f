"""The handlers that read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnigraph.server.answers import ARROW, LINES, Stream, document, rows_as_arrow, rows_as_json

if TYPE_CHECKING:
    from omnigraph.server.answers import Answer
    from omnigraph.server.bodies import ExportBody, Nothing, QueryBody
    from omnigraph.server.calls import Call


def query_text(text: str) -> str:
    """The text of a query, in a form that is never taken for the path of a file."""
    return f"{text}\n"


def query(call: Call[QueryBody]) -> Answer | Stream:
    """Run a query that reads."""
    said = call.said
    rows = call.graph.query(
        query_text(said.query),
        said.params,
        name=said.name,
        branch=said.branch,
        at=said.at,
        cancel=call.cancel,
    )
    return rows_as_arrow(rows) if ARROW in call.accept else rows_as_json(rows)


def export(call: Call[ExportBody]) -> Stream:
    """Every record of a state, as lines of the load format."""
    said = call.said
    return Stream(call.graph.export_chunks(branch=said.branch, at=said.at, types=said.type_names), LINES)


def branches(call: Call[Nothing]) -> Answer:
    """All branches, by name."""
    return document({"branches": sorted(call.graph.branches.list())})


def schema(call: Call[Nothing]) -> Answer:
    """The accepted schema."""
    return document({"schema_source": call.graph.schema_source()})
