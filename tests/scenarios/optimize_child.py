"""A second process that writes until it is told to stop: `python optimize_child.py <uri>`.

Prints `ready` once it has written, and at the end its rows and its longest wait as one JSON line.
"""

import json
import select
import sys
import time

import omnigraph

INSERT = "query q($n: String, $v: I32) { insert P { name: $n, n: $v } }"
CHANGE = "query q($n: String, $v: I32) { update P set { n: $v } where name = $n }"
REMOVE = "query q($n: String) { delete P where name = $n }"
READY_AFTER = 6


def told_to_stop() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main() -> None:
    rows: dict[str, int | None] = {}
    waits: list[float] = []
    with omnigraph.open(sys.argv[1]) as graph:
        number = 0
        while number < READY_AFTER or not told_to_stop():
            begun = time.perf_counter()
            name, old = f"w{number}", f"p{number % 40}"
            match number % 3:
                case 0:
                    graph.mutate(INSERT, {"n": name, "v": number})
                    rows[name] = number
                case 1:
                    graph.mutate(CHANGE, {"n": old, "v": number})
                    if old not in rows or rows[old] is not None:
                        rows[old] = number
                case _:
                    graph.mutate(REMOVE, {"n": old})
                    rows[old] = None
            waits.append(time.perf_counter() - begun)
            number += 1
            if number == READY_AFTER:
                sys.stdout.write("ready\n")
                sys.stdout.flush()
    sys.stdout.write(json.dumps({"rows": rows, "calls": number, "longest_s": max(waits)}) + "\n")


if __name__ == "__main__":
    main()
