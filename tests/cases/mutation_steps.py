"""Verbs of writes: a fresh copy of fixture M, statements, what they did."""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

import omnigraph
from cases.runner import Step, World, step
from graphs import FAST, FIXTURE_M, FIXTURE_M_ROWS, make_graph, rows_of
from omnigraph.core.errors import OmnigraphError


@cache
def _home() -> Path:
    home = Path(tempfile.mkdtemp(prefix="omnigraph-mutations-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


@cache
def _original() -> Path:
    with make_graph(_home() / "original", FIXTURE_M) as graph:
        graph.mutate(f"query fill() {{ {FIXTURE_M_ROWS} }}")
    return _home() / "original"


@step("club")
def club(world: World, _current: Step) -> None:
    """A fresh graph with the rows of fixture M."""
    place = Path(tempfile.mkdtemp(dir=_home())) / "graph"
    shutil.copytree(_original(), place)
    if world.get("graph") is not None:
        world["graph"].close()
    world["graph"] = omnigraph.open(place, settings=FAST)
    world.clear("declared", "given", "condition")
    _look(world)


def _look(world: World) -> None:
    world["before"] = world["graph"].export()
    world["head"] = world["graph"].commits.head()


@step("declare")
def declare(world: World, current: Step) -> None:
    """`declare $a: I32? = null`: parameters of the next mutation, with JSON values after `=` where given."""
    declared: list[str] = []
    given: dict[str, object] = {}
    for part in current.argument.split(";"):
        text, _, value = part.partition("=")
        declared.append(text.strip())
        if value:
            given[text.strip().lstrip("$").split(":")[0]] = json.loads(value)
    world["declared"], world["given"] = ", ".join(declared), given


@step("only-after")
def only_after(world: World, current: Step) -> None:
    """`only-after head` or `only-after first`: the commit the next mutation is conditional on."""
    history = world["graph"].commits.list()
    world["condition"] = history[0].id if current.argument == "head" else history[-1].id


@step("mutate")
def mutate(world: World, current: Step) -> None:
    """Runs the statements as one mutation query."""
    _look(world)
    world.clear("outcome", "failure")
    text = f"query q({world.get('declared', '')}) {{ {current.argument} {current.block} }}"
    try:
        world["outcome"] = world["graph"].mutate(text, world.get("given"), if_commit=world.get("condition"))
    except OmnigraphError as failure:
        world["failure"] = failure
    world.clear("declared", "given", "condition")


@step("affected")
def affected(world: World, current: Step) -> None:
    """`affected 1 0`: nodes and edges, in one commit; `affected 0 0` comes without a commit."""
    assert world.get("failure") is None, f"{type(world['failure']).__name__}: {world['failure']}"
    outcome = world["outcome"]
    assert f"{outcome.affected_nodes} {outcome.affected_edges}" == current.argument
    head = world["graph"].commits.head()
    if current.argument == "0 0":
        assert outcome.commit is None
        assert head == world["head"]
    else:
        assert head == outcome.commit
        assert head.parent == world["head"].id


@step("breaks")
def breaks(world: World, current: Step) -> None:
    """`breaks ConstraintViolation unique`: refused with this class and rule or code; nothing has changed."""
    name, _, detail = current.argument.partition(" ")
    failure = world.get("failure")
    assert failure is not None, f"accepted: {world.get('outcome')}"
    assert name in {cls.__name__ for cls in type(failure).__mro__}, f"{type(failure).__name__}: {failure}"
    if detail:
        found = failure.to_dict()
        rule = found.get("constraint", {}).get("rule") or found.get("source_error", {}).get("lint_code")
        assert rule == detail, found
    assert world["graph"].export() == world["before"]
    assert world["graph"].commits.head() == world["head"]


@step("message")
def message(world: World, current: Step) -> None:
    """The refusal says exactly this."""
    assert str(world["failure"]) == current.argument


@step("entity")
def entity(world: World, current: Step) -> None:
    """`entity Member dan@x {"age": 20}`: it is there, with these values among its own."""
    type_name, entity_id, expected = current.argument.split(" ", 2)
    found = rows_of(world["graph"], type_name)
    assert entity_id in found, sorted(found)
    wanted = json.loads(expected)
    assert {name: found[entity_id][name] for name in wanted} == wanted


@step("left")
def left(world: World, current: Step) -> None:
    """`left Member: ana@x, bob@x`: exactly these are left."""
    type_name, _, expected = current.argument.partition(":")
    wanted = [each.strip() for each in expected.split(",") if each.strip()]
    assert sorted(rows_of(world["graph"], type_name)) == sorted(wanted)


@step("pairs")
def pairs(world: World, current: Step) -> None:
    """`pairs Knows: ana@x bob@x, bob@x ana@x`: the ends of exactly these edges."""
    type_name, _, expected = current.argument.partition(":")
    wanted = sorted(tuple(each.split()) for each in expected.split(",") if each.strip())
    assert sorted((e["from"], e["to"]) for e in rows_of(world["graph"], type_name).values()) == wanted


@step("generated")
def generated(world: World, current: Step) -> None:
    """`generated Memo 2`: so many entities, with different ids of 26 characters."""
    type_name, count = current.argument.split()
    found = rows_of(world["graph"], type_name)
    assert len(found) == int(count)
    assert all(len(each) == 26 for each in found)
