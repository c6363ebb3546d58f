"""`python travel_child.py URI EXPECTED`: a graph shows what it showed elsewhere, and goes on. Prints `ok`."""

import json
import sys
from pathlib import Path

from stores import Store
from travelling import goes_on, opened, states


def main() -> None:
    place, expected = Store(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    with opened(place, read_only=True) as graph:
        assert states(graph) == expected
    with opened(place) as graph:
        goes_on(graph)
    sys.stdout.write("ok")


if __name__ == "__main__":
    main()
