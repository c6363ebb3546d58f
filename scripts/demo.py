"""`make demo`: the main job on sample data, step by step, with what a user would type.

A company's knowledge base of more than 100,000 nodes and 400,000 edges is made, loaded on Spark, asked,
branched, merged, and one of its writers is killed half-way. Everything stays in `demo-output` to go on with.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import company

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "knowledge-base"
PLACE = ROOT / "demo-output"
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""A shell may run its last command in its own place, or report how it ended."""


def title(text: str) -> None:
    """Say what comes next."""
    print(f"\n== {text}", flush=True)


def sh(command: str, *, expect: tuple[int, ...] = (0,)) -> str:
    """Run a line of shell in the place of the demo, show it and what it prints, and return its stdout."""
    print(f"$ {command}", flush=True)
    start = time.perf_counter()
    # stderr goes straight to the terminal, where a load draws its progress.
    done = subprocess.run(
        ["sh", "-c", command], cwd=PLACE, env=environment(), stdout=subprocess.PIPE, text=True, check=False
    )
    seconds = time.perf_counter() - start
    if done.stdout.strip():
        print(done.stdout.rstrip(), flush=True)
    print(f"  ({seconds:.1f} s)", flush=True)
    if done.returncode not in expect:
        sys.exit(f"the demo expected exit status {expect[0]}, not {done.returncode}")
    return done.stdout


