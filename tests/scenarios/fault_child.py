"""A process whose environment fails under a mutation: `python fault_child.py <uri> <fault> [<bytes>]`.

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
                graph.mutate('query q() { insert Person { name: "new", age: 1 } insert Note { text: "n" } }')
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
