"""A writer on an object store that stands still at one place: `python lease_child.py <JSON>`.

Members: `uri`, `options`, `expiry_s`, `writer` (a name of `crash.people`), `at` (the step before which it stands
still, with its number), `how` (`stop`: the whole process; `wait`: only this write, its lease is renewed), `then`
(`go_on` or `die`). Prints `ready` before it stands still by waiting, and one JSON line about its write at the end.
"""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import omnigraph
from crash.people import WRITERS
from omnigraph.core.errors import OmnigraphError
from omnigraph.manifest.dataset import ControlDataset
from omnigraph.manifest.publisher import ManifestBatchPublisher
from omnigraph.recovery import process_lock
from omnigraph.recovery.lease import Hold
from omnigraph.storage.tables import TableStorage

STEPS = {
    # Its look at the lease: whatever it had looked at before may be otherwise now.
    "check": (Hold, "check"),
    # After its last look at the lease: these are the gaps no look can close.
    "commit": (TableStorage, "commit_staged"),
    "publish": (ManifestBatchPublisher, "_swap"),
    "branch": (ControlDataset, "create_branch"),
    "tag": (ControlDataset, "create_tag"),
}


def stand_still(how):
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        print("ready", flush=True)
        sys.stdin.readline()


def main():
    words = json.loads(sys.argv[1])
    process_lock.LEASE_EXPIRY_S = words["expiry_s"]
    step, number = words["at"]
    calls = 0
    owner, name = STEPS[step]
    call = getattr(owner, name)

    def wrapped(*arguments, **named):
        nonlocal calls
        calls += 1
        here = calls == number
        if here:
            stand_still(words["how"])
        try:
            return call(*arguments, **named)
        finally:
            if here and words["then"] == "die":
                os._exit(9)

    graph = omnigraph.open(words["uri"], storage_options=words["options"])
    setattr(owner, name, wrapped)
    try:
        WRITERS[words["writer"]].run(graph, "1")
        outcome = {"ok": True}
    except OmnigraphError as error:
        outcome = {"ok": False, "kind": error.kind, "text": str(error)}
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
