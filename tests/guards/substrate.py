"""Short words for building small Lance datasets in guards."""

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance import LanceDataset, LanceOperation
from lance.dataset import Transaction
from lance.fragment import write_fragments

SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("n", pa.int64())])


def rows(ids: list[str], n: int = 0) -> pa.Table:
    return pa.table({"id": ids, "n": [n] * len(ids)}, schema=SCHEMA)


def dataset(place: Path, ids: list[str] | None = None, schema: pa.Schema = SCHEMA) -> LanceDataset:
    """A dataset of the product's kind: zero fragments at version 1, then one per call of `append`."""
    made = LanceDataset.commit(str(place / "table"), LanceOperation.Overwrite(schema, []))
    return append(made, rows(ids)) if ids else made


def append(base: LanceDataset, data: pa.Table) -> LanceDataset:
    return LanceDataset.commit(base, write_fragments(data, base, return_transaction=True), max_retries=0)


def commit(base: LanceDataset, operation: Any, **properties: str) -> LanceDataset:
    transaction = Transaction(base.version, operation, transaction_properties=properties)
    return LanceDataset.commit(base, transaction, max_retries=0)


def head(base: LanceDataset) -> LanceDataset:
    """The newest version, opened anew."""
    return lance.dataset(base.uri)


def ids_of(base: LanceDataset) -> list[str]:
    return sorted(base.to_table(columns=["id"])["id"].to_pylist())


def numbers(base: LanceDataset) -> list[int]:
    return [fragment.fragment_id for fragment in base.get_fragments()]


def hide(base: LanceDataset, fragment: int, offsets: list[int]) -> Any:
    return base.get_fragment(fragment).delete_rows(offsets)
