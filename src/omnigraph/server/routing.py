"""From the address of a request to its route."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from starlette.routing import Match, Route

from omnigraph.core.errors import MethodNotAllowed, RouteNotFound
from omnigraph.server.flat import FLAT_ROUTES, FlatRoute
from omnigraph.server.routes import PREFIX, GraphRoute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.types import Scope

AnyRoute = FlatRoute | GraphRoute
_GRAPHS: Final = "/graphs/"


class Routes:
    """The routes of one server."""

    def __init__(self, of_graphs: Sequence[GraphRoute]) -> None:
        self._all: Final[tuple[tuple[Route, AnyRoute], ...]] = tuple(
            (Route(_full_path(each), _never_called, methods=[each.method]), each)
            for each in (*FLAT_ROUTES, *of_graphs)
        )
        self._plain: Final = {
            (each.method, each.path): each for each in of_graphs if self._leaves_nothing_open(each)
        }
        """Those whose path behind the graph is one text: looking at each of all routes takes longer than
        many answers."""

    def find(self, scope: Scope) -> tuple[AnyRoute, Mapping[str, str]]:
        """The route, and what its path leaves open. Raises RouteNotFound, MethodNotAllowed."""
        path = cast("str", scope["path"])
        if path.startswith(_GRAPHS) and not scope.get("root_path"):
            graph_id, _, rest = path[len(_GRAPHS) :].partition("/")
            plain = self._plain.get((cast("str", scope["method"]), f"/{rest}")) if graph_id else None
            if plain is not None:
                return plain, {"graph_id": graph_id}
        return self._among_all(scope)

    def _among_all(self, scope: Scope) -> tuple[AnyRoute, Mapping[str, str]]:
        allowed: list[str] = []
        for matcher, route in self._all:
            match, child = matcher.matches(scope)
            if match is Match.FULL and scope["method"] == route.method:
                return route, cast("Mapping[str, str]", child["path_params"])
            if match is not Match.NONE:
                allowed.append(route.method)
        if allowed:
            raise MethodNotAllowed(
                "this address does not take that method",
                hint=f"use {' or '.join(sorted(allowed))}",
                details={"allow": ", ".join(sorted(allowed))},
            )
        raise RouteNotFound("there is nothing at this address", hint="GET /openapi.json lists what there is")

    def _leaves_nothing_open(self, route: GraphRoute) -> bool:
        """Whether it has one address in each graph, and no route before it has the same."""
        if "{" in route.path:
            return False
        scope = {"type": "http", "method": route.method, "path": f"{_GRAPHS}g{route.path}"}
        return self._among_all(scope)[0] is route


def _full_path(route: AnyRoute) -> str:
    return route.path if isinstance(route, FlatRoute) else PREFIX + route.path


async def _never_called(request: Any) -> Any:
    """Routes are only matched; the application calls the work itself."""
    raise AssertionError(request)
