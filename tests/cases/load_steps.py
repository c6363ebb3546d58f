"""Verbs of loads: a graph, an input, the report or the refusal, and what the graph holds afterwards."""

import atexit
import json
import shlex
import shutil
import tempfile
from functools import cache
from pathlib import Path

import omnigraph
from cases.runner import Step, World, step
from graphs import FAST, FIXTURE_M
from omnigraph.core import errors
from omnigraph.core.errors import OmnigraphError

ENGINE = ["local"]
"""The engine loads run on. The Spark suite runs the same cases with the other one."""

MEMBERS = """
{"type":"Member","data":{"email":"ana@x","nick":"ana","age":30}}
{"type":"Member","data":{"email":"bob@x","nick":"bob","age":41}}
{"type":"Member","data":{"email":"cat@x"}}
{"type":"Club","data":{"slug":"chess","tier":1}}
{"type":"Club","data":{"slug":"judo","tier":2}}
{"edge":"JoinedTo","from":"ana@x","to":"chess","data":{"id":"j1"}}
{"edge":"JoinedTo","from":"bob@x","to":"chess","data":{"id":"j2"}}
{"edge":"JoinedTo","from":"bob@x","to":"judo","data":{"id":"j3"}}
{"edge":"Knows","from":"ana@x","to":"bob@x","data":{"id":"k1"}}
{"edge":"Leads","from":"ana@x","to":"chess","data":{"id":"l1"}}
"""


