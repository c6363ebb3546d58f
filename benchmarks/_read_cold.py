"""One process that has read nothing yet: opens, asks once, and prints what that took as JSON.

Run by `benchmarks.reads` as `python -m benchmarks._read_cold WHAT DIR KEY`. Imports are not counted: they are
the same for every question a process asks later.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.reads import WORKLOADS

POINT = WORKLOADS["point"]
GROUPS = "group-by over all edges"


def _rss_mb() -> float:
    """The resident memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def open_omnigraph(where: Path, key: str) -> dict[str, Any]:
    from benchmarks._read_peers import FAST

    import omnigraph
    from omnigraph.engine.read import query  # noqa: F401 - imported on first use otherwise
    from omnigraph.planning import compile as _  # noqa: F401

    opened = omnigraph.open_read_only  # naming it imports what it needs
    begun = time.perf_counter()
    with opened(where / "graph", settings=FAST) as graph:
        rows = graph.query(POINT.ours, {"n": key}).to_dicts()
        seconds = time.perf_counter() - begun
        begun = time.perf_counter()
        graph.query(WORKLOADS["1 hop"].ours, {"n": key}).to_dicts()
        hop = time.perf_counter() - begun
    return {"seconds": seconds, "rows": [list(row.values()) for row in rows], "then a hop": hop}


def open_ladybug(where: Path, key: str) -> dict[str, Any]:
    import ladybug

    begun = time.perf_counter()
    database = ladybug.Database(str(where / "ladybug.db"))
    connection = ladybug.Connection(database, num_threads=1)
    rows = connection.execute(POINT.cypher, {"n": key}).get_all()
    seconds = time.perf_counter() - begun
    begun = time.perf_counter()
    connection.execute(WORKLOADS["1 hop"].cypher, {"n": key}).get_all()
    return {"seconds": seconds, "rows": rows, "then a hop": time.perf_counter() - begun}


def open_pylance(where: Path, key: str) -> dict[str, Any]:
    import lance

    uri = (where / "person.uri").read_text(encoding="utf-8")
    begun = time.perf_counter()
    rows = lance.dataset(uri).to_table(columns=["age", "city"], filter=f"id = '{key}'").to_pylist()
    return {"seconds": time.perf_counter() - begun, "rows": [list(row.values()) for row in rows]}


def group_by_cold(where: Path, _: str) -> dict[str, Any]:
    """Nothing kept by anybody: the adjacency and the columns are made from the tables."""
    import dataclasses

    from benchmarks._read_peers import FAST

    import omnigraph
    from omnigraph.engine.read import query  # noqa: F401
    from omnigraph.planning import compile as _  # noqa: F401

    settings = dataclasses.replace(FAST, cache_dir=Path("off"))
    opened = omnigraph.open_read_only
    before = _rss_mb()
    begun = time.perf_counter()
    with opened(where / "graph", settings=settings) as graph:
        rows = len(graph.query(WORKLOADS[GROUPS].ours).to_dicts())
        seconds = time.perf_counter() - begun
    return {"seconds": seconds, "rows": rows, "rss before": before, "rss peak": _peak_mb()}


def group_by_memory(where: Path, _: str) -> dict[str, Any]:
    """The aggregate over the whole graph with its read structures at hand: what the query itself takes."""
    from benchmarks._read_peers import FAST

    import omnigraph

    with omnigraph.open_read_only(where / "graph", settings=FAST) as graph:
        graph.query("query q() { match { $p: Person $p $k: knows $x } return { count($x.age) as n } }")
        before = _rss_mb()
        rows = len(graph.query(WORKLOADS[GROUPS].ours).to_dicts())
        return {"seconds": 0.0, "rows": rows, "rss before": before, "rss peak": _peak_mb()}


MODES: dict[str, Callable[[Path, str], dict[str, Any]]] = {
    "open-omnigraph": open_omnigraph,
    "open-ladybug": open_ladybug,
    "open-pylance": open_pylance,
    "group-by-cold": group_by_cold,
    "group-by-memory": group_by_memory,
}

if __name__ == "__main__":
    print(json.dumps(MODES[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])))
