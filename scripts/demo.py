"""`make demo`: the main job on sample data, step by step, with what a user would type."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "knowledge-base"
COMMAND = Path(sys.executable).with_name("omnigraph")
STORE = ("--store", "kb.omni")
QUERIES = ("--query", "queries.gq")
CRASH = {"OMNIGRAPH_FAILPOINTS": "mutation.post_finalize_pre_publisher=exit"}
KILLED = 86


def title(text: str) -> None:
    """Say what comes next."""
    print(f"\n== {text}", flush=True)


def omnigraph(*arguments: str, expect: int = 0, env: Mapping[str, str] | None = None) -> str:
    """Run the command in the current directory, showing it and what it prints."""
    prefix = "".join(f"{name}={value} " for name, value in (env or {}).items())
    print(f"$ {prefix}omnigraph {shlex.join(arguments)}", flush=True)
    done = subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}
    )
    shown = (done.stderr + done.stdout).rstrip()
    if shown:
        print(shown, flush=True)
    require(done.returncode == expect, f"exit status {expect}, not {done.returncode}")
    return done.stdout


def require(holds: bool, what: str) -> None:  # noqa: FBT001  reads like an assertion
    """Stop the demo when it does not show what it says."""
    if not holds:
        sys.exit(f"the demo expected {what}")


def parameters(**values: str) -> list[str]:
    """`-p name=value` for each value."""
    return [part for name, value in values.items() for part in ("-p", f"{name}={value}")]


def languages() -> None:
    """Check the sample schema and queries, and plan a change."""
    title("Check a schema and its queries before anything runs")
    omnigraph("lint", "--schema", "schema.pg", *QUERIES)
    Path("typo.gq").write_text("query q() { match { $d: Document } return { $d.titel } }\n", encoding="utf-8")
    omnigraph("lint", "--schema", "schema.pg", "--query", "typo.gq", expect=1)
    title("See what the next version of the schema would do")
    omnigraph("schema", "plan", "--from", "schema.pg", "--schema", "schema-next.pg")


def writes() -> None:
    """Make a graph, load records on Spark, change it, and read it back."""
    title("Make a graph and load sample records with Spark")
    omnigraph("init", "--schema", "schema.pg", "kb.omni")
    omnigraph("load", "--data", "seed.jsonl", "--mode", "merge", *STORE)
    title("One query, four tables, one atomic commit")
    values = parameters(slug="currents", title="Currents", body="Water moves.", author="ada", topic="sea")
    omnigraph("mutate", "write_document", *QUERIES, *values, "--as", "ada", *STORE)
    omnigraph("query", "document", *QUERIES, *parameters(slug="currents"), *STORE)
    title("A write that breaks a rule changes nothing")
    omnigraph("mutate", "-e", 'query q() { insert Wrote { from: "nobody", to: "tides" } }', *STORE, expect=1)


def branches() -> None:
    """Change a branch and show that main is as before."""
    title("A branch of the whole graph, made without copying")
    omnigraph("branch", "create", "review", *STORE)
    omnigraph("mutate", "retract", *QUERIES, *parameters(slug="tides"), "--branch", "review", *STORE)
    count = "query n() { match { $d: Document } return { count($d) as documents } }"
    on_review = omnigraph("query", "-e", count, "--branch", "review", "--format", "csv", *STORE)
    on_main = omnigraph("query", "-e", count, "--branch", "main", "--format", "csv", *STORE)
    require(int(on_main.split()[1]) == int(on_review.split()[1]) + 1, "one document less on the branch")


def recovery() -> None:
    """Kill a writer between its table commits and the publish, and let the next writer settle it."""
    title("Kill a writer after its tables moved, before anything is visible")
    publish = ["mutate", "publish", *QUERIES, *parameters(slug="tides", words="120"), "--as", "ben", *STORE]
    omnigraph(*publish, env=CRASH, expect=KILLED)
    omnigraph("recoveries", *STORE)
    shown = omnigraph("query", "document", *QUERIES, *parameters(slug="tides"), "--format", "csv", *STORE)
    require("draft" in shown, "readers to see the last published state")
    title("The next writer first finishes the work of the dead one; the history says who did")
    omnigraph("mutate", "add_person", *QUERIES, *parameters(handle="dov", name="Dov Alder"), *STORE)
    shown = omnigraph("query", "document", *QUERIES, *parameters(slug="tides"), "--format", "csv", *STORE)
    require("published" in shown, "the write of the dead writer")
    omnigraph("commit", "list", *STORE)
    recovered = omnigraph("commit", "list", "--filter", "actor=omnigraph:recovery", "--json", *STORE)
    require(len(json.loads(recovered)["commits"]) == 1, "one recovery commit")


def merge() -> None:
    """Merge the branch back; main meanwhile changed the document it deletes."""
    title("Merge the branch: both sides changed one document, so somebody has to choose")
    omnigraph("branch", "merge", "review", *STORE, expect=3)
    omnigraph("branch", "merge", "review", "--on-conflict", "ours", "--as", "ada", *STORE)
    omnigraph("diff", "main", "review", "--stat", *STORE)


def ending() -> None:
    """Check the graph and export it."""
    title("Check every invariant, and export")
    omnigraph("verify", *STORE)
    omnigraph("export", "--type", "Person", *STORE)


def main() -> None:
    """Run every part in a fresh directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="omnigraph-demo-") as place:
        for file in EXAMPLE.iterdir():
            (Path(place) / file.name).write_bytes(file.read_bytes())
        os.chdir(place)
        for part in (languages, writes, branches, recovery, merge, ending):
            part()
        os.chdir("/")
    print("\nThe demo is done. README.md goes on from here.")


if __name__ == "__main__":
    main()
