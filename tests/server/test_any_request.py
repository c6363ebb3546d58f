"""Requests nobody would think of, made from the OpenAPI document: none of them is the server's fault."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from omnigraph.api.graph import Graph
from omnigraph.server.flat import FLAT_ROUTES
from omnigraph.server.openapi import openapi
from omnigraph.server.routes import GRAPH_ROUTES
from server.conftest import Serve

EXAMPLES = 6
TOKEN = "token-that-nobody-may-see"


@schemathesis.serializer("application/x-ndjson")
def lines(_context: object, value: object) -> bytes:
    """Records as they are sent."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=str)
def test_no_request_is_answered_with_a_fault_or_with_what_nobody_may_see(
    serve: Serve, harbor: Graph, capfd: pytest.CaptureFixture[str], mode: GenerationMode
) -> None:
    server = serve({"act-ines": TOKEN})
    document: Any = schemathesis.openapi.from_dict(openapi(secured=True))
    asked: set[str] = set()

    def look(operation: str) -> None:
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=document.find_operation_by_id(operation).as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            if "graph_id" in (case.path_parameters or {}):
                case.path_parameters["graph_id"] = "harbor"
            answer = case.call(base_url=server.url, headers={"Authorization": f"Bearer {TOKEN}"})
            asked.add(operation)
            assert answer.status_code < 500, (operation, answer.status_code, answer.content)
            told = answer.content.decode("utf-8", "replace")
            assert TOKEN not in told
            assert harbor.uri not in told

        ask()

    for route in (*FLAT_ROUTES, *GRAPH_ROUTES):
        try:
            look(route.operation)
        except Unsatisfiable:
            # A route that takes nothing has nothing that could be wrong.
            assert mode is GenerationMode.NEGATIVE, route.operation
    assert {"query", "mutate", "load", "getEntity", "cleanup", "mergeBranches"} <= asked
    logged = "".join(capfd.readouterr())
    assert "request" in logged
    assert TOKEN not in logged
    assert harbor.uri not in logged
