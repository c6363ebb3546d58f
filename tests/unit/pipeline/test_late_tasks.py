"""Tasks that go on after their load ended: Spark cancels a job, and the process that works for it may not know."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphs import make_graph, state_of
from omnigraph.core.errors import Cancelled
from omnigraph.pipeline.load import journal as resume
from omnigraph.pipeline.spark.executors import LocalExecutor
from omnigraph.storage.layout import LOADS


def stopped_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    """A load that is interrupted in its first stage; its tasks, which go on."""
    late: list[Callable[[], Any]] = []

    def interrupted(_self: LocalExecutor, _stage: str, function: Any, items: Any, _sizes: Any) -> Any:
        late.extend((lambda item=item: function(item)) for item in items)
        raise KeyboardInterrupt

    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"type":"P","data":{{"k":"{name}"}}}}\n')
    with make_graph(tmp_path / "g", "node P { k: String @key }") as graph:
        before = state_of(graph)
        with monkeypatch.context() as patch:
            patch.setattr(LocalExecutor, "map", interrupted)
            with pytest.raises(KeyboardInterrupt):
                graph.load([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], mode="append", engine="local")
        assert state_of(graph) == before
    assert late
    return late


def files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "g" / "nodes").rglob("data/*.lance") if path.is_file()]


def test_a_task_that_begins_after_the_end_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = stopped_load(tmp_path, monkeypatch)
    before = files(tmp_path)
    for task in late:
        with pytest.raises((Cancelled, FileNotFoundError)):
            task()
    assert list((tmp_path / "g" / LOADS).iterdir()) == []
    assert files(tmp_path) == before


@pytest.mark.parametrize("ends", ["before", "after"])
def test_a_task_whose_load_ends_around_its_entry_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    late = stopped_load(tmp_path, monkeypatch)
    before = files(tmp_path)
    loads = tmp_path / "g" / LOADS
    write_entry = resume.write_entry

    def entry(adapter: Any, load_id: str, *rest: Any) -> None:
        if ends == "before":
            (loads / f"{load_id}.json").unlink()
        write_entry(adapter, load_id, *rest)
        if ends == "after":
            (loads / f"{load_id}.json").unlink()

    monkeypatch.setattr(resume, "write_entry", entry)
    for task in late:
        load_id = task.__defaults__[0].plan.operation_id
        (loads / load_id / "facts").mkdir(parents=True, exist_ok=True)
        (loads / f"{load_id}.json").write_text("{}")
        with pytest.raises(Cancelled):
            task()
        assert list(loads.iterdir()) == []
    assert files(tmp_path) == before
