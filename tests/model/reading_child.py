"""A second process that commits: `python reading_child.py <uri> <mutations.json>`.

Waits for a line before it begins, then prints the number of each mutation and the commit it made.
"""

import json
import sys
from pathlib import Path

import omnigraph
from omnigraph.core.settings import Settings


def main() -> None:
    uri, file = sys.argv[1:]
    mutations = json.loads(Path(file).read_text(encoding="utf-8"))
    with omnigraph.open(uri, settings=Settings(durability="os")) as graph:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        for number, text in enumerate(mutations):
            graph.mutate(text)
            sys.stdout.write(f"{number} {graph.commits.head().id}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
