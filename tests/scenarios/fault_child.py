"""A process whose environment fails under a write: `python fault_child.py <uri> <fault> [<bytes> [<fill>]]`.

The write is a mutation or, with a fill, a change of the schema that adds the property `Person.label`.

Prints one JSON line with the error's kind, or `ok`.
"""

import json
import os
import resource
import signal
import sys
import tempfile

import omnigraph
from omnigraph.core.errors import OmnigraphError

NOBODY = 65534


def load_everything() -> None:
    """Imports all a write needs: another user may not be able to read the interpreter's own files."""
    with (
        tempfile.TemporaryDirectory() as place,
        omnigraph.init(f"{place}/g", schema="node Person { name: String @key }") as graph,
    ):
        graph.mutate('query q() { insert Person { name: "a" } }')


def write(graph: omnigraph.Graph, fill: str | None = None) -> None:
    if fill is None:
        graph.mutate('query q() { insert Person { name: "new", age: 1 } insert Note { text: "n" } }')
    else:
        schema = graph.schema_source().replace("name: String @key", "name: String @key  label: String?")
        graph.apply_schema(schema, fills=[fill])


def main() -> None:
    uri, fault, *arguments = sys.argv[1:]
    if fault == "unprivileged" and os.geteuid() == 0:
        load_everything()
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        with omnigraph.open(uri) as graph:
            if fault == "file_size":
                # The system refuses to extend any file beyond this, as a full disk refuses to extend it at all.
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (int(arguments[0]), resource.RLIM_INFINITY))
            try:
                write(graph, *arguments[1:])
                outcome = {"kind": "ok"}
            except OmnigraphError as error:
                outcome = {"kind": error.kind, "text": str(error)}
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except OmnigraphError as error:
        outcome = {"kind": error.kind, "text": str(error)}
    sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
