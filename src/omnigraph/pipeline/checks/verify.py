"""Drive the checks over the whole input: read the committed keys they need, run both passes, add up."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import TableKey
from omnigraph.pipeline.checks.committed import ScanTask, TableNeed, needs, scan_committed
from omnigraph.pipeline.checks.exchange import FactFiles, merged
from omnigraph.pipeline.checks.passes import Checked, CheckTask, Orders, check_ids, check_references
from omnigraph.pipeline.checks.probe import KeyIndexes, probe_committed
from omnigraph.pipeline.plan import LoadPlan
from omnigraph.pipeline.problems import Fault, ProblemLog
from omnigraph.pipeline.spark.executors import Executor
from omnigraph.storage.fragments import open_pinned, open_tables

Number = TypeVar("Number", np.int64, np.uint64)

_NO_ORDERS: Final[Orders] = np.empty(0, np.int64)

SCAN_ROWS: Final = 2_000_000
"""Committed rows one task reads."""
SCAN_ROWS_IN_PROCESS_MAX: Final = 200_000
"""Up to this many committed rows the driver reads the keys itself: a task would cost more than the scan."""

PARTITIONS_IN_PROCESS_MAX: Final = 16
"""Up to this many partitions are compared by threads of the driver when it shares its machine with the tasks:
a job and its tasks would cost more than the comparison. Memory is that of a few partitions either way."""


@dataclass(slots=True)
class Verified:
    """What the checks found, over all partitions."""

    log: ProblemLog
    faults: list[Fault]
    superseded: dict[str, Orders]
    replaced: dict[str, NDArray[np.uint64]]
    replaced_orders: dict[str, Orders]
    tables_read: frozenset[str]
    unblamed: int
    """Violations that no record of the input causes."""


def scan_tasks(plan: LoadPlan, wanted: Mapping[str, TableNeed]) -> list[ScanTask]:
    """Cut the committed tables into groups of fragments."""
    store = open_tables(plan.root, plan.settings, plan.operation_id)
    tasks: list[ScanTask] = []
    for key in sorted(wanted):
        target = plan.target(plan.catalog.type_of(key))
        if target.rows == 0:
            continue
        handle = open_pinned(store, target.table_key, target.location, target.branch, target.version)
        group: list[int] = []
        rows = 0
        need = wanted[key]
        for fragment in store.fragments(handle):
            group.append(fragment.id)
            rows += fragment.live_rows
            if rows >= SCAN_ROWS:
                tasks.append(_scan_task(plan, key, group, need))
                group, rows = [], 0
        if group:
            tasks.append(_scan_task(plan, key, group, need))
    return tasks


def _scan_task(plan: LoadPlan, key: str, group: Sequence[int], need: TableNeed) -> ScanTask:
    return ScanTask(
        plan=plan,
        table_key=key,
        fragments=tuple(group),
        ids=need.ids,
        unique=need.unique,
        ends=tuple(sorted(need.ends)),
    )


@dataclass(slots=True)
class Verifier:
    """The checks of one prepared load against one snapshot. `refused` may grow between runs (rejects)."""

    plan: LoadPlan
    executor: Executor
    small: Executor
    """Runs what is too small for tasks of its own, in this process."""
    touched: tuple[str, ...]
    input_facts: FactFiles
    given_ids: Mapping[str, int]
    records: int
    """Records of the whole input."""
    indexes: KeyIndexes
    _committed: FactFiles | None = None
    _read: frozenset[str] = frozenset()

    def run(self, refused: Orders) -> Verified:
        """Both passes over every partition, with the refused records left out."""
        if self._committed is None:
            wanted = needs(self.plan, self.touched, self.given_ids)
            self._read = frozenset(wanted)
            probed, wanted = probe_committed(self.plan, wanted, self.input_facts, self.records, self.indexes)
            tasks = scan_tasks(self.plan, wanted)
            rows = sum(self.plan.targets[TableKey(key)].rows for key in wanted)
            executor = self.small if rows <= SCAN_ROWS_IN_PROCESS_MAX else self.executor
            self._committed = merged([probed, *executor.map("read committed keys", scan_committed, tasks)])
        files = merged([self.input_facts, self._committed])
        first = self._pass("check ids", check_ids, files, refused, _NO_ORDERS)
        failpoint(Window.LOAD_BETWEEN_CHECKS)
        handed_on = merged([files, *(each.facts for each in first)])
        void = np.concatenate(
            [_NO_ORDERS, *(orders for each in first for orders in each.superseded.values())]
        )
        second = self._pass("check references", check_references, handed_on, refused, void)
        return self._added_up(first, second)

    def _pass(
        self,
        stage: str,
        function: Callable[[CheckTask], Checked],
        files: FactFiles,
        refused: Orders,
        void: Orders,
    ) -> list[Checked]:
        tasks = [
            CheckTask(self.plan, files, partition, self.touched, refused, void)
            for partition in range(self.plan.partitions)
        ]
        beside = len(tasks) <= PARTITIONS_IN_PROCESS_MAX and self.executor.shares_files
        executor = self.small if len(tasks) == 1 or beside else self.executor
        return executor.map(stage, function, tasks)

    def _added_up(self, first: Sequence[Checked], second: Sequence[Checked]) -> Verified:
        log = ProblemLog(kept_max=self.plan.problems_kept)
        for each in (*first, *second):
            log.merge(each.log)
        return Verified(
            log=log,
            faults=[fault for each in (*first, *second) for fault in each.faults],
            superseded=_joined([each.superseded for each in first]),
            replaced=_joined([each.replaced for each in first]),
            replaced_orders=_joined([each.replaced_orders for each in first]),
            tables_read=self._read,
            unblamed=sum(each.unblamed for each in second),
        )


def _joined(parts: "Sequence[Mapping[str, NDArray[Number]]]") -> "dict[str, NDArray[Number]]":
    whole: dict[str, list[NDArray[Number]]] = {}
    for part in parts:
        for key, values in part.items():
            whole.setdefault(key, []).append(values)
    return {key: np.concatenate(values) for key, values in whole.items()}
