"""Many HTTP clients in one process of their own, with as little work per request as possible.

Run by the workload `server`: `python -m benchmarks._http_load PLAN`, where PLAN is a JSON object. Each client
has one connection and sends its next request when it has the answer of the last one, or after a pause when it
was refused. Prints one JSON object: how many answers of each status came, and how long those of the watched
address took.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any


class Client:
    """One connection that is kept."""

    def __init__(self, host: str, port: int) -> None:
        self._at = (host, port)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, request: bytes) -> int:
        """The status of the answer; 0 when there was none."""
        try:
            if self._reader is None or self._writer is None:
                self._reader, self._writer = await asyncio.open_connection(*self._at)
            self._writer.write(request)
            head = await self._reader.readuntil(b"\r\n\r\n")
            status = int(head[9:12])
            length = next(
                int(line.partition(b":")[2])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length:")
            )
            await self._reader.readexactly(length)
            if b"connection: close" in head.lower():
                self.close()
        except (OSError, asyncio.IncompleteReadError, StopIteration):
            self.close()
            return 0
        return status

    def close(self) -> None:
        """Let go of the connection."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


def request_of(plan: dict[str, Any], number: int) -> bytes:
    """The bytes of one request; `%d` of its body is its number."""
    body = plan.get("body", "").replace("%d", str(number)).encode()
    lines = [f"{plan['method']} {plan['path']} HTTP/1.1", f"Host: {plan['host']}:{plan['port']}"]
    lines += [f"{name}: {value}" for name, value in plan.get("headers", {}).items()]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def run(plan: dict[str, Any]) -> dict[str, Any]:
    """Send requests until the time is over, or as many as the plan says."""
    ends = time.perf_counter() + plan["seconds"]
    statuses: Counter[int] = Counter()
    watched: list[float] = []
    left = iter(range(plan.get("first", 0), plan.get("first", 0) + plan.get("count", 10**9)))

    async def client() -> None:
        own = Client(plan["host"], plan["port"])
        number = None
        while time.perf_counter() < ends:
            if number is None:
                number = next(left, None)
                if number is None:
                    break
            status = await own.send(request_of(plan, number))
            statuses[status] += 1
            if status in {429, 503, 0} and plan.get("again"):
                await asyncio.sleep(0.05)
                continue
            number = None
        own.close()

    async def watch() -> None:
        own = Client(plan["host"], plan["port"])
        asked = request_of({**plan, "method": "GET", "path": plan["watched"], "body": ""}, 0)
        while time.perf_counter() < ends:
            start = time.perf_counter()
            if await own.send(asked) == 200:
                watched.append(time.perf_counter() - start)
            await asyncio.sleep(0.02)
        own.close()

    start = time.perf_counter()
    work = [client() for _ in range(plan["clients"])]
    await asyncio.gather(*work, *([watch()] if "watched" in plan else []))
    return {"seconds": time.perf_counter() - start, "statuses": dict(statuses), "watched": sorted(watched)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(json.loads(sys.argv[1])))))
