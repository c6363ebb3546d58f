"""A writer on an object store that stands still at one place: `python lease_child.py <JSON>`.

Members: `uri`, `options`, `expiry_s`, `at` (the commit or publish before which it stands still, with its number),
`how` (`stop`: the whole process; `wait`: only this write, its lease is renewed), `then` (`go_on` or `die`).
Prints `ready` before it stands still by waiting, and one JSON line about its write at the end.
"""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import omnigraph
from crash.people import INSERT
from omnigraph.core.errors import OmnigraphError
from omnigraph.manifest.publisher import ManifestBatchPublisher
from omnigraph.recovery import process_lock
from omnigraph.storage.tables import TableStorage


def stand_still(how):
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        print("ready", flush=True)
        sys.stdin.readline()


def main():
    words = json.loads(sys.argv[1])
    process_lock.LEASE_EXPIRY_S = words["expiry_s"]
    place, number = words["at"]
    calls = {"commit": 0, "publish": 0}

    def before(which, call):
        def wrapped(*arguments, **named):
            calls[which] += 1
            here = which == place and calls[which] == number
            if here:
                stand_still(words["how"])
            try:
                return call(*arguments, **named)
            finally:
                if here and words["then"] == "die":
                    os._exit(9)

        return wrapped

    graph = omnigraph.open(words["uri"], storage_options=words["options"])
    # After the writer's last look at its lease: this is the gap no look can close.
    TableStorage.commit_staged = before("commit", TableStorage.commit_staged)
    ManifestBatchPublisher._swap = before("publish", ManifestBatchPublisher._swap)
    try:
        INSERT.run(graph, "1")
        outcome = {"ok": True}
    except OmnigraphError as error:
        outcome = {"ok": False, "kind": error.kind, "text": str(error)}
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
