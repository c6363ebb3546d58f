"""What a data file holds, whoever points at it: every row that was written, deleted ones included."""

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from omnigraph.core.events import StorageCall, emit
from omnigraph.storage.failures import Circumstances, substrate
from omnigraph.storage.layout import GraphRoot

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 64 * 1024


def rows_with(root: GraphRoot, name: str, columns: Sequence[str], value: str) -> int:
    """How many rows of a data file have the text in one of these columns; a file may have none of them.

    Deletions are not looked at. Cost: these columns of the file, batch by batch.
    """
    from lance.file import LanceFileReader  # noqa: PLC0415  a heavy package

    address, options = f"{root.uri}/{name}", dict(root.storage_options) or None
    emit(StorageCall("read_file", address))
    found = 0
    with substrate(lambda: Circumstances(address)):
        there = set(LanceFileReader(address, options).metadata().schema.names)
        wanted = [column for column in columns if column in there]
        if not wanted:
            return 0
        reader = LanceFileReader(address, options, columns=wanted).read_all(batch_size=BATCH_ROWS)
        for batch in reader.to_batches():
            found += _matching(batch, wanted, value)
    return found


def _matching(batch: "pa.RecordBatch", columns: Sequence[str], value: str) -> int:
    # None of these columns is ever null.
    hits = reduce(pc.or_, [pc.equal(batch.column(column), value) for column in columns])
    return int(pc.sum(hits).as_py() or 0)
