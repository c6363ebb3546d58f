"""Does operations on a graph as it is told, one JSON line each, and answers each with one JSON line."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import omnigraph
from graphs import FAST
from model.branch_programs import perform

print("ready", flush=True)
graph = omnigraph.open(sys.stdin.readline().strip(), settings=FAST)
scratch = Path(graph.uri).with_suffix(".conflicts.json")
for line in sys.stdin:
    operation = json.loads(line)
    if operation[0] == "reopen":
        graph.close()
        graph = omnigraph.open(graph.uri, settings=FAST)
    print(json.dumps(perform(graph, operation, scratch)), flush=True)
graph.close()
