"""What several threads ask of a dataset that they share."""

import threading
from pathlib import Path

from omnigraph.storage.datasets import field_ids
from omnigraph.storage.handles import lance_dataset
from stores import PLACE, filled, local_store

ASKED = 200


def test_whoever_reads_a_commit_keeps_nobody_from_the_dataset(tmp_path: Path) -> None:
    """Lance's call for it takes the dataset for itself, and every other thread's would fail meanwhile."""
    tables = local_store(tmp_path).tables()
    base = filled(tables, ["a"], ["b"])
    shared = lance_dataset(tables.open_version(base.table_key, PLACE, None, base.version))
    begun, enough = threading.Event(), threading.Event()
    refused: list[RuntimeError] = []

    def ask() -> None:
        while not enough.is_set():
            try:
                field_ids(shared)
            except RuntimeError as error:
                refused.append(error)
            begun.set()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        assert begun.wait()
        for _ in range(ASKED):
            assert tables.transaction_of(PLACE, None, base.version) is not None
    finally:
        enough.set()
        asking.join()
    assert refused == []
