"""A second process that writes: `python writer_child.py <uri> <options> <what> <arguments>`; prints one JSON line."""

import json
import sys

import omnigraph
from omnigraph.core.errors import OmnigraphError


def insert_notes(graph, tag: str, count: str) -> None:
    for number in range(int(count)):
        graph.mutate("query q($t: String) { insert Note { text: $t } }", {"t": f"{tag}-{number}"})


def upsert(graph, name: str, ages: str) -> None:
    for age in ages.split(","):
        graph.mutate(
            "query q($n: String, $a: I32) { insert Person { name: $n, age: $a } }", {"n": name, "a": int(age)}
        )


def main() -> None:
    uri, options, what, *arguments = sys.argv[1:]
    with omnigraph.open(uri, storage_options=json.loads(options)) as graph:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        try:
            {"insert_notes": insert_notes, "upsert": upsert}[what](graph, *arguments)
            outcome = {"ok": True}
        except OmnigraphError as error:
            outcome = {"ok": False, "kind": error.kind}
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
