"""A record that a task read and cannot account for stops the load, whatever lost it."""

from pathlib import Path

import pytest

from graphs import make_graph
from omnigraph.core.errors import InternalError
from omnigraph.pipeline.load import run as loading

SCHEMA = "node N { t: String }\n"
RECORDS = '{"type":"N","data":{"id":"a","t":"1"}}\n{"type":"N","data":{"id":"b","t":"2"}}\n'


def losing_one(stage):
    """The stage, which stages one row less than it says it read."""

    def lossy(task):
        result = stage(task)
        result.rows = {key: count - 1 for key, count in result.rows.items()}
        return result

    return lossy


@pytest.mark.parametrize(("stage", "more"), [("stage_journaled", ""), ("stage_split", RECORDS[:39])])
def test_a_lost_row_stops_the_load(tmp_path: Path, monkeypatch, stage: str, more: str) -> None:
    """`stage_split` runs when records are left out: here the first of two with one id."""
    (tmp_path / "in.jsonl").write_text(RECORDS + more)
    monkeypatch.setattr(loading, stage, losing_one(getattr(loading, stage)))
    with make_graph(tmp_path / "g", SCHEMA) as graph:
        with pytest.raises(InternalError, match=r"read \d records and accounts for \d"):
            graph.load(tmp_path / "in.jsonl", mode="merge", engine="local")
        assert graph.export() == ""
        assert graph.pending() == ()
