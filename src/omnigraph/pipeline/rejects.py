"""Refused records set aside as JSON lines, each with the reasons why."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from omnigraph.engine.lines import object_lines
from omnigraph.pipeline.columns import without_marks
from omnigraph.pipeline.exact import RecordRefused, decode
from omnigraph.pipeline.plan import SourceFormat, Split
from omnigraph.pipeline.problems import Fault, Problem, ProblemLog, line_of, order_of, split_of
from omnigraph.pipeline.sources import read_chunks, read_tables
from omnigraph.pipeline.texts import showable

REJECTS_NAME = "rejects.jsonl"


def write_rejects(
    directory: Path,
    splits: Sequence[Split],
    refused: NDArray[np.int64],
    reasons: "Reasons",
    first_line: Mapping[int, int],
) -> Path:
    """Write one line per refused record: file, line, reasons and the record itself.

    The file appears complete or not at all. Cost: the affected splits are read once more.
    """
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / REJECTS_NAME
    part = target.with_suffix(".part")
    affected = {split_of(int(order)) for order in refused}
    with part.open("wb") as out:
        for split in splits:
            if split.number not in affected:
                continue
            base = order_of(split.number, 0)
            wanted = {line_of(int(order)) for order in refused if split_of(int(order)) == split.number}
            for line, record in _records(split, wanted):
                entry = {
                    "file": split.name,
                    "line": first_line[split.number] + line + 1,
                    "reasons": reasons.of(base + line),
                }
                out.write(orjson.dumps(entry)[:-1] + b',"record":' + record + b"}\n")
    part.replace(target)
    return target


class Reasons:
    """Why each record was refused: the problem that names it, or the rule it takes part in breaking."""

    def __init__(self, log: ProblemLog, faults: Iterable[Fault]) -> None:
        self._problems: dict[int, list[Problem]] = {}
        for problem in log.listed():
            self._problems.setdefault(problem.order, []).append(problem)
        self._rules: dict[int, set[tuple[str, str]]] = {}
        for fault in faults:
            for order in fault.orders.tolist():
                self._rules.setdefault(order, set()).add((fault.kind, fault.type_name))

    def of(self, order: int) -> list[dict[str, Any]]:
        """The reasons of one record, as JSON members."""
        described = [_reason(problem) for problem in self._problems.get(order, ())]
        named = {reason["kind"] for reason in described}
        for kind, type_name in sorted(self._rules.get(order, ())):
            if kind not in named:
                described.append({"kind": kind, "message": f"{type_name}: takes part in breaking '{kind}'"})
        return described or [{"kind": "format", "message": "the record is malformed"}]


def _reason(problem: Problem) -> dict[str, Any]:
    members = problem.to_dict()
    return {name: members[name] for name in ("kind", "message", "property", "entity_id") if name in members}


def _records(split: Split, wanted: set[int]) -> Iterator[tuple[int, bytes]]:
    """Each wanted record with its line, as JSON."""
    if split.format is SourceFormat.JSON_LINES:
        yield from _json_records(split, wanted)
        return
    passed = 0
    for table in read_tables(split):
        rows = [line - passed for line in sorted(wanted) if passed <= line < passed + table.num_rows]
        if rows:
            texts = object_lines(showable(without_marks(table.take(rows)))).splitlines()
            yield from zip((passed + row for row in rows), texts, strict=True)
        passed += table.num_rows


def _json_records(split: Split, wanted: set[int]) -> Iterator[tuple[int, bytes]]:
    """A record as it was written; one that is not JSON, or says a member twice, as text."""
    passed = 0
    for chunk in read_chunks(split):
        lines = chunk.split(b"\n")
        if chunk.endswith(b"\n"):
            lines.pop()
        for at in sorted(line - passed for line in wanted if passed <= line < passed + len(lines)):
            line = lines[at].strip()
            try:
                decode(line)
            except RecordRefused:
                line = orjson.dumps(line.decode("utf-8", "replace"))
            yield passed + at, line
        passed += len(lines)
