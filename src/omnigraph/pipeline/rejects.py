"""Refused records set aside as JSON lines, each with the reasons why."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnigraph.pipeline.plan import SourceFormat, Split
from omnigraph.pipeline.problems import Problem, line_of, order_of, split_of
from omnigraph.pipeline.sources import read_chunks, read_tables

REJECTS_NAME = "rejects.jsonl"


def write_rejects(
    directory: Path,
    splits: Sequence[Split],
    refused: NDArray[np.int64],
    reasons: Mapping[int, Sequence[Problem]],
    first_line: Mapping[int, int],
) -> Path:
    """Write one line per refused record: file, line, reasons and the record itself.

    The file appears complete or not at all. Cost: the affected splits are read once more.
    """
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / REJECTS_NAME
    part = target.with_suffix(".part")
    affected = {split_of(int(order)) for order in refused}
    with part.open("w", encoding="utf-8") as out:
        for split in splits:
            if split.number not in affected:
                continue
            base = order_of(split.number, 0)
            wanted = {line_of(int(order)) for order in refused if split_of(int(order)) == split.number}
            for line, record in _records(split, wanted):
                found = reasons.get(base + line, ())
                entry = {
                    "file": split.name,
                    "line": first_line[split.number] + line + 1,
                    "reasons": [_reason(problem) for problem in found],
                    "record": record,
                }
                out.write(json.dumps(entry, ensure_ascii=False, default=str) + "\n")
    part.replace(target)
    return target


def _reason(problem: Problem) -> dict[str, Any]:
    members = problem.to_dict()
    return {name: members[name] for name in ("kind", "message", "property", "entity_id") if name in members}


def _records(split: Split, wanted: set[int]) -> Iterator[tuple[int, Any]]:
    if split.format is SourceFormat.JSON_LINES:
        yield from _json_records(split, wanted)
        return
    passed = 0
    for table in read_tables(split):
        rows = [line - passed for line in sorted(wanted) if passed <= line < passed + table.num_rows]
        if rows:
            for row, record in zip(rows, table.take(rows).to_pylist(), strict=True):
                yield passed + row, record
        passed += table.num_rows


def _json_records(split: Split, wanted: set[int]) -> Iterator[tuple[int, Any]]:
    passed = 0
    for chunk in read_chunks(split):
        lines = chunk.split(b"\n")
        if chunk.endswith(b"\n"):
            lines.pop()
        for at in sorted(line - passed for line in wanted if passed <= line < passed + len(lines)):
            text = lines[at].decode("utf-8", "replace").strip()
            try:
                record = json.loads(text)
            except ValueError:
                record = text
            yield passed + at, record
        passed += len(lines)
