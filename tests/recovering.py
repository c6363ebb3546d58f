"""A graph of people that writers die on, and what the tests of recovery ask it."""

import omnigraph
from crash.harness import EXIT_AT_WINDOW, run_child
from crash.people import INSERT, SCHEMA, Model, seed
from recovery_graph import FAST, PERSON, RawGraph

ADD = "query add($n: String) { insert Person { name: $n } }"


def people_at(where):
    """A graph with some people at this place; returns the place."""
    graph = omnigraph.init(where, schema=SCHEMA, settings=FAST)
    seed(graph)
    graph.close()
    return where


def opened(path):
    return omnigraph.open(path, settings=FAST)


def shown(path, branch="main"):
    with omnigraph.open_read_only(path, settings=FAST) as graph:
        return Model.read(graph.export(branch=branch))


def pending(path):
    return [name.removesuffix(".json") for name in RawGraph.attach(path).sidecars()]


def crash(path, window, writer=INSERT, tag="1", branch="main", action="exit"):
    """A child process runs one write and dies in the window; returns the operation it left, if any."""
    command = {"command": "write", "path": str(path), "writer": writer.name, "tag": tag, "branch": branch}
    status, errors = run_child(command, failpoints=f"{window}={action}")
    assert status == EXIT_AT_WINDOW, errors
    left = pending(path)
    return left[-1] if left else None


def raw_drift(path, key=PERSON, name="foreign"):
    """A commit by something that does not follow the protocol; returns what makes it part of the graph."""
    graph = RawGraph.attach(path)
    handle = graph.commit(key, [name])
    return lambda: graph.publish([handle])
