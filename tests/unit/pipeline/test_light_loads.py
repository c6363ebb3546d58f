"""What a load costs beside its rows: modules it has no use for, and pieces of input that are too large."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from graphs import make_graph
from omnigraph.core.limits import MIB
from omnigraph.pipeline.plan import SourceFormat
from omnigraph.pipeline.sources import CHUNK_BYTES, plan_splits, read_tables

UNUSED = (
    "omnigraph.planning.ir",
    "omnigraph.language.query_tree",
    "omnigraph.language.schema_tree",
    "pandas",
)


def test_a_load_compiles_nothing(tmp_path: Path) -> None:
    """The languages are a third of the time in which a small load is done."""
    make_graph(tmp_path / "g", "node P { k: String @key }").close()
    (tmp_path / "p.jsonl").write_text('{"type":"P","data":{"k":"a"}}\n')
    arguments = ["load", "--data", "p.jsonl", "--mode", "append", "--engine", "local", "--store", "g"]
    program = (
        "import sys\n"
        "from omnigraph.cli.main import run\n"
        "from omnigraph.cli.startup import spare_pandas\n"
        "spare_pandas()\n"
        f"assert run({arguments!r}) == 0\n"
        f"found = set({UNUSED!r}) & set(sys.modules)\n"
        "assert not found, found\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("group_rows", [500, 8_000])
def test_long_rows_of_parquet_come_in_small_pieces(tmp_path: Path, group_rows: int) -> None:
    dimension, count = 1024, 8_000
    values = pa.array(np.arange(count * dimension, dtype=np.float32))
    vectors = pa.ListArray.from_arrays(np.arange(0, count * dimension + 1, dimension, np.int32), values)
    path = tmp_path / "Doc.parquet"
    pq.write_table(pa.table({"v": vectors}), path, row_group_size=group_rows, compression="none")
    rows = 0
    for split in plan_splits([path], format_=SourceFormat.PARQUET, type_name="Doc"):
        for piece in read_tables(split):
            assert piece.nbytes <= CHUNK_BYTES + MIB
            rows += piece.num_rows
    assert rows == count
