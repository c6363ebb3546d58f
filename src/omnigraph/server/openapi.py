"""The OpenAPI document, made from the table of routes."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, Final

import msgspec

from omnigraph import __version__
from omnigraph.server.answers import JSON, LINES
from omnigraph.server.flat import FLAT_ROUTES, FlatRoute
from omnigraph.server.routes import GRAPH_ROUTES, PREFIX, Carried, GraphRoute, Lane

_REF: Final = "#/components/schemas/{name}"
_FAILURE: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["error", "kind", "retry", "request_id"],
    "properties": {
        "error": {"type": "string"},
        "code": {"type": "string"},
        "kind": {"type": "string"},
        "hint": {"type": "string"},
        "retry": {"type": "string"},
        "request_id": {"type": "string"},
    },
}
_BOUNDS: Final = (
    ("X-Timeout-Ms", "How long it may take."),
    ("X-Memory-Bytes", "What it may hold at once."),
    ("X-Max-Rows", "How many rows it may give."),
)
"""What a request may ask for, within what the server allows."""
_OF_COMMIT: Final = (
    ("/commit/graph_commit_id", "getCommit", "commit", False),
    ("/commit/graph_commit_id", "getCommitChanges", "commit", False),
    ("/commit/graph_commit_id", "revert", "commit", True),
    ("/commit/graph_commit_id", "createTag", "at", True),
    ("/commit/graph_commit_id", "query", "at", True),
)
_GOES_ON: Final[dict[str, tuple[tuple[str, str, str, bool], ...]]] = {
    "mutate": _OF_COMMIT,
    "load": _OF_COMMIT,
    "createBranch": (
        ("/name", "mutate", "branch", True),
        ("/name", "query", "branch", True),
        ("/name", "previewMerge", "source", True),
        ("/name", "mergeBranches", "source", True),
        ("/name", "deleteBranch", "branch", False),
    ),
    "createTag": (
        ("/name", "query", "at", True),
        ("/name", "restoreBranch", "to", True),
        ("/name", "deleteTag", "tag", False),
    ),
    "startChanges": (("/cursor", "pollChanges", "cursor", False),),
}
"""From an operation: which part of its answer another one takes, as which name, and whether in its body."""
_COMMON: Final = (400, 405, 500, 503)
_OF_GRAPHS: Final = (401, 403, 404)


def openapi(*, secured: bool) -> dict[str, Any]:
    """OpenAPI 3.1 of exactly the routes that are served. `secured`: a token is needed."""
    _, schemas = msgspec.json.schema_components([each.said for each in GRAPH_ROUTES], ref_template=_REF)
    paths: dict[str, Any] = {}
    for each in FLAT_ROUTES:
        paths.setdefault(each.path, {})[each.method.lower()] = _flat(each, secured=secured)
    for route in GRAPH_ROUTES:
        path = re.sub(r":path\}", "}", PREFIX + route.path)
        paths.setdefault(path, {})[route.method.lower()] = _of_graph(route, schemas, secured=secured)
    used = {each.said.__name__ for each in GRAPH_ROUTES if each.carried is Carried.BODY}
    components: dict[str, Any] = {
        "schemas": {**{name: each for name, each in schemas.items() if name in used}, "Failure": _FAILURE}
    }
    if secured:
        components["securitySchemes"] = {"bearer_token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Omnigraph", "version": __version__},
        "paths": paths,
        "components": components,
    }


def _flat(route: FlatRoute, *, secured: bool) -> dict[str, Any]:
    statuses = (400, 401, 403, 405, 500) if route.protected else (400, 405, 500, 503)
    return {
        "operationId": route.operation,
        "summary": route.summary,
        "responses": {"200": _content(route.summary, route.gives), **_failures(statuses)},
        **({"security": [{"bearer_token": []}]} if secured and route.protected else {}),
    }


def _of_graph(route: GraphRoute, schemas: dict[str, Any], *, secured: bool) -> dict[str, Any]:
    names = re.findall(r"\{(\w+)(?::path)?\}", PREFIX + route.path)
    parameters = [{"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in names]
    described: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "responses": {
            "200": {**_content(route.summary, route.gives), **_links(route.operation)},
            **_failures({*_COMMON, *_OF_GRAPHS, *route.statuses}),
        },
        **({"security": [{"bearer_token": []}]} if secured else {}),
    }
    if route.carried is Carried.BODY:
        schema = {"$ref": _REF.format(name=route.said.__name__)}
        described["requestBody"] = {"required": not route.empty, "content": {JSON: {"schema": schema}}}
    else:
        parameters += _parameters(schemas[route.said.__name__])
    if route.carried is Carried.RECORDS:
        described["requestBody"] = {"required": True, "content": {LINES: {"schema": {"type": "string"}}}}
    if route.keyed:
        parameters.append(
            {"name": "Idempotency-Key", "in": "header", "required": False, "schema": {"type": "string"}}
        )
    for name, about in _BOUNDS if route.lane is Lane.READS else _BOUNDS[:1]:
        schema = {"type": "integer", "minimum": 1, "maximum": 10**15}
        parameters.append(
            {"name": name, "in": "header", "required": False, "description": about, "schema": schema}
        )
    return {**described, "parameters": parameters}


def _links(operation: str) -> dict[str, Any]:
    """What goes on from an answer."""
    found = {
        f"{target}By{place.rpartition('/')[2].title()}": {
            "operationId": target,
            "requestBody" if in_body else "parameters": {name: f"$response.body#{place}"},
        }
        for place, target, name, in_body in _GOES_ON.get(operation, ())
    }
    return {"links": found} if found else {}


def _parameters(schema: dict[str, Any]) -> list[dict[str, Any]]:
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": each}
        for name, each in schema.get("properties", {}).items()
    ]


def _content(summary: str, media_types: tuple[str, ...]) -> dict[str, Any]:
    bodies = {
        each: {"schema": {"type": "object"} if each == JSON else {"type": "string"}} for each in media_types
    }
    return {"description": summary, "content": bodies}


def _failures(statuses: Any) -> dict[str, Any]:
    body = {JSON: {"schema": {"$ref": _REF.format(name="Failure")}}}
    return {
        str(status): {
            "description": HTTPStatus(status).phrase,
            **({"content": body} if status >= HTTPStatus.BAD_REQUEST else {}),
        }
        for status in sorted(statuses)
    }
