"""`_graph_commit_recoveries.lance`: one row per settled operation, saying what became of it."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import orjson
import pyarrow as pa

from omnigraph.core.errors import RowLevelCasContention
from omnigraph.core.ids import CommitId, OperationId, TableKey
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import PUBLISHER_RETRY_BUDGET
from omnigraph.manifest.commit_record import corrupt_row
from omnigraph.manifest.dataset import ControlDataset
from omnigraph.storage.durability import DurabilityMode
from omnigraph.storage.layout import COMMIT_RECOVERIES, GraphRoot
from omnigraph.storage.objects import StorageAdapter


class RecoveryKind(StrEnum):
    """What recovery did with an abandoned operation."""

    ROLLED_FORWARD = "RolledForward"
    ROLLED_BACK = "RolledBack"
    ORPHANED_BRANCH_DISCARDED = "OrphanedBranchDiscarded"


@dataclass(frozen=True, slots=True)
class TableOutcome:
    """One table of a settled operation.

    Rolled forward: from the version the writer started at to the one published. Rolled back: from the HEAD
    the writer left to the logical version whose content the table has again, so `from_version > to_version`.
    """

    table_key: TableKey
    from_version: int
    to_version: int


@dataclass(frozen=True, slots=True)
class RecoveryRecord:
    """One row of the audit."""

    graph_commit_id: CommitId
    recovery_kind: RecoveryKind
    recovery_for_actor: str | None
    operation_id: OperationId
    sidecar_writer_kind: str
    per_table_outcomes: tuple[TableOutcome, ...]
    created_at_us: int


_SCHEMA: Final = pa.schema(
    [
        pa.field("graph_commit_id", pa.string(), nullable=False),
        pa.field("recovery_kind", pa.string(), nullable=False),
        pa.field("recovery_for_actor", pa.string()),
        pa.field("operation_id", pa.string(), nullable=False),
        pa.field("sidecar_writer_kind", pa.string(), nullable=False),
        pa.field("per_table_outcomes_json", pa.string(), nullable=False),
        pa.field("created_at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)


class RecoveryLog:
    """The audit of a graph. The dataset is made when the first operation is settled.

    Rows are few (one per crash), so the log is written as one compare-and-swap of its whole content: two
    recoveries of one operation can never both leave a row.
    """

    def __init__(self, root: GraphRoot, adapter: StorageAdapter, durability: DurabilityMode) -> None:
        self._dataset = ControlDataset(root, COMMIT_RECOVERIES, adapter, durability)

    def list(self) -> tuple[RecoveryRecord, ...]:
        """Every recovery, in the order they were recorded. Cost: one existence probe when there is none."""
        if not self._dataset.exists():
            return ()
        return _records(self._dataset.read(self._dataset.open_head(None)))

    def find(self, operation_id: OperationId) -> RecoveryRecord | None:
        """The row of an operation, durable, or None."""
        found = next((each for each in self.list() if each.operation_id == operation_id), None)
        if found is not None:
            self._make_found_durable(self._dataset.open_head(None).version)
        return found

    def append_once(self, record: RecoveryRecord) -> RecoveryRecord:
        """Record the operation durably, unless it is recorded already; returns the row that stands."""
        for _ in range(PUBLISHER_RETRY_BUDGET):
            handle = (
                self._dataset.open_head(None) if self._dataset.exists() else self._dataset.create(_SCHEMA)
            )
            rows = self._dataset.read(handle)
            known = [each for each in _records(rows) if each.operation_id == record.operation_id]
            if known:
                self._make_found_durable(handle.version)
                return known[0]
            written = self._dataset.write_rows(
                handle, None, pa.concat_tables([rows, _row(record)]), replacing=True
            )
            self._dataset.sync(*written.names)
            if self._dataset.commit_overwrite(handle, None, _SCHEMA, written) is not None:
                return record
        raise RowLevelCasContention(attempts=PUBLISHER_RETRY_BUDGET)

    def _make_found_durable(self, version: int) -> None:
        """Sync the row: whoever wrote it may have died before that, and it is why the sidecar is deleted."""
        self._dataset.sync_found(self._dataset.version_file(None, version))


def _row(record: RecoveryRecord) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "graph_commit_id": record.graph_commit_id,
                "recovery_kind": record.recovery_kind.value,
                "recovery_for_actor": record.recovery_for_actor,
                "operation_id": record.operation_id,
                "sidecar_writer_kind": record.sidecar_writer_kind,
                "per_table_outcomes_json": _outcomes_text(record.per_table_outcomes),
                "created_at": record.created_at_us,
            }
        ],
        schema=_SCHEMA,
    )


def _outcomes_text(outcomes: Sequence[TableOutcome]) -> str:
    return orjson.dumps(
        [
            {"table_key": each.table_key, "from_version": each.from_version, "to_version": each.to_version}
            for each in outcomes
        ]
    ).decode()


def _records(rows: pa.Table) -> tuple[RecoveryRecord, ...]:
    columns = rows.set_column(
        rows.schema.get_field_index("created_at"), "created_at", rows["created_at"].cast(pa.int64())
    )
    return tuple(_record(row) for row in columns.to_pylist())


def _record(row: dict[str, Any]) -> RecoveryRecord:
    name = f"{COMMIT_RECOVERIES} {row['operation_id']}"
    try:
        outcomes = tuple(
            TableOutcome(TableKey(each["table_key"]), int(each["from_version"]), int(each["to_version"]))
            for each in orjson.loads(row["per_table_outcomes_json"])
        )
        kind = RecoveryKind(row["recovery_kind"])
    except (ValueError, TypeError, KeyError) as error:
        raise corrupt_row(name, "it is not a recovery this program knows") from error
    return RecoveryRecord(
        graph_commit_id=CommitId(row["graph_commit_id"]),
        recovery_kind=kind,
        recovery_for_actor=row["recovery_for_actor"],
        operation_id=OperationId(row["operation_id"]),
        sidecar_writer_kind=row["sidecar_writer_kind"],
        per_table_outcomes=outcomes,
        created_at_us=row["created_at"],
    )
