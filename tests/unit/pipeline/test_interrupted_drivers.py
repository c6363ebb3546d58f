"""Ctrl-C between any two lines of what drives a load: it leaves nothing, or a load that is complete."""

import linecache
import sys
from collections import Counter
from pathlib import Path

import omnigraph
from graphs import make_graph, state_of
from omnigraph.pipeline import load, loading, resume, target
from omnigraph.storage.layout import LOADS

DRIVING = {module.__file__ for module in (load, loading, resume, target)}
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


class InterruptAt:
    """Raises KeyboardInterrupt at the n-th line of the driving modules that runs in this thread."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.where = ""

    def __call__(self, frame, event, _argument):
        if frame.f_code.co_filename not in DRIVING or frame.f_code.co_name in CLEANING:
            return None
        return self.line

    def line(self, frame, event, _argument):
        # No interrupt ever comes at the word `try`: nothing is called there.
        if event == "line" and linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() != "try:":
            self.left -= 1
            if self.left == 0:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.line


def interrupted(graph, source, number):
    """Load until the n-th line; where that was, or None when the load had fewer."""
    at = InterruptAt(number)
    tracing = sys.gettrace()
    sys.settrace(at)
    try:
        graph.load(source, mode="append", engine="local")
    except KeyboardInterrupt:
        return at.where
    finally:
        sys.settrace(tracing)
    return None


def test_an_interrupt_at_any_line_leaves_nothing(tmp_path):
    source = tmp_path / "p.jsonl"
    source.write_text(RECORDS)
    number, where = 0, "nowhere"
    outcomes = Counter()
    while where is not None:
        path = tmp_path / f"g{number}"
        with make_graph(path, "node P { k: String @key }") as graph:
            before, untouched = state_of(graph), True
            while where is not None and untouched:
                number += 1
                where = interrupted(graph, source, number)
                assert list((path / LOADS).glob("*")) == [], where
                pending, shown = graph.pending(), state_of(graph)
                untouched = shown == before and not pending
                assert not untouched or list(path.glob("nodes/*/data/*")) == [], where
                outcomes["left to recovery" if pending else "nothing" if untouched else "complete"] += 1
        with omnigraph.open(path) as graph:
            assert len(graph.export().splitlines()) in ({0, 2} if pending else {2}), where
            assert graph.verify().ok
    assert outcomes["nothing"] > 300
    assert outcomes["complete"] > 1
    assert outcomes["left to recovery"] > 1
