"""Merges one branch in a process of its own and says what it took, as JSON."""

import json
import resource
import sys

import omnigraph
from omnigraph.core.events import TableStaged, listen
from omnigraph.core.settings import Settings

staged: list[list[object]] = []


def note(event: object) -> None:
    if isinstance(event, TableStaged):
        staged.append([event.primitive, event.rows])


with omnigraph.open(sys.argv[1], settings=Settings(durability="os")) as graph:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with listen(note, everywhere=True):
        report = graph.branches.merge(sys.argv[2])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(
    json.dumps(
        {
            "outcome": report.outcome,
            "before_kib": before,
            "peak_kib": peak,
            "staged": staged,
            "stats": report.stats,
        }
    )
)
