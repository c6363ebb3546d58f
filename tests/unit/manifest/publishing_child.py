"""A process of its own that publishes on main: `publishing_child.py <root> <table key> <times>`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from omnigraph.core.errors import ExpectedVersionMismatch, RowLevelCasContention
from omnigraph.core.ids import TableKey
from omnigraph.manifest.publisher import ManifestBatchPublisher
from unit.manifest.ground import intent, open_store, update


def publish_until_done(root: Path, key: TableKey, times: int) -> int:
    """Publish `times` versions of one table that every child fights for; how often another one was first."""
    store = open_store(root)
    publisher = ManifestBatchPublisher(store)
    done = lost = 0
    while done < times:
        pin = store.current(None).pin(key)
        try:
            publisher.publish(None, [update(key, pin + 1, rows=pin + 1)], {key: pin}, intent(actor="child"))
            done += 1
        except (ExpectedVersionMismatch, RowLevelCasContention):
            lost += 1
    store.commits.close()
    return lost


if __name__ == "__main__":
    print(publish_until_done(Path(sys.argv[1]), TableKey(sys.argv[2]), int(sys.argv[3])))
