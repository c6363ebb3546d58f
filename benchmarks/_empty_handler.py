"""A server of the same stack that does nothing: what any server in this language costs.

Run by the workload `server`. Prints its port.
"""

import sys
from typing import Any

import msgspec
import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from omnigraph.server.serving import JsonErrors, listening


class Said(msgspec.Struct):
    """The body of the point read."""

    query: str
    params: dict[str, Any]


async def handler(request: Request) -> Response:
    """Read a body, answer with a small object."""
    said = msgspec.json.decode(await request.body(), type=Said)
    return Response(orjson.dumps({"rows": [said.params], "row_count": 1}), media_type="application/json")


if __name__ == "__main__":
    with listening("127.0.0.1:0") as sock:
        print(sock.getsockname()[1], flush=True)
        app = Starlette(routes=[Route("/graphs/{graph}/query", handler, methods=["POST"])])
        config = uvicorn.Config(
            app, http=JsonErrors, ws="none", lifespan="off", log_level="critical", access_log=False
        )
        sys.exit(uvicorn.Server(config).run(sockets=[sock]))