def _home() -> Path:
    home = Path(tempfile.mkdtemp(prefix="omnigraph-load-case-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


@cache
def _members() -> Path:
    home = _home()
    (home / "members.jsonl").write_text(MEMBERS)
    with omnigraph.init(home / "graph", schema=FIXTURE_M, settings=FAST) as graph:
        graph.load(home / "members.jsonl", mode="append", engine="local")
    return home / "graph"


@step("members")
def members(world: World, current: Step) -> None:
    """The fixture graph of the load specification, on a copy of its own."""
    home = _home()
    shutil.copytree(_members(), home / "graph")
    world["home"], world["graph"] = home, omnigraph.open(home / "graph", settings=FAST)


@step("empty")
def empty(world: World, current: Step) -> None:
    """A graph with the schema of the block and no rows; `empty members` takes the fixture's schema."""
    home = _home()
    schema = FIXTURE_M if current.argument == "members" else current.block + "\n"
    world["home"], world["graph"] = home, omnigraph.init(home / "graph", schema=schema, settings=FAST)


@step("load")
def load(world: World, current: Step) -> None:
    """Loads the block. `load <mode> [branch=B] [base=B] [replace=T] [times=N] [crlf] [rejects]`."""
    mode, *words = shlex.split(current.argument)
    options = dict(word.partition("=")[::2] for word in words)
    lines = current.block.split("\n")
    if "times" in options:
        lines = [line.replace("$n", str(n)) for n in range(int(options["times"])) for line in lines]
    source = world["home"] / "input.jsonl"
    source.write_bytes(("\r\n" if "crlf" in options else "\n").join(lines).encode() + b"\n")
    run_load(world, source, mode, options)


@step("load-csv")
def load_csv(world: World, current: Step) -> None:
    """Loads the block as a file of that name. `load-csv <name> <mode> [type=T] [delimiter=;] [columns=a,b]
    [null=N/A] [rename=a:b] [ignore]`; `\\t` in the block is a tab.
    """
    name, mode, *words = shlex.split(current.argument)
    options = dict(word.partition("=")[::2] for word in words)
    source = world["home"] / name
    source.write_text(current.block.replace("\\t", "\t") + "\n")
    form = {"delimiter": options.get("delimiter"), "ignore_extra": "ignore" in options}
    if "columns" in options:
        form["columns"] = options["columns"].split(",")
    if "null" in options:
        form["nulls"] = [options["null"]]
    if "rename" in options:
        form["rename"] = dict([options["rename"].split(":")])
    if "type" in options:
        form |= {"type_name": options["type"], "format": "csv"}
    run_load(world, source, mode, options, form)


def run_load(
    world: World,
    source: Path | list[Path],
    mode: str,
    options: dict[str, str],
    form: dict | None = None,
) -> None:
    graph = world["graph"]
    before = graph.export()
    named = {name: options[name] for name in ("branch", "base", "on_duplicate") if name in options}
    if "replace" in options:
        named["replace_types"] = options["replace"].split(",")
    if "rejects" in options:
        named["rejects"] = tempfile.mkdtemp(prefix="rejects-", dir=world["home"])
    world.clear("report", "denied")
    try:
        world["report"] = graph.load(source, mode=mode, engine=ENGINE[0], **named, **(form or {}))
        assert world["report"].engine == ENGINE[0]
    except OmnigraphError as error:
        world["denied"] = error
        assert graph.export() == before, "a refused load changed the graph"
        assert graph.pending() == ()


@step("loaded")
def loaded(world: World, current: Step) -> None:
    """The counts of the report, as JSON: `{"Club": 1}`; other members of the report below, one a line."""
    report = _report(world)
    counts = {count.name: count.entities_loaded for count in (*report.nodes, *report.edges)}
    assert counts == json.loads(current.argument or "{}")
    described = report.to_dict()
    for line in current.block.splitlines():
        name, _, value = line.partition(" ")
        assert described[name] == json.loads(value), f"{name}: {described[name]}"
    parts = [(each.inserted, each.replaced, each.superseded) for each in (*report.nodes, *report.edges)]
    assert report.records_read == sum(map(sum, parts)) + report.records_refused


@step("denied")
def denied(world: World, current: Step) -> None:
    """The load was refused with an error of this class; a rule and a text may follow."""
    failure = world.get("denied")
    assert failure is not None, f"it was loaded: {_report(world).to_dict()}"
    kind, *rest = current.argument.split(" ", 1)
    assert type(failure) is getattr(errors, kind), repr(failure)
    for text in rest:
        assert text in f"{failure} {json.dumps(failure.to_dict(), ensure_ascii=False)}", str(
            failure.to_dict()
        )
    world.clear("denied")


@step("holds")
def holds(world: World, current: Step) -> None:
    """`holds [branch=B] <Type> <id> <JSON members>`; an edge has `from` and `to`."""
    words, branch = current.argument.split(" ", 1), "main"
    if words[0].startswith("branch="):
        branch = words[0].removeprefix("branch=")
        words = words[1].split(" ", 1)
    type_name, (identity, _, members) = words[0], _identity(words[1])
    found = _rows(world, type_name, branch)
    assert identity in found, f"{type_name} has {sorted(found)}"
    expected = json.loads(members or "{}")
    assert {name: found[identity].get(name) for name in expected} == expected


def _identity(text: str) -> tuple[str, str, str]:
    if text.startswith('"'):
        value, end = json.JSONDecoder().raw_decode(text)
        return value, "", text[end:].strip()
    return text.partition(" ")


@step("counts")
def counts(world: World, current: Step) -> None:
    """`counts [branch=B] <Type> <n>`."""
    words = current.argument.split()
    branch = words.pop(0).removeprefix("branch=") if words[0].startswith("branch=") else "main"
    assert len(_rows(world, words[0], branch)) == int(words[1])


@step("lacks")
def lacks(world: World, current: Step) -> None:
    """`lacks <Type> <id>`."""
    type_name, identity = current.argument.split(" ", 1)
    assert identity not in _rows(world, type_name, "main")


@step("sound")
def sound(world: World, current: Step) -> None:
    """The whole graph keeps its rules."""
    assert world["graph"].verify().violations == ()


@step("branches")
def branches(world: World, current: Step) -> None:
    assert world["graph"].branches.list() == current.argument.split()


@step("loads")
def loads(world: World, current: Step) -> None:
    """How many commits of main are loads."""
    operations = [commit.operation for commit in world["graph"].commits.list()]
    assert operations.count("load") == int(current.argument)


@step("exports")
def exports(world: World, current: Step) -> None:
    assert world["graph"].export() == current.block + "\n"


@step("moved")
def moved(world: World, current: Step) -> None:
    """Exports the graph, loads it into an empty one of the same schema, and compares."""
    exported = world["graph"].export()
    source = world["home"] / "exported.jsonl"
    source.write_text(exported)
    copy = omnigraph.init(world["home"] / "copy", schema=world["graph"].schema_source(), settings=FAST)
    copy.load(source, mode=current.argument, engine=ENGINE[0])
    assert copy.export() == exported


def _rows(world: World, type_name: str, branch: str) -> dict[str, dict]:
    found = {}
    for line in world["graph"].export(types=[type_name], branch=branch).splitlines():
        record = json.loads(line)
        ends = {name: record[name] for name in ("from", "to") if name in record}
        found[record["data"]["id"]] = record["data"] | ends
    return found


def _report(world: World):
    if world.get("denied") is not None:
        raise AssertionError(f"the load was refused: {world['denied']}")
    return world["report"]
