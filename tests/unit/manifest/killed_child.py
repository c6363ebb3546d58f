"""A process that publishes at random until it is killed: `killed_child.py <root> <seed> <log>`.

The log gets `tried <commit>` before each publish and `done <commit> <branch> <version>` after it.
"""

import contextlib
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from omnigraph.core.errors import ExpectedVersionMismatch, RowLevelCasContention
from omnigraph.core.ids import BranchName, show_branch
from omnigraph.manifest.publisher import ManifestBatchPublisher
from unit.manifest.ground import CITY, KNOWS, PERSON, intent, open_store, update

BRANCHES = (None, BranchName("a"), BranchName("b/c"))


def publish_at_random(root: Path, seed: int, log: Path) -> None:
    chance = random.Random(seed)
    store = open_store(root, durability="os")
    publisher = ManifestBatchPublisher(store)
    with log.open("a", buffering=1, encoding="utf-8") as out:
        while True:
            branch, key = chance.choice(BRANCHES), chance.choice((PERSON, CITY, KNOWS))
            if chance.random() < 0.1:
                store.commits.complete()
            pin = store.current(branch).pin(key)
            commit = intent(actor=f"child-{seed}")
            changes, expected = [update(key, pin + 1, branch=branch)], {key: pin}
            out.write(f"tried {commit.commit_id}\n")
            with contextlib.suppress(ExpectedVersionMismatch, RowLevelCasContention):
                if chance.random() < 0.5:
                    made = publisher.publish(branch, changes, expected, commit)
                else:
                    prepared = publisher.prepare(branch, changes, expected, commit)
                    made = publisher.publish_prepared(prepared)
                out.write(f"done {made.head} {show_branch(branch)} {made.manifest_version}\n")


if __name__ == "__main__":
    publish_at_random(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
