"""The async twin of the client: the same methods, awaited.

```python
async with omnigraph.aio.connect("http://127.0.0.1:8080", graph="default", token="secret") as graph:
    rows = await graph.query(names)
    async for chunk in graph.export_chunks():
        ...
```

Every call runs in a thread of the handle, so the event loop never waits for a connection, for JSON or for
Arrow. A task that is cancelled asks its call to stop: one that was not sent yet is not sent.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Self

from omnigraph.client import remote
from omnigraph.client.link import Part
from omnigraph.core.cancel import Cancellation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from types import TracebackType

CALLS_AT_ONCE: Final = 16
"""Calls of one handle that are under way at a time; others wait for their turn."""
_STREAMS: Final = frozenset({"export_chunks", "baseline_lines"})
_END: Final = object()


def connect(url: str, *, graph: str, token: str | None = None, timeout_s: float = 300.0) -> AsyncGraph:
    """A graph behind a server, for programs with an event loop. As `omnigraph.connect`."""
    return AsyncGraph(remote.connect(url, graph=graph, token=token, timeout_s=timeout_s))


class AsyncPart:
    """What an async graph is made of: the methods of its twin, awaited, and its parts."""

    def __init__(self, twin: Part, pool: ThreadPoolExecutor) -> None:
        self._twin: Final = twin
        self._pool: Final = pool

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        member = getattr(self._twin, name)
        if isinstance(member, Part):
            return AsyncPart(member, self._pool)
        if not callable(member):
            return member
        return self._streamed(member) if name in _STREAMS else self._awaited(member)

    def _awaited(self, call: Callable[..., Any]) -> Callable[..., Any]:
        limited = any(
            each.kind is inspect.Parameter.VAR_KEYWORD for each in inspect.signature(call).parameters.values()
        )

        @functools.wraps(call)
        async def awaited(*given: Any, **named: Any) -> Any:
            stop = Cancellation()
            if limited and "cancel" not in named:
                named["cancel"] = stop
            try:
                return await self._run(call, *given, **named)
            except asyncio.CancelledError:
                stop.request()
                raise

        return awaited

    def _streamed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        async def streamed(*given: Any, **named: Any) -> AsyncGenerator[bytes, None]:
            pieces = await self._run(call, *given, **named)
            try:
                while (piece := await self._run(next, pieces, _END)) is not _END:
                    yield piece
            finally:
                await self._run(pieces.close)

        return streamed

    async def _run(self, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        here = contextvars.copy_context()
        work = functools.partial(here.run, call, *given, **named)
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


class AsyncGraph(AsyncPart):
    """One graph behind a server. Use it with `async with`, or await `close`."""

    def __init__(self, twin: remote.RemoteGraph) -> None:
        super().__init__(twin, ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="omnigraph-client"))
        self._graph: Final = twin

    async def close(self) -> None:
        """Let go of connections and threads. Calling it again does nothing."""
        self._graph.close()
        self._pool.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncGraph({self._graph.uri!r})"
