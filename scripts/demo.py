"""`make demo`: the main job on sample data, step by step, with what a user would type."""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "knowledge-base"
COMMAND = Path(sys.executable).with_name("omnigraph")


def title(text: str) -> None:
    """Say what comes next."""
    print(f"\n== {text}", flush=True)


def omnigraph(*arguments: str, expect: int = 0) -> str:
    """Run the command in the current directory, showing it and what it prints."""
    print(f"$ omnigraph {shlex.join(arguments)}", flush=True)
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)
    shown = (done.stdout + done.stderr).rstrip()
    if shown:
        print(shown, flush=True)
    if done.returncode != expect:
        sys.exit(f"the demo expected exit status {expect} and got {done.returncode}")
    return done.stdout


def languages() -> None:
    """Check the sample schema and queries, and plan a change."""
    title("Check a schema and its queries")
    omnigraph("lint", "--schema", "schema.pg", "--query", "queries.gq")
    title("See what a new version of the schema would do")
    omnigraph("schema", "plan", "--from", "schema.pg", "--schema", "schema-next.pg")
    title("A typing error is found before anything runs")
    Path("typo.gq").write_text("query q() { match { $d: Document } return { $d.titel } }\n", encoding="utf-8")
    omnigraph("lint", "--schema", "schema.pg", "--query", "typo.gq", expect=1)


def main() -> None:
    """Run every part in a fresh directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="omnigraph-demo-") as place:
        for file in EXAMPLE.iterdir():
            (Path(place) / file.name).write_bytes(file.read_bytes())
        os.chdir(place)
        languages()
        os.chdir("/")
    print("\nThe demo is done. README.md goes on from here.")


if __name__ == "__main__":
    main()
