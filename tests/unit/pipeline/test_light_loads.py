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
from omnigraph.core.load_options import SourceFormat
from omnigraph.pipeline.input.sources import CHUNK_BYTES, input_bytes, plan_splits, read_tables, text_bytes

UNUSED = (
    "omnigraph.planning.ir",
    "omnigraph.language.query_tree",
    "omnigraph.language.schema_tree",
    "pandas",
)


@pytest.mark.slow
def test_a_load_compiles_nothing(tmp_path: Path) -> None:
    """The languages are a third of the time in which a small load is done."""
    make_graph(tmp_path / "g", "node P { k: String @key }").close()
    (tmp_path / "p.jsonl").write_text('{"type":"P","data":{"k":"a"}}\n')
    arguments = ["load", "--data", "p.jsonl", "--mode", "append", "--engine", "local", "--store", "g"]
    program = (
        "import sys\n"
        "from omnigraph.cli.running import run\n"
        "from omnigraph.cli.startup import spare\n"
        "spare()\n"
        f"assert run({arguments!r}) == 0\n"
        f"found = set({UNUSED!r}) & set(sys.modules)\n"
        "assert not found, found\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("group_rows", [500, 8_000])
@pytest.mark.slow
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


@pytest.mark.parametrize("groups", [1, 2, 5, 7, 16])
@pytest.mark.parametrize("per_split", [1, 3, 4, 100])
def test_row_groups_are_shared_out_evenly(tmp_path: Path, groups: int, per_split: int) -> None:
    path = tmp_path / "Doc.parquet"
    pq.write_table(pa.table({"n": np.arange(groups * 10)}), path, row_group_size=10)
    split_bytes = -(-path.stat().st_size * per_split // groups)
    splits = plan_splits([path], split_bytes=split_bytes)
    assert [number for split in splits for number in range(split.start, split.end or groups)] == list(
        range(groups)
    )
    sizes = [(split.end or groups) - split.start for split in splits]
    assert max(sizes) <= per_split
    assert max(sizes) - min(sizes) <= 1
    rows = [n for split in splits for piece in read_tables(split) for n in piece["n"].to_pylist()]
    assert rows == list(range(groups * 10))


@pytest.mark.slow
def test_packed_files_count_by_what_they_hold(tmp_path: Path) -> None:
    """The checks of a load need as many partitions as its records have keys, however small its files are."""
    rows = 100_000
    keys = pa.array([f"key-{n:08d}" for n in range(rows)])
    pq.write_table(pa.table({"k": keys}), tmp_path / "P.parquet", compression="zstd")
    packed = plan_splits([tmp_path / "P.parquet"])
    plain = tmp_path / "p.jsonl"
    plain.write_text("".join(f'{{"type":"P","data":{{"k":"{key}"}}}}\n' for key in keys.to_pylist()))
    with pa.output_stream(str(tmp_path / "p.jsonl.gz"), compression="gzip") as out:
        out.write(plain.read_bytes())
    text = plain.stat().st_size
    assert text_bytes(plan_splits([plain])) == text
    assert input_bytes(packed) < text / 4
    for path in (tmp_path / "P.parquet", tmp_path / "p.jsonl.gz"):
        assert text / 4 < text_bytes(plan_splits([path])) < text * 4
