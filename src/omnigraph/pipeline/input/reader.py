"""One split as records in stored types, whatever the format of its file."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from omnigraph.catalog.schema import Catalog
from omnigraph.core.errors import BadRequest, LoadFormatError
from omnigraph.core.load_options import SourceFormat
from omnigraph.pipeline.input.columns import ColumnReader, type_named
from omnigraph.pipeline.input.csv_records import Piece, read_csv
from omnigraph.pipeline.input.records import ChunkParser, ParsedRows
from omnigraph.pipeline.input.sources import read_chunks, read_tables
from omnigraph.pipeline.plan import Split
from omnigraph.pipeline.problems import ProblemLog, order_of


@dataclass(slots=True)
class SplitReader:
    """Reads one split once, in pieces. The counts are final when the iterator is drained."""

    catalog: Catalog
    split: Split
    presence: bool
    embeds: bool = False
    """Whether vectors that were not mentioned are made."""
    lines: int = 0
    records: int = 0
    bytes: int = 0
    refused: list[int] = field(default_factory=list[int])
    refused_of: dict[str, int] = field(default_factory=dict[str, int])
    """How many of the refused records named a type that is known, per table."""

    def parsed(self, log: ProblemLog) -> Iterator[list[ParsedRows]]:
        """The records of the split, grouped by type, piece by piece; what is wrong goes to `log`."""
        if self.split.format is SourceFormat.JSON_LINES:
            yield from self._json_lines(log)
        else:
            yield from self._columns(log)

    def _json_lines(self, log: ProblemLog) -> Iterator[list[ParsedRows]]:
        parser = ChunkParser(self.catalog, order_of(self.split.number, 0), self.presence, log, self.embeds)
        for chunk in read_chunks(self.split):
            parsed, lines, records = parser.parse(chunk, self.lines)
            self.lines += lines
            self.records += records
            self.bytes += len(chunk)
            yield parsed
        self.refused, self.refused_of = parser.refused, parser.refused_of

    def _columns(self, log: ProblemLog) -> Iterator[list[ParsedRows]]:
        reader = ColumnReader(
            self.catalog,
            self.split.type_name or "",
            order_of(self.split.number, 0),
            log,
            cells_are_text=self.split.format is SourceFormat.CSV,
            form=self.split.columns,
            marked=self.split.marked,
        )
        for piece in self._pieces():
            for record in piece.refused:
                reader.refuse(record)
            try:
                rows = reader.parse(piece.table, piece.lines)
            except BadRequest as error:
                raise BadRequest(f"{self.split.name}: {error.message}", hint=error.hint) from error
            except LoadFormatError as error:
                raise LoadFormatError(
                    line=error.line, file=self.split.name, message=error.reason, hint=error.hint
                ) from error
            self.records += piece.table.num_rows + len(piece.refused)
            self.bytes += piece.bytes
            yield [rows] if rows.rows else []
        self.refused = reader.refused
        if reader.refused:
            self.refused_of[type_named(self.catalog, reader.type_name).table_key] = len(reader.refused)

    def _pieces(self) -> Iterator[Piece]:
        """CSV by the lines of its file; a Parquet file has none, so its rows are numbered."""
        if self.split.format is SourceFormat.CSV:
            yield from read_csv(self.split)
            return
        for table in read_tables(self.split):
            lines = np.arange(self.lines, self.lines + table.num_rows, dtype=np.int64)
            self.lines += table.num_rows
            yield Piece(table, lines, bytes=int(table.nbytes))
