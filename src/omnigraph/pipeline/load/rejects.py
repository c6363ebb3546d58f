"""Refused records set aside as JSON lines, each with the reasons why."""

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from omnigraph.catalog.schema import Catalog
from omnigraph.core.errors import BadRequest, IoFailure
from omnigraph.core.ids import new_ulid
from omnigraph.core.load_options import SourceFormat
from omnigraph.engine.entities.lines import object_lines
from omnigraph.pipeline.input.columns import meant_columns, without_marks
from omnigraph.pipeline.input.csv_records import read_csv
from omnigraph.pipeline.input.record_rules import RecordRefused, decode
from omnigraph.pipeline.input.sources import read_chunks, read_tables
from omnigraph.pipeline.input.utf8 import showable
from omnigraph.pipeline.load.journal import Journal
from omnigraph.pipeline.load.locate import Places
from omnigraph.pipeline.plan import Split
from omnigraph.pipeline.problems import Fault, Problem, ProblemLog, line_of, order_of, split_of

REJECTS_NAME = "rejects.jsonl"


class RejectsFile:
    """The file of one load for what it refuses. It never takes the place of the file of another load."""

    def __init__(self, directory: Path, journal: Journal) -> None:
        self.path = directory / REJECTS_NAME
        self.own = journal.has_rejects()
        """Whether the file there is this load's: a load that tries again, or goes on, may replace it."""
        self._journal = journal

    def refuse_if_taken(self) -> None:
        """Raise BadRequest when the file of another load is there, or no directory can be."""
        if not self.own and os.path.lexists(self.path):
            raise _taken(self.path)
        directory = self.path.parent
        nearest = next(each for each in (directory, *directory.absolute().parents) if os.path.lexists(each))
        if not nearest.is_dir():
            raise BadRequest(
                f"the refused records cannot go to '{directory}': '{nearest}' is not a directory",
                hint="name a new directory",
            )
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise IoFailure(f"'{nearest}' cannot be written: {os.strerror(errno.EACCES)}")

    def write(
        self,
        places: Places,
        refused: NDArray[np.int64],
        reasons: "Reasons",
        catalog: Catalog,
    ) -> None:
        """Write one line per refused record: file, line, reasons and the record itself.

        The file appears complete or not at all. Cost: the affected splits are read once more.
        """
        part = self.path.with_name(f".{REJECTS_NAME}-{new_ulid()}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as out:
                _write_records(out, places, refused, reasons, catalog)
            if not self.own:
                # Another load may have begun with the same directory: only one of the two makes the file.
                self.path.open("xb").close()
                self.own = True
            part.replace(self.path)
            self._journal.note_rejects()
        except FileExistsError as error:
            raise _taken(self.path) from error
        except OSError as error:
            raise IoFailure(f"'{self.path}' cannot be written: {error.strerror or error}") from error
        finally:
            part.unlink(missing_ok=True)

    def remove(self) -> None:
        """Take the file back: nothing of its load was committed, so nothing was refused either."""
        if self.own:
            self.path.unlink(missing_ok=True)
            self.own = False


def _taken(path: Path) -> BadRequest:
    return BadRequest(
        f"'{path}' holds the refused records of another load", hint="name a new directory, or move the file"
    )


def _write_records(
    out: BinaryIO,
    places: Places,
    refused: NDArray[np.int64],
    reasons: "Reasons",
    catalog: Catalog,
) -> None:
    affected = {split_of(int(order)) for order in refused}
    for split in places.splits:
        if split.number not in affected:
            continue
        base = order_of(split.number, 0)
        wanted = {line_of(int(order)) for order in refused if split_of(int(order)) == split.number}
        for line, record in _records(split, wanted, catalog):
            entry: dict[str, Any] = {"file": split.name, "line": places.line(base + line)}
            if split.format is not SourceFormat.JSON_LINES:
                entry["type"] = split.type_name or ""
            entry["reasons"] = reasons.of(base + line)
            out.write(orjson.dumps(entry)[:-1] + b',"record":' + record + b"}\n")


class Reasons:
    """Why each record was refused: the problem that names it, or the rule it takes part in breaking."""

    def __init__(self, log: ProblemLog, faults: Iterable[Fault], places: Places) -> None:
        self._places = places
        self._problems: dict[int, list[Problem]] = {}
        for problem in log.listed():
            self._problems.setdefault(problem.order, []).append(problem)
        self._rules: dict[int, dict[tuple[str, str], int]] = {}
        for fault in faults:
            partners = np.full(len(fault.orders), -1) if fault.partners is None else fault.partners
            for order, partner in zip(fault.orders.tolist(), partners.tolist(), strict=True):
                self._rules.setdefault(order, {}).setdefault((fault.kind, fault.type_name), partner)

    def of(self, order: int) -> list[dict[str, Any]]:
        """The reasons of one record, as JSON members."""
        described = [_reason(problem) for problem in self._problems.get(order, ())]
        for (kind, type_name), partner in sorted(self._rules.get(order, {}).items()):
            same = [reason for reason in described if reason["kind"] == kind]
            if not same:
                same = [{"kind": kind, "message": f"{type_name}: takes part in breaking '{kind}'"}]
                described += same
            if partner >= 0:
                same[0]["partner"] = f"{self._places.file(partner)}:{self._places.line(partner)}"
        return described or [{"kind": "format", "message": "the record is malformed"}]


def _reason(problem: Problem) -> dict[str, Any]:
    members = problem.to_dict()
    return {name: members[name] for name in ("kind", "message", "property", "entity_id") if name in members}


def _records(split: Split, wanted: set[int], catalog: Catalog) -> Iterator[tuple[int, bytes]]:
    """Each wanted record with its line, as JSON."""
    if split.format is SourceFormat.JSON_LINES:
        yield from _json_records(split, wanted)
        return
    if split.format is SourceFormat.CSV:
        yield from _csv_records(split, wanted, catalog)
        return
    passed = 0
    for table in read_tables(split):
        rows = [line - passed for line in sorted(wanted) if passed <= line < passed + table.num_rows]
        if rows:
            chosen = without_marks(_meant(table.take(rows), split, catalog))
            texts = object_lines(showable(chosen)).splitlines()
            yield from zip((passed + row for row in rows), texts, strict=True)
        passed += table.num_rows


def _meant(table: pa.Table, split: Split, catalog: Catalog) -> pa.Table:
    """Columns as the load took them, so that the file is an input without its options."""
    name = split.type_name or ""
    table_type = catalog.node(name) or catalog.edge(name)
    return (
        table if table_type is None else meant_columns(table, split.columns, table_type, marked=split.marked)
    )


def _csv_records(split: Split, wanted: set[int], catalog: Catalog) -> Iterator[tuple[int, bytes]]:
    """A record by its columns; one that has none, as text."""
    asked = np.array(sorted(wanted), np.int64)
    for piece in read_csv(split):
        rows = np.flatnonzero(np.isin(piece.lines, asked))
        chosen = _meant(piece.table.take(rows), split, catalog)
        texts = object_lines(showable(chosen)).splitlines() if len(rows) else []
        found = dict(zip(piece.lines[rows].tolist(), texts, strict=True))
        for each in piece.refused:
            found[each.line] = orjson.dumps(each.text.decode("utf-8", "replace"))
        yield from sorted(found.items())


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
