"""Ctrl-C between any two lines of what drives a load: it leaves nothing, or a load that is complete."""

import logging
from collections import Counter

import pytest

import omnigraph
from graphs import make_graph, state_of
from interrupting import interrupted_at
from omnigraph.pipeline.load import journal as resume
from omnigraph.pipeline.load import load, target
from omnigraph.pipeline.load import run as loading
from omnigraph.pipeline.spark.launch import is_not_of_the_bridge
from omnigraph.storage.layout import LOADS

pytestmark = pytest.mark.crash

DRIVING = {load, loading, resume, target}
CLEANING = {
    "only_driver",
    "_put_away",
    "_give_up",
    "end",
    "_out_of_reach",
    "_clean_up",
    "_keep_or_clean_up",
    "take_back",
}
"""An interrupt in one of these, mostly a second one, may leave an empty lock or files that age tells later."""
RECORDS = '{"type":"P","data":{"k":"a"}}\n{"type":"P","data":{"k":"b"}}\n'


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.torture)])
def test_an_interrupt_at_any_line_leaves_nothing(tmp_path, step):
    source = tmp_path / "p.jsonl"
    source.write_text(RECORDS)
    number, ended = 0, False
    outcomes = Counter()
    while not ended:
        path = tmp_path / f"g{number}"
        with make_graph(path, "node P { k: String @key }") as graph:
            before, untouched = state_of(graph), True
            while untouched:
                number += step
                stop = interrupted_at(
                    number, lambda: graph.load(source, mode="append", engine="local"), DRIVING, CLEANING
                )
                ended, where = stop is None, stop and stop.where
                assert list((path / LOADS).glob("*")) == [], where
                pending, shown = graph.pending(), state_of(graph)
                untouched = shown == before and not pending
                assert not untouched or list(path.glob("nodes/*/data/*")) == [], where
                outcomes["left to recovery" if pending else "nothing" if untouched else "complete"] += 1
        with omnigraph.open(path) as graph:
            assert len(graph.export().splitlines()) in ({0, 2} if pending else {2}), where
            assert graph.verify().ok
    assert outcomes["nothing"] > 300 / step
    assert outcomes["complete"] > 1
    assert outcomes["left to recovery"] > 1


def test_an_ending_process_does_not_log_that_its_jvm_is_gone():
    said = {
        name: logging.makeLogRecord({"pathname": f"/x/{name}/java_gateway.py"}) for name in ("py4j", "mine")
    }
    assert [name for name, record in said.items() if is_not_of_the_bridge(record)] == ["mine"]
