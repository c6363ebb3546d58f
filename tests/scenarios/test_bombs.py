"""Small inputs that mean much work: they are refused within bounds. `docs/internals/threats.md` names them."""

import gzip
import json
import time
import tracemalloc
from pathlib import Path

import pytest

from graphs import make_graph, rows_of, unchanged
from omnigraph.api.graph import Graph
from omnigraph.core.errors import ConstraintViolation, ResourceLimit, SidecarSchemaError
from omnigraph.core.limits import MIB
from omnigraph.pipeline.input import sources
from omnigraph.recovery import sidecar
from omnigraph.recovery.sidecar import parse_sidecar
from omnigraph.storage.fragments import remove_fragments
from omnigraph.storage.handles import NO_NUMBER, Fragment
from omnigraph.storage.layout import GraphRoot

SCHEMA = 'node Person { name: String @key  @check(name, "^(a+)+$") }'


@pytest.fixture
def graph(tmp_path: Path):
    with make_graph(tmp_path / "g", SCHEMA) as made:
        yield made


@pytest.mark.slow
def test_a_packed_file_of_one_endless_line_is_not_unpacked(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 MiB of spaces are 64 KiB packed; with a bound of 1 MiB a few times the bound is held, not all."""
    source = tmp_path / "people.jsonl.gz"
    source.write_bytes(gzip.compress(b'{"type":"Person","data":{"name":"' + b" " * (64 * MIB)))
    assert source.stat().st_size < MIB
    monkeypatch.setattr(sources, "RECORD_BYTES_MAX", MIB)
    tracemalloc.start()
    try:
        with unchanged(graph), pytest.raises(ResourceLimit) as refused:
            graph.load(source, mode="append", engine="local")
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused.value.details["resource_limit"]["resource"] == "record_bytes"
    assert held < 48 * MIB


def test_a_pattern_that_backtracks_elsewhere_is_matched_in_one_pass(graph: Graph, tmp_path: Path) -> None:
    """Engines that backtrack need 2 to the power of the length for this pattern and this text."""
    source = tmp_path / "people.jsonl"
    names = ["a" * 100_000 + "b", "a" * 100_000]
    source.write_text(
        "".join(json.dumps({"type": "Person", "data": {"name": name}}) + "\n" for name in names)
    )
    began = time.process_time()
    with unchanged(graph), pytest.raises(ConstraintViolation):
        graph.load(source, mode="append", engine="local")
    source.write_text(json.dumps({"type": "Person", "data": {"name": names[1]}}) + "\n")
    graph.load(source, mode="append", engine="local")
    assert time.process_time() - began < 20
    assert set(rows_of(graph, "Person")) == {names[1]}


def test_a_recovery_note_beyond_its_bound_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar, "SIDECAR_BYTES_MAX", 100)
    with pytest.raises(SidecarSchemaError, match="it is too large"):
        parse_sidecar("note.json", json.dumps({"schema_version": 1, "padding": " " * 100}))


def test_a_journal_that_names_files_elsewhere_removes_none(tmp_path: Path) -> None:
    outside = tmp_path / "letter.txt"
    outside.write_text("mine")
    root = GraphRoot(str(tmp_path / "g"))
    (tmp_path / "g").mkdir()
    for name in ("../letter.txt", "nodes/../../letter.txt", str(outside)):
        remove_fragments(root, [Fragment(NO_NUMBER, (name,), 1)])
    assert outside.read_text() == "mine"
