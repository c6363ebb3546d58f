"""Merges one branch in a process of its own, with its memory limited, and says what it took, as JSON."""

import json
import resource
import sys
from pathlib import Path

# Everything a process allocates counts here: heap, private mappings, stacks of threads. The limit holds before
# anything is imported. A limit of the address space would also count files that are only mapped.
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[3]), int(sys.argv[3])))

import omnigraph  # noqa: E402
from omnigraph.core.events import StorageCall, TableStaged, listen  # noqa: E402
from omnigraph.core.settings import Settings  # noqa: E402

staged: list[list[object]] = []
takes: list[str] = []


def peak_kib() -> int:
    """The most memory this program had; `getrusage` would count what its parent had before it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def note(event: object) -> None:
    if isinstance(event, TableStaged):
        staged.append([event.primitive, event.rows])
    elif isinstance(event, StorageCall) and event.kind == "take":
        takes.append(event.target)


with omnigraph.open(sys.argv[1], settings=Settings(durability="os")) as graph:
    before = peak_kib()
    with listen(note, everywhere=True):
        report = graph.branches.merge(sys.argv[2])
    peak = peak_kib()
print(
    json.dumps(
        {
            "outcome": report.outcome,
            "before_kib": before,
            "peak_kib": peak,
            "staged": staged,
            "takes": len(takes),
            "stats": report.stats,
        }
    )
)