def environment() -> dict[str, str]:
    """What a user has after activating the environment and naming the graph, and nothing of their own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OMNIGRAPH_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "OMNIGRAPH_STORE": "kb.omni", "OMNIGRAPH_HOME": str(PLACE / "home")}


def require(holds: bool, what: str) -> None:  # noqa: FBT001  reads like an assertion
    """Stop the demo when it does not show what it says."""
    if not holds:
        sys.exit(f"the demo expected {what}")


def prepare() -> None:
    """Start in an empty place; what an earlier demo left is kept once."""
    previous = PLACE.with_name("demo-output.previous")
    if PLACE.exists():
        shutil.rmtree(previous, ignore_errors=True)
        PLACE.rename(previous)
    PLACE.mkdir()
    for file in EXAMPLE.iterdir():
        shutil.copyfile(file, PLACE / file.name)


def languages() -> None:
    """Check the schema and the queries."""
    title("Check a schema and its queries before anything runs")
    sh("omnigraph lint --schema schema.pg --query queries.gq")
    sh(
        "echo 'query q() { match { $d: Document } return { $d.titel } }'"
        " | omnigraph lint --schema schema.pg --query -",
        expect=(1,),
    )


def loading() -> None:
    """Make the records and load them on Spark as one commit."""
    title("Make a company's knowledge base and load it on Spark, as one atomic commit")
    start = time.perf_counter()
    nodes, edges, size = company.write(PLACE / "data")
    made = f"{nodes:,} nodes and {edges:,} edges, {size / 1e6:.0f} MB of JSON lines in data/"
    print(f"made {made} ({time.perf_counter() - start:.1f} s)")
    require(nodes >= 100_000, "at least 100,000 nodes")
    require(edges >= 400_000, "at least 400,000 edges")
    print("$ export OMNIGRAPH_STORE=kb.omni")
    sh("omnigraph init --schema schema.pg kb.omni")
    sh("omnigraph load --data data --mode append --as importer")


def questions() -> None:
    """A traversal, a hybrid search and an aggregate, each with its plan."""
    title("Follow edges: whose work does one person build on, and from which teams?")
    ask = "--query queries.gq"
    sh(f"omnigraph query builds_on {ask} -p handle=person-00007")
    sh(f"omnigraph explain builds_on {ask} -p handle=person-00007 --analyze")
    title("Search by words and by meaning at once: two rankings, fused by rank")
    meaning = f"omnigraph query meaning_of {ask} -p slug=doc-00004 --format jsonl"
    words = "-p 'words=tides forecasts risk'"
    sh(f"{meaning} > like.json")
    found = sh(f"omnigraph query find {ask} --params-file like.json {words} --format csv")
    require(found.count("\n") == 6, "five documents")
    sh(f"omnigraph explain find {ask} --params-file like.json {words} --analyze")
    title("Count and sum over joins")
    sh(f"omnigraph query output_of_areas {ask}")
    sh(f"omnigraph explain output_of_areas {ask} --analyze")


def branching() -> None:
    """Change a branch, look at it, and merge it while main moves on."""
    title("Branch the whole graph; nothing is copied")
    sh("omnigraph branch create review")
    sh(
        "omnigraph mutate decide --query queries.gq -p code=decision-night -p 'title=Pilots at night'"
        " -p team=team-00051 -p grounds=doc-00001 -p on=2026-05-01 --branch review --as ines"
    )
    sh("omnigraph mutate publish --query queries.gq -p slug=doc-00015 -p words=900 --branch review --as ines")
    sh("omnigraph mutate retract --query queries.gq -p slug=doc-00016 --branch review --as ines")
    sh("omnigraph diff main review --stat")
    title("Meanwhile main moves on; preview, then merge: entities changed on one side only need no choice")
    sh(
        "omnigraph mutate add_person --query queries.gq -p handle=dov-alder -p 'name=Dov Alder'"
        " -p team=team-00001"
    )
    sh("omnigraph branch merge review --dry-run")
    sh("omnigraph branch merge review --delete-branch --as ines")
    sh("omnigraph query grounds --query queries.gq -p code=decision-night")
    sh("omnigraph log --limit 4")


def recovery() -> None:
    """Kill a writer between its table commits and the publish, and let the next writer settle it."""
    title("Kill a writer (SIGKILL) after its tables moved, before anything is visible")
    decide = (
        "omnigraph mutate decide --query queries.gq -p code=decision-dawn -p 'title=Tugs at dawn'"
        " -p team=team-00051 -p grounds=doc-00001 -p on=2026-05-02 --as ines"
    )
    sh(f"OMNIGRAPH_FAILPOINTS=mutation.post_finalize_pre_publisher=kill {decide}", expect=KILLED)
    sh("omnigraph recoveries")
    ask = "omnigraph query grounds --query queries.gq -p code=decision-dawn --format jsonl"
    require(not sh(ask), "readers to see the last published state")
    title("The next writer first finishes the work of the dead one; the history says so")
    sh("omnigraph mutate publish --query queries.gq -p slug=doc-00017 -p words=120 --as ben")
    require(bool(sh(ask)), "the decision of the dead writer")
    sh("omnigraph recoveries")
    settled = sh("omnigraph commit list --actor omnigraph:recovery --json")
    require(len(json.loads(settled)["commits"]) == 1, "one recovery commit")
    title("Check every invariant of the graph")
    sh("omnigraph verify")


def ending(seconds: float) -> None:
    """Say where everything lies and what to do next."""
    activate = Path(sys.executable).with_name("activate")
    place = os.path.relpath(PLACE)
    print(f"""
The demo took {seconds:.0f} s. The graph lies in {place}/kb.omni, its queries in {place}/queries.gq.

Go on with it:

  . {os.path.relpath(activate)}
  cd {place} && export OMNIGRAPH_STORE=kb.omni
  omnigraph query most_cited --query queries.gq
  omnigraph query reports_of --query queries.gq -p handle=person-00001 --json
  omnigraph mutate write_document --query queries.gq -p slug=mine -p title=Mine -p 'body=What I know' \\
      -p author=person-00001 -p topic='tides safety' --as me
  omnigraph schema plan --schema schema-next.pg
  omnigraph blame Document mine
  omnigraph --help

README.md and docs/start/first-graph.md explain the rest.""")


def main() -> None:
    """Run every part."""
    start = time.perf_counter()
    prepare()
    for part in (languages, loading, questions, branching, recovery):
        part()
    ending(time.perf_counter() - start)


if __name__ == "__main__":
    main()
