"""Requests nobody would think of, made from the OpenAPI document: none of them is the server's fault."""

from collections import Counter
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

pytestmark = pytest.mark.slow

EXAMPLES = 6
TOKEN = "token-that-nobody-may-see"
READ = "query r() { match { $s: Ship } return { $s.imo } }"


@schemathesis.serializer("application/x-ndjson")
def lines(_context: object, value: object) -> bytes:
    """Records as they are sent."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=str)
def test_no_request_is_answered_with_a_fault_or_with_what_nobody_may_see(
    serve: Serve, harbor: Graph, logged: list[str], mode: GenerationMode
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
    lines = "".join(logged)
    assert "request" in lines
    assert TOKEN not in lines
    assert harbor.uri not in lines


WRITES = (
    'query w() { insert Port { code: "%s", name: "Port" } }',
    'query w() { update Ship set { name: "%s" } where imo = "S1" }',
    'query w() { delete Port where code = "%s" }',
)


def machine_of(url: str, seen: Counter[str]) -> Any:
    """Requests that go on from the answers of others, as the links of the document say."""
    base: Any = schemathesis.openapi.from_dict(openapi(secured=True)).as_state_machine()

    class Machine(base):  # type: ignore[misc]
        def before_call(self, case: Any) -> None:
            case.path_parameters = {**(case.path_parameters or {}), "graph_id": "harbor"}
            body, name = case.body, case.operation.definition.raw["operationId"]
            if not isinstance(body, dict):
                return
            if "query" in body:
                # A text that means something: made up ones never reach the engine.
                text = WRITES[len(seen) % len(WRITES)] % len(seen) if "mutate" in name else READ
                body.update(query=text)
                for member in ("name", "params", "if_commit"):
                    body.pop(member, None)
            if name in {"createBranch", "createTag"}:
                body.update(name=f"made-{sum(seen.values())}")
                body.pop("from", None)

        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            del case
            return {"base_url": url, "headers": {"Authorization": f"Bearer {TOKEN}"}}

        def validate_response(self, response: Any, case: Any, **named: Any) -> None:
            del named
            operation = case.operation.definition.raw["operationId"]
            seen[operation if response.status_code < 300 else f"not {operation}"] += 1
            assert response.status_code < 500, (operation, response.status_code, response.content)

    return Machine


@pytest.mark.parametrize(
    ("examples", "steps"),
    [pytest.param(6, 8, id="short"), pytest.param(150, 30, id="long", marks=pytest.mark.torture)],
)
def test_no_sequence_of_requests_is_answered_with_a_fault(
    serve: Serve, harbor: Graph, examples: int, steps: int
) -> None:
    server = serve({"act-ines": TOKEN})
    seen: Counter[str] = Counter()
    machine_of(server.url, seen).run(
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
    )
    assert len(seen) > 5
    assert harbor.verify().ok
