"""One client that writes as often as it is told, and says how long each write took.

Run by `concurrent`, with this version of the package or with an earlier one.
"""

import itertools
import sys
import time
from typing import Any

import omnigraph
from omnigraph.core.settings import Settings

SCHEMA = "node T { name: String @key  age: I32?  city: String? }"
INSERT = 'query one($k: String) { insert T { name: $k, age: 1, city: "c" } }'


def main(home: str, durability: Any) -> None:
    """Serve until there is nothing more to read."""
    with omnigraph.init(home, schema=SCHEMA, settings=Settings(durability=durability)) as graph:
        numbers = itertools.count()
        for line in sys.stdin:
            taken: list[float] = []
            for number in itertools.islice(numbers, int(line)):
                began = time.perf_counter()
                graph.mutate(INSERT, {"k": f"k{number}"})
                taken.append(time.perf_counter() - began)
            print(*taken, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
