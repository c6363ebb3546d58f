"""Judges copies of a graph: is the flipped bit found, do readers and writers see what they should?"""

import json
import sys

import omnigraph
from omnigraph.core.errors import OmnigraphError
from omnigraph.core.settings import Settings
from omnigraph.engine import session as sessions

FAST = Settings(durability="os")


def seen(graph: omnigraph.Graph) -> dict:
    """Everything a reader can ask for."""
    branches = graph.branches.list()
    return {
        "rows": {branch: graph.export(branch=branch) for branch in branches},
        "history": {branch: [str(each) for each in graph.commits.list(branch=branch)] for branch in branches},
        "tags": {tag: [commit, graph.at(tag).export()] for tag, commit in graph.tags.list().items()},
        "one": graph.query(
            'query q() { match { $p: Person { name: "ada" } } return { $p.age, $p.bio } }'
        ).to_dicts(),
        "young": graph.query("query q() { match { $p: Person  $p.age < 3 } return { $p.name } }").to_dicts(),
    }


def compared(path: str, whole: dict | None, *, writes: bool, told: dict) -> str:
    forget()
    try:
        with (omnigraph.open if writes else omnigraph.open_read_only)(path, settings=FAST) as graph:
            return "equal" if seen(graph) == whole else "different"
    except OmnigraphError as error:
        return f"typed: {error.kind}: {error}"
    except BaseException as error:
        told["untyped"] = f"{type(error).__name__}: {error}"
        return "untyped"


def forget() -> None:
    """What a process remembers about tables would hide what became of their files."""
    sessions._key_indexes = None


def judge(path: str, whole: dict) -> dict:
    told: dict = {"found": False}
    forget()
    try:
        with omnigraph.open_read_only(path, settings=FAST) as graph:
            report = graph.verify(deep=True)
        told["found"] = not report.ok
        told["findings"] = [f"{each.rule} {each.where}: {each.message}" for each in report.violations]
    except OmnigraphError as error:
        told["found"] = True
        told["findings"] = [f"{error.kind}: {error}"]
    except BaseException as error:
        told["untyped"] = f"{type(error).__name__}: {error}"
    told["read"] = compared(path, whole, writes=False, told=told)
    told["written"] = compared(path, whole, writes=True, told=told)
    return told


def main() -> None:
    with omnigraph.open_read_only(sys.argv[1], settings=FAST) as graph:
        whole = seen(graph)
    for line in sys.stdin:
        print(json.dumps(judge(line.strip(), whole)), flush=True)


main()
