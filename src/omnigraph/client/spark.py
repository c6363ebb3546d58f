"""`spark.read.format("omnigraph")` for a graph that is named by its storage or by its server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnigraph.client.remote import connect
from omnigraph.core.errors import BadRequest
from omnigraph.pipeline.output.datasource import OPTIONS, GraphSource, register

if TYPE_CHECKING:
    from omnigraph.pipeline.output.datasource import SparkSession

_SERVERS: Final = ("http://", "https://")


def register_spark(spark: SparkSession | None = None) -> SparkSession:
    """Teach a Spark session `format("omnigraph")` and return it; without one, the session of this process.

    The option `graph` is the storage of a graph, or its address on a server (`http://host:8080/graphs/kb`),
    with `token` and `store`: the server says which commit is read and whether you may read it, and the tasks
    read the storage directly.

    Conditions of DataFrames run inside the scan when the setting `spark.sql.python.filterPushdown.enabled` is
    true and this Spark keeps the filters of two uses of one frame apart; otherwise Spark evaluates them and a
    warning event says why. The answers are the same. The option `where` always runs inside the scan.
    """
    return register(spark, filtering=AnyGraphSource, unfiltered=UnfilteredGraphSource)


class AnyGraphSource(GraphSource):
    """One type of one graph at one commit; which commit that is, a server may say."""

    known_options = (*OPTIONS, "store", "token")

    def place_and_state(self, given: dict[str, str]) -> tuple[str, str | None]:
        """Where the storage is, and the state to read. Raises what the server says."""
        if not given["graph"].lower().startswith(_SERVERS):
            for name in ("store", "token"):
                if name in given:
                    raise BadRequest(f"the option '{name}' goes with the address of a server")
            return super().place_and_state(given)
        url, separator, graph_id = given["graph"].rstrip("/").rpartition("/graphs/")
        if not separator:
            raise BadRequest(
                "the address of a graph on a server ends with its id", hint="write http://host:8080/graphs/ID"
            )
        if not given.get("store"):
            raise BadRequest(
                "tasks read the storage directly, and a server does not say where it is",
                hint="name it with the option 'store'",
            )
        with connect(url, graph=graph_id, token=given.get("token")) as graph:
            at = given.get("at")
            commits = graph.commits
            found = commits.head(branch=given.get("branch", "main")) if at is None else commits.show(at)
        return given["store"], found.id


class UnfilteredGraphSource(AnyGraphSource):
    """The same without taking filters from Spark."""

    pushes_filters = False
