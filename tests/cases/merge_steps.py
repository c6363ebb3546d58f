"""Verbs of branches and merges: a seeded graph, statements per branch, merges and what they give."""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

from cases.runner import Step, World, step
from graphs import make_graph, rows_of
from omnigraph.core.errors import MergeConflicts, OmnigraphError


@cache
def _home() -> Path:
    home = Path(tempfile.mkdtemp(prefix="omnigraph-merges-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


@step("branched")
def branched(world: World, current: Step) -> None:
    """A fresh graph with the schema of the block; the argument names branches made after `seed`."""
    world["graph"] = make_graph(Path(tempfile.mkdtemp(dir=_home())) / "graph", current.block)
    world["branch names"] = current.argument.split()


@step("seed")
def seed(world: World, current: Step) -> None:
    """Statements on main before the branches are made."""
    world["graph"].mutate(f"query q() {{ {current.block} {current.argument} }}")
    for name in world["branch names"]:
        world["graph"].branches.create(name)


@step("on")
def on(world: World, current: Step) -> None:
    """`on left`: the statements of the block, as one commit of that branch."""
    name, _, rest = current.argument.partition(" ")
    world["graph"].mutate(f"query q() {{ {current.block} {rest} }}", branch=name)


@step("forked")
def forked(world: World, current: Step) -> None:
    """`forked new from left`: one more branch, where left is now."""
    name, _, source = current.argument.split()
    world["graph"].branches.create(name, from_branch=source)


@step("noted")
def noted(world: World, current: Step) -> None:
    """`noted the birthday`: the newest commit of main gets a name for `revert`."""
    world[f"commit {current.argument}"] = world["graph"].commits.head().id


@step("revert")
def revert(world: World, current: Step) -> None:
    """`revert the birthday`: on main."""
    world.clear("merged", "failure")
    world["merged"] = world["graph"].revert(world[f"commit {current.argument}"])


@step("merge")
def merge(world: World, current: Step) -> None:
    """`merge left -> main` or `merge left -> main theirs`: the side that wins conflicts, where given."""
    source, _, target, *side = current.argument.split()
    world.clear("merged", "failure")
    world["before"] = world["graph"].export(branch=target)
    world["target"] = target
    try:
        world["merged"] = world["graph"].branches.merge(
            source, into=target, on_conflict=side[0] if side else None
        )
    except OmnigraphError as failure:
        world["failure"] = failure


@step("gives")
def gives(world: World, current: Step) -> None:
    """`gives merged`: the outcome."""
    assert world.get("failure") is None, f"{type(world['failure']).__name__}: {world['failure']}"
    assert world["merged"].outcome == current.argument


@step("conflicts")
def conflicts(world: World, current: Step) -> None:
    """One line per conflict: kind, type and id (`*` for any or none). Nothing has changed."""
    failure = world.get("failure")
    assert isinstance(failure, MergeConflicts), failure or world["merged"].outcome
    found = [
        (each["kind"], each["table_key"].partition(":")[2], each["row_id"]) for each in failure.conflicts
    ]
    wanted = [tuple(line.split()) for line in current.block.splitlines() if line.strip()]
    assert len(found) == len(wanted), found
    for (kind, type_name, row_id), expected in zip(found, wanted, strict=True):
        assert (kind, type_name) == expected[:2], found
        assert expected[2] in {"*", row_id}, found
    assert world["graph"].export(branch=world["target"]) == world["before"]


@step("differs")
def differs(world: World, current: Step) -> None:
    """`differs ann age`: the values that the conflict about an entity shows of one property; those given count."""
    row_id, name = current.argument.split()
    conflict = next(each for each in world["failure"].conflicts if each["row_id"] == row_id)
    shown = {each["property"]: each for each in conflict["properties"]}
    expected = json.loads(current.block)
    found = {role: shown[name][role] for role in expected}
    assert found == expected, shown
    if "base" not in expected and conflict["kind"] == "divergent_insert":
        assert "base" not in shown[name]


@step("advises")
def advises(world: World, current: Step) -> None:
    """`advises delete the edge`: words of the hint; a hint about broken rules never names the flags that choose a side."""
    hint = world["failure"].hint
    assert current.argument in hint, hint
    assert "--on-conflict" not in hint


@step("shows")
def shows(world: World, current: Step) -> None:
    """`shows main Person`: exactly the entities of the block, `id {values}` per line; edges by their ends."""
    branch, type_name = current.argument.split()
    rows = rows_of(world["graph"], type_name, branch=branch)
    wanted = [line.partition(" ") for line in current.block.splitlines() if line.strip()]
    found = {f"{row['from']}->{row['to']}" if "from" in row else key: row for key, row in rows.items()}
    assert sorted(found) == sorted(name for name, _, _ in wanted)
    for name, _, values in wanted:
        expected = json.loads(values) if values else {}
        assert {key: found[name][key] for key in expected} == expected, name
    assert world["graph"].verify().violations == ()
