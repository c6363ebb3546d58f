"""Verbs of reads over data: a fixture graph, a query, its rows."""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

import omnigraph
from cases.runner import CASES_DIR, Step, World, step
from omnigraph.core import errors
from omnigraph.core.errors import OmnigraphError


@cache
def _shared(name: str) -> Path:
    """A fixture graph, built once a process; cases that write work on a copy."""
    home = Path(tempfile.mkdtemp(prefix="omnigraph-cases-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    with omnigraph.init(home / "graph", schema=CASES_DIR / "read" / f"{name}.pg") as graph:
        graph.mutate(CASES_DIR / "read" / f"{name}.gq")
    return home / "graph"


@cache
def _opened(name: str):
    graph = omnigraph.open_read_only(_shared(name))
    atexit.register(graph.close)
    return graph


@step("fixture")
def fixture(world: World, current: Step) -> None:
    """Reads the graph of `<name>.pg` and `<name>.gq`."""
    world["graph"] = _opened(current.argument)


@step("writable")
def writable(world: World, current: Step) -> None:
    """As `fixture`, on a copy that the case may change."""
    home = Path(tempfile.mkdtemp(prefix="omnigraph-case-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    shutil.copytree(_shared(current.argument), home / "graph")
    world["graph"] = omnigraph.open(home / "graph")


@step("note")
def note(world: World, current: Step) -> None:
    """Remembers the head commit of main under a name."""
    world[f"commit {current.argument}"] = world["graph"].commits.head().id


@step("branch")
def branch(world: World, current: Step) -> None:
    world["graph"].branches.create(current.argument)


@step("write")
def write(world: World, current: Step) -> None:
    """Runs the statements of the block; the argument is the branch (main when there is none)."""
    world["graph"].mutate(f"query change() {{ {current.block} }}", branch=current.argument or "main")


@step("params")
def params(world: World, current: Step) -> None:
    world["params"] = json.loads(current.argument)


@step("ask")
def ask(world: World, current: Step) -> None:
    """Runs the block. Without the word `query` it is the body of one. `on B` and `at C` name the target."""
    text = current.block if "query " in current.block else f"query q() {{ {current.block} }}"
    target: dict[str, str] = {}
    words = current.argument.split()
    for how, value in zip(words[::2], words[1::2], strict=True):
        target |= {"branch": value} if how == "on" else {"at": world.get(f"commit {value}", value)}
    world.clear("rows", "failure")
    try:
        world["rows"] = world["graph"].query(text, world.get("params"), **target)
    except OmnigraphError as error:
        world["failure"] = error
    world.clear("params")


@step("headed")
def headed(world: World, current: Step) -> None:
    assert list(_rows(world).columns) == current.argument.split()


@step("rows")
def rows(world: World, current: Step) -> None:
    """The rows in any order, one JSON value or array a line; `rows in order` compares their order too."""
    expected = _expected(current)
    got = [list(row.values()) for row in _rows(world).json_rows()]
    if current.argument != "in order":
        expected, got = (sorted(each, key=json.dumps) for each in (expected, got))
    assert got == expected


@step("refused")
def refused(world: World, current: Step) -> None:
    """The query failed with an error of this class; a T-code may follow."""
    failure = world.get("failure")
    assert failure is not None, f"it answered {world['rows'].to_dicts()}"
    kind, _, code = current.argument.partition(" ")
    assert isinstance(failure, getattr(errors, kind)), repr(failure)
    assert code in str(failure), str(failure)


def _rows(world: World):
    if world.get("failure") is not None:
        raise AssertionError(f"the query failed: {world['failure']}")
    return world["rows"]


def _expected(current: Step) -> list[list]:
    if current.block.strip() in {"", "none"}:
        return []
    values = [json.loads(line) for line in current.block.splitlines() if line.strip()]
    return [value if isinstance(value, list) else [value] for value in values]
