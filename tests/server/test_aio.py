"""The async twin of the client."""

import asyncio
import inspect
from typing import Any

import pytest

import omnigraph
from omnigraph.api.graph import Graph
from omnigraph.client.remote import RemoteGraph
from omnigraph.core.errors import BranchNotFound, NotRemote
from server.conftest import ADD, BY_IMO, Serve


@pytest.mark.slow
def test_many_calls_are_under_way_at_once_with_the_results_of_the_sync_client(
    serve: Serve, harbor: Graph
) -> None:
    server = serve({"act-ines": "t1"})

    async def program() -> None:
        async with omnigraph.aio.connect(server.url, graph="harbor", token="t1") as graph:
            rows = await asyncio.gather(*(graph.query(BY_IMO, {"imo": f"S{n}"}) for n in (1, 2, 9)))
            assert [list(each["s.name"]) for each in rows] == [["Aurora"], ["Boreas"], []]
            await asyncio.gather(
                *(graph.mutate(ADD, {"imo": f"A{n}", "name": "x"}, idempotency_key=f"a{n}") for n in range(8))
            )
            assert await graph.branches.list() == ["main"]
            assert (await graph.commits.head()).id == harbor.commits.head().id
            assert b"".join([chunk async for chunk in graph.export_chunks()]).decode() == harbor.export()
            with pytest.raises(BranchNotFound):
                await graph.query(BY_IMO, {"imo": "S1"}, branch="nope")
            with pytest.raises(NotRemote):
                _ = graph.frames
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(graph.branches.list(), 0)
        await graph.close()

    asyncio.run(program())
    assert len(harbor.query("query q() { match { $s: Ship } return { $s.imo } }")) == 10


def test_every_method_of_the_client_is_awaited_with_its_own_signature(serve: Serve) -> None:
    graph: Any = omnigraph.aio.connect("http://127.0.0.1:1", graph="g")
    names = [name for name in vars(RemoteGraph) if inspect.isfunction(vars(RemoteGraph)[name])]
    for name in (each for each in names if not each.startswith("_") and each != "close"):
        twin = getattr(graph, name)
        assert inspect.iscoroutinefunction(twin) or inspect.isasyncgenfunction(twin), name
        own = inspect.signature(vars(RemoteGraph)[name]).parameters
        assert list(inspect.signature(twin).parameters) == [each for each in own if each != "self"], name
    asyncio.run(graph.close())
