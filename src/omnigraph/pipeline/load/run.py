"""One load from its first stage to its report: stage, verify, then commit once.

Tasks write fragments nobody points at and the key columns of what they wrote. Checks over the whole input
read key columns only. Nothing is visible, and no queue, lease or reference is held, until the driver enters
Phase A with everything proven. A load that dies earlier leaves unreferenced files.
"""

import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from omnigraph.catalog.ir import schema_hash
from omnigraph.catalog.schema import Catalog, EdgeType, NodeType, TableType
from omnigraph.core.cancel import NEVER, Cancellation
from omnigraph.core.clock import boot_id
from omnigraph.core.errors import (
    BlobSourceError,
    Cancelled,
    EnvironmentFault,
    ExpectedVersionMismatch,
    InternalError,
    OmnigraphError,
    PreconditionFailed,
    ReadSetConflict,
)
from omnigraph.core.events import Event, Published, listen
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import CommitId, OperationId, TableKey, new_ulid, show_branch
from omnigraph.core.limits import MIB, REPREPARE_ATTEMPTS_MAX
from omnigraph.core.load_options import LoadMode, LoadOptions
from omnigraph.engine.session import GraphSession
from omnigraph.engine.write.commit import finalize
from omnigraph.engine.write.gathered import MutationOpKind, MutationStaging, PendingMode
from omnigraph.engine.write.ground import ReadSetMoved
from omnigraph.engine.write.parts import WriteIntent
from omnigraph.manifest.commit_record import CommitRecord, RequestKey
from omnigraph.manifest.state import Snapshot
from omnigraph.pipeline.checks.exchange import IN_STORE, merged
from omnigraph.pipeline.checks.probe import KeyIndexes
from omnigraph.pipeline.checks.verify import Verified, Verifier
from omnigraph.pipeline.input.columns import type_to_replace
from omnigraph.pipeline.input.sources import text_bytes
from omnigraph.pipeline.load.answers import answer, counted
from omnigraph.pipeline.load.journal import (
    InputFile,
    Journal,
    LoadRecord,
    check_graph,
    own_files,
    stage_journaled,
)
from omnigraph.pipeline.load.locate import Places
from omnigraph.pipeline.load.rejects import Reasons, RejectsFile
from omnigraph.pipeline.load.stage_split import (
    SplitResult,
    StageTask,
    prove_nothing_lost,
    sizes_of,
    stage_split,
)
from omnigraph.pipeline.load.table_writers import table_writers
from omnigraph.pipeline.load.target import TargetBranch
from omnigraph.pipeline.load.vectors import load_embedder
from omnigraph.pipeline.plan import LoadPlan, Split, TableTarget
from omnigraph.pipeline.problems import (
    LINE_BITS,
    PROBLEMS_KEPT_PER_KIND_MAX,
    Fault,
    ProblemLog,
)
from omnigraph.pipeline.report import LoadReport, TypeCount, refusal
from omnigraph.pipeline.spark.executors import Executor, LocalExecutor
from omnigraph.recovery.outcome import WriteCourse
from omnigraph.recovery.sidecar import WriterKind
from omnigraph.storage.fragments import remove_fragments
from omnigraph.storage.handles import Fragment
from omnigraph.storage.layout import LOADS
from omnigraph.storage.memory import give_back

PARTITION_BYTES: Final = 64 * MIB
"""Bytes of input, as text, whose key columns one check task compares."""
PARTITION_ROWS: Final = 4_000_000
"""Committed rows that one partition may hold."""
PROBED_BYTES_MAX: Final = 1 * MIB
"""A larger input may hold too many keys to ask for them by name."""
REASONS_KEPT_MAX: Final = 100_000
"""With rejects, this many problems of one kind are described in full; beyond, the rule is named."""

Orders = NDArray[np.int64]
_NO_ORDERS: Final[Orders] = np.empty(0, np.int64)


@dataclass(slots=True)
class _Staged:
    """Everything the tasks wrote, against one plan."""

    plan: LoadPlan
    results: list[SplitResult]
    skip: Orders = field(default_factory=lambda: _NO_ORDERS)
    """Orders that were left out of the staged rows."""

    @property
    def touched(self) -> tuple[str, ...]:
        keys = {key for result in self.results for key in result.read}
        return tuple(sorted(keys | self.plan.replaced_types))

    @property
    def records(self) -> int:
        return sum(result.records for result in self.results)

    def total(self, name: str, key: str) -> int:
        return sum(getattr(result, name).get(key, 0) for result in self.results)

    def never_staged(self) -> Orders:
        """Records that a task refused or found at fault: no fragment holds them."""
        parts = [orders for result in self.results for orders in (result.refused, result.at_fault)]
        return np.unique(np.concatenate([_NO_ORDERS, *parts]))

    def fragments(self) -> Iterator[Fragment]:
        return (fragment for result in self.results for fragment in result.staged())


class Load:
    """One load. `workspace` is a directory that every task sees; None when there is none."""

    def __init__(
        self,
        session: GraphSession,
        options: LoadOptions,
        executor: Executor,
        workspace: Path | None,
        load_id: OperationId,
        *,
        course: WriteCourse,
        earlier: LoadRecord | None = None,
        cancel: Cancellation = NEVER,
        request: RequestKey | None = None,
        model: str | None = None,
    ) -> None:
        self.session = session
        self.options = options
        self.mode = options.chosen_mode()
        self.cancel = cancel
        self.request = request
        self.model = model
        self.executor = executor
        self.local = LocalExecutor("load")
        self.workspace = workspace
        self.operation_id = load_id
        self.journal = Journal(session.root, load_id)
        self.commit_id = CommitId(new_ulid() if earlier is None else earlier.commit_id)
        self.rejects = None if options.rejects is None else RejectsFile(options.rejects, self.journal)
        self.resumable = False
        """After a failure: whether what was staged is kept for another run."""
        self._earlier = earlier
        self._reused = 0
        self.seconds: dict[str, float] = {}
        self.splits: list[Split] = []
        self.log = ProblemLog()
        self.refused = _NO_ORDERS
        self.faults: list[Fault] = []
        self.course = course
        self.target = TargetBranch(session, options.branch, options.base)
        self._entered_commit = False

    def run(self, splits: list[Split]) -> LoadReport:
        """Load the splits as one commit, or change nothing."""
        self.splits = splits
        staged: _Staged | None = None
        moved: ReadSetMoved | None = None
        try:
            with own_files(self.session.root, self.operation_id):
                for _attempt in range(REPREPARE_ATTEMPTS_MAX):
                    snapshot = self.target.snapshot()
                    if (told := answer(self.session, snapshot, self.options, self.request)) is not None:
                        self._clean_up(staged)
                        return told
                    if staged is not None and self._still_fits(staged, snapshot):
                        # The facts on disk are cut into as many partitions as before.
                        plan = self._plan(snapshot)
                        staged.plan = replace(plan, partitions=staged.plan.partitions)
                    else:
                        self._clean_up(staged)
                        staged = self._stage(snapshot)
                    try:
                        return self._verify_and_commit(staged, snapshot)
                    except ReadSetMoved as lost:
                        moved = lost
        except BaseException as error:
            if self._entered_commit and self._had_no_effect(error):
                self._entered_commit = False
            self._keep_or_clean_up(staged, error)
            if not self._entered_commit:
                self.target.take_back()
            raise
        if moved is None:
            raise InternalError("a load ended without an outcome")
        self._clean_up(staged)
        self.target.take_back()
        raise moved.given_up(REPREPARE_ATTEMPTS_MAX)

    def _had_no_effect(self, error: BaseException) -> bool:
        """Whether the commit gave up before Phase A, or says so and no intent of it is pending."""
        if not self.course.begun:
            return True
        if not isinstance(error, (Cancelled, ExpectedVersionMismatch, PreconditionFailed, ReadSetConflict)):
            return False
        return all(self.operation_id not in name for name in self.session.sidecars.list())

    def _keep_or_clean_up(self, staged: _Staged | None, error: BaseException) -> None:
        """Keep what is staged when only the surroundings failed; any other failure leaves nothing."""
        if self._entered_commit:
            return
        if self._earlier is not None:
            self.resumable = True  # whether its files belong to a commit by now is not even known
        elif isinstance(error, (EnvironmentFault, InternalError, OSError)) and self.journal.entries():
            self.resumable = True
            if isinstance(error, OmnigraphError):
                error.details.setdefault("load_id", self.operation_id)
                error.hint = error.hint or f"`--resume {self.operation_id}` goes on from what is staged"
        else:
            self._clean_up(staged)

    def _clean_up(self, staged: _Staged | None) -> None:
        """Delete the staged files of a load that never reached its commit; later only recovery decides."""
        if self._entered_commit or self._earlier is not None:
            return
        if self.rejects is not None:
            self.rejects.remove()
        if staged is not None:
            remove_fragments(self.session.root, staged.fragments())
        for result, _ in self.journal.entries().values():
            remove_fragments(self.session.root, result.staged())

    # --- stage ---

    def _plan(self, snapshot: Snapshot) -> LoadPlan:
        session = self.session
        catalog = session.catalog_of(snapshot)
        targets = {
            key: TableTarget(key, entry.location, entry.branch, entry.version, entry.row_count)
            for key, entry in snapshot.entries.items()
        }
        partitions = self._partitions(catalog, targets)
        replaced = frozenset(type_to_replace(catalog, name).table_key for name in self.options.replace_types)
        return LoadPlan(
            root=session.root,
            settings=session.settings,
            catalog=catalog,
            mode=self.mode,
            operation_id=self.operation_id,
            targets=targets,
            exchange=self._exchange(),
            partitions=partitions,
            replaced_types=replaced,
            on_duplicate=self.options.on_duplicate,
            problems_kept=PROBLEMS_KEPT_PER_KIND_MAX if self.options.rejects is None else REASONS_KEPT_MAX,
            embedder=load_embedder(session, catalog, self.executor, self.model),
        )

    def _exchange(self) -> str:
        """Where tasks hand facts to each other."""
        if self.workspace is None:
            return f"{IN_STORE}{LOADS}/{self.operation_id}/facts"
        place = self.workspace / "facts"
        place.mkdir(exist_ok=True)  # by the driver alone: see `FactWriter.flush`
        return str(place)

    def _partitions(self, catalog: Catalog, targets: Mapping[TableKey, TableTarget]) -> int:
        """Enough partitions for the keys of the input and of the tables that will be scanned for it."""
        size = text_bytes(self.splits)
        scanned = [
            targets[TableKey(each.table_key)].rows
            for each in catalog.tables()
            if size > PROBED_BYTES_MAX or each.unique
        ]
        return max(1, -(-size // PARTITION_BYTES), -(-max(scanned, default=0) // PARTITION_ROWS))

    def _still_fits(self, staged: _Staged, snapshot: Snapshot) -> bool:
        """Whether the staged files lie where the tables of this snapshot look for them."""
        if self.mode is LoadMode.PATCH:
            return False  # the rows carry values of the former snapshot
        for key in staged.touched:
            before, now = staged.plan.targets[TableKey(key)], snapshot.entries.get(TableKey(key))
            if now is None or (before.location, before.branch) != (now.location, now.branch):
                return False
            if before.version != now.version and self._named_by_ends(staged.plan.catalog.type_of(key)):
                return False  # the records carry ids of edges of the former snapshot
        return staged.plan.catalog == self.session.catalog_of(snapshot)

    def _named_by_ends(self, table_type: TableType) -> bool:
        """Whether records may mean committed edges that have their ends."""
        return self.mode.upserts and isinstance(table_type, EdgeType) and table_type.identity is not None

    def _stage(self, snapshot: Snapshot) -> _Staged:
        earlier = self._earlier
        plan = self._plan(snapshot)
        done: dict[int, tuple[SplitResult, Orders]] = {}
        if earlier is None:
            self.journal.begin(self._record(plan, snapshot))
        else:
            plan = replace(plan, partitions=earlier.partitions)
            done = self.journal.entries()
            touched = {key for result, _ in done.values() for key in result.read} | plan.replaced_types
            model = None if plan.embedder is None else plan.embedder.model
            check_graph(self.session, earlier, snapshot, touched, model)
            self._earlier = None
        # A blob that was refused may be there by now: what depends on it is judged again.
        judged_again = [done.pop(number) for number in sorted(done) if done[number][0].judged_surroundings]
        self._reused = len(done)
        with self._timed("stage"):
            tasks = [StageTask(plan, split, _NO_ORDERS) for split in self.splits if split.number not in done]
            with table_writers(plan):
                fresh = self.executor.map("stage", stage_journaled, tasks, sizes_of(tasks))
        by_split = {result.split: result for result in (*fresh, *(result for result, _ in done.values()))}
        results = [by_split[split.number] for split in self.splits]
        prove_nothing_lost(results)
        for former, _ in judged_again:
            remove_fragments(self.session.root, former.staged())
        failpoint(Window.LOAD_POST_STAGE)
        left_out = np.concatenate([_NO_ORDERS, *(skip for _, skip in done.values())])
        return _Staged(plan, results, np.unique(left_out))

    def _record(self, plan: LoadPlan, snapshot: Snapshot) -> LoadRecord:
        return LoadRecord(
            id=self.operation_id,
            commit_id=self.commit_id,
            started_us=self.session.clock.now_us(),
            boot=boot_id(),
            options=self.options,
            schema=schema_hash(plan.catalog),
            head=snapshot.head,
            targets={key: (target.location, target.branch) for key, target in plan.targets.items()},
            workspace=None if self.workspace is None else str(self.workspace),
            partitions=plan.partitions,
            inputs=tuple(InputFile.of(path) for path in dict.fromkeys(split.path for split in self.splits)),
            splits=tuple(self.splits),
            digest="" if self.request is None else self.request.digest,
            model=None if plan.embedder is None else plan.embedder.model,
        )

    # --- verify ---

    def _verify_and_commit(self, staged: _Staged, snapshot: Snapshot) -> LoadReport:
        self.cancel.raise_if_requested()
        with self._timed("verify"):
            verified = self._verified(staged, KeyIndexes(self.session, snapshot))
        self._set_aside(staged)
        left_out = np.unique(np.concatenate([self.refused, *verified.superseded.values()]))
        left_out = np.setdiff1d(left_out, staged.never_staged(), assume_unique=True)
        if not np.array_equal(left_out, staged.skip):
            with self._timed("stage again"):
                self._stage_again(staged, left_out)
        self.cancel.raise_if_requested()
        failpoint(Window.LOAD_POST_VERIFY)
        give_back()
        commit = self._committed(staged, verified, snapshot)
        return self._report(staged, verified, commit)

    def _verified(self, staged: _Staged, indexes: KeyIndexes) -> Verified:
        """Run the checks. Refuse the load, or with `rejects` refuse records until nothing is at fault."""
        log = ProblemLog(kept_max=staged.plan.problems_kept)
        for result in staged.results:
            log.merge(result.log)
        verifier = Verifier(
            plan=staged.plan,
            executor=self.executor,
            small=self.local,
            touched=staged.touched,
            input_facts=merged(result.facts for result in staged.results),
            given_ids=_summed(result.given_ids for result in staged.results),
            records=staged.records,
            indexes=indexes,
        )
        if self.options.rejects is None:
            verified = verifier.run(_NO_ORDERS)
            log.merge(verified.log)
            if log.total:
                raise refusal(self._located(log, staged))
            return verified
        refused = staged.never_staged()
        self.faults = []
        while True:
            verified = verifier.run(refused)
            log.merge(verified.log)
            if verified.unblamed:
                raise refusal(self._located(verified.log, staged))
            self.faults += verified.faults
            grown = np.unique(np.concatenate([refused, *(fault.orders for fault in verified.faults)]))
            if len(grown) == len(refused):
                break
            refused = grown
        self.refused, self.log = refused, self._located(log, staged)
        most = self.options.max_rejects
        if most is not None and len(refused) > most:
            stopped = refusal(self.log)
            stopped.hint = f"{len(refused):,} records are refused, at most {most:,} may be (--max-rejects)"
            raise stopped
        return verified

    def _set_aside(self, staged: _Staged) -> None:
        """Write the refused records, before the commit: a record is never neither loaded nor set aside."""
        if self.rejects is None or not len(self.refused):
            return
        places = Places.of(self.splits, staged.results)
        reasons = Reasons(self.log, self.faults, places)
        self.rejects.write(places, self.refused, reasons, staged.plan.catalog)

    def _stage_again(self, staged: _Staged, left_out: Orders) -> None:
        """Stage the splits that hold left-out records once more, without them."""
        changed = np.setxor1d(left_out, staged.skip)
        affected = {int(number) for number in np.unique(changed >> LINE_BITS)}
        tasks = [
            StageTask(staged.plan, split, left_out, write_facts=False)
            for split in self.splits
            if split.number in affected
        ]
        old = [fragment for number in affected for fragment in staged.results[number].staged()]
        with table_writers(staged.plan):
            fresh = self.executor.map("stage again", stage_split, tasks, sizes_of(tasks))
        for result in fresh:
            before = staged.results[result.split]
            if result.records != before.records:
                raise InternalError("the input changed while it was loaded")
            if not np.array_equal(result.at_fault, before.at_fault):
                raise BlobSourceError("a source of external blobs changed while the load ran; load again")
            staged.results[result.split] = replace(result, facts=before.facts)
        staged.skip = left_out
        prove_nothing_lost(staged.results)
        for number in affected:
            mine = left_out[(left_out >> LINE_BITS) == number]
            self.journal.replace(staged.results[number], mine)
        remove_fragments(self.session.root, old)

    # --- commit ---

    def _commit(self, staged: _Staged, verified: Verified, snapshot: Snapshot) -> CommitRecord | None:
        session, options = self.session, self.options
        self.target.make(snapshot)
        identity = session.branch_identity(options.branch)
        staging = MutationStaging(snapshot, self.operation_id, branch_identity=identity, course=self.course)
        for key in verified.tables_read:
            staging.record_read(TableKey(key))
        summary: dict[str, Mapping[str, int]] = {}
        for key in staged.touched:
            counts = self._push(staging, staged, verified, key)
            if counts:
                summary[key] = counts
        if staging.is_empty:
            return None
        intent = WriteIntent(
            kind=WriterKind.LOAD,
            operation="load",
            operation_id=self.operation_id,
            commit_id=self.commit_id,
            actor=options.actor,
            if_commit=options.if_commit,
            summary=summary,
            keys=() if self.request is None else (counted(self.request, summary),),
        )
        try:
            self._entered_commit = True
            published = finalize(session, staging, intent, cancel=self.cancel)
        except ReadSetMoved:
            self._entered_commit = False
            raise
        return published.commit

    def _committed(self, staged: _Staged, verified: Verified, snapshot: Snapshot) -> CommitRecord | None:
        """Commit, and tell the time until everything is visible from the index work that follows it."""
        began = time.monotonic()
        visible: list[float] = []

        def hear(event: Event) -> None:
            if isinstance(event, Published) and not visible:
                visible.append(time.monotonic())

        try:
            with listen(hear):
                return self._commit(staged, verified, snapshot)
        finally:
            ended = time.monotonic()
            shown = visible[0] if visible else ended
            self.seconds["commit"] = self.seconds.get("commit", 0.0) + shown - began
            if visible:
                self.seconds["index"] = ended - shown

    def _push(
        self, staging: MutationStaging, staged: _Staged, verified: Verified, key: str
    ) -> dict[str, int]:
        table_type = staged.plan.catalog.type_of(key)
        fragments = [each for result in staged.results for each in result.fragments.get(key, ())]
        rows = staged.total("rows", key)
        match self.mode:
            case LoadMode.OVERWRITE:
                if fragments:
                    staging.push_fragments(
                        table_type, fragments, PendingMode.OVERWRITE, MutationOpKind.UPDATE
                    )
                else:  # the checks took the old rows for gone, also where every record was refused
                    empty = table_type.arrow_schema.empty_table()
                    staging.push(table_type, empty, PendingMode.OVERWRITE, MutationOpKind.UPDATE)
                return {"inserted": rows, "removed": staged.plan.targets[TableKey(key)].rows}
            case LoadMode.APPEND:
                if not fragments:
                    return {}
                staging.push_fragments(table_type, fragments, PendingMode.APPEND, MutationOpKind.INSERT)
                return {"inserted": rows}
            case LoadMode.MERGE | LoadMode.PATCH:
                if not fragments:
                    return {}
                addresses = verified.replaced.get(key)
                staging.push_fragments(
                    table_type, fragments, PendingMode.MERGE, MutationOpKind.MERGE, replaced=addresses
                )
                replaced = 0 if addresses is None else len(addresses)
                return {"inserted": rows - replaced, "replaced": replaced}

    # --- report ---

    def _located(self, log: ProblemLog, staged: _Staged) -> ProblemLog:
        return Places.of(self.splits, staged.results).located(log)

    def _report(self, staged: _Staged, verified: Verified, commit: CommitRecord | None) -> LoadReport:
        counts: dict[bool, list[TypeCount]] = {True: [], False: []}
        for key in staged.touched:
            table_type = staged.plan.catalog.type_of(key)
            rows = staged.total("rows", key)
            replaced = len(verified.replaced.get(key, ()))
            superseded = len(verified.superseded.get(key, ()))
            read = staged.total("read", key)
            nameless = 0
            if self.mode.upserts and isinstance(table_type, EdgeType) and table_type.identity is None:
                nameless = read - staged.total("given_ids", key)
            counts[isinstance(table_type, NodeType)].append(
                TypeCount(
                    name=table_type.name,
                    entities_loaded=rows + superseded,
                    inserted=rows - replaced,
                    replaced=replaced,
                    superseded=superseded,
                    refused=read - rows - superseded,
                    appended=min(rows - replaced, nameless),
                )
            )
        return LoadReport(
            branch=show_branch(self.options.branch),
            base_branch=self.options.base,
            branch_created=self.target.made,
            mode=self.mode.value,
            engine=self.executor.name,
            nodes=tuple(sorted(counts[True], key=lambda count: count.name)),
            edges=tuple(sorted(counts[False], key=lambda count: count.name)),
            records_read=staged.records,
            records_refused=len(self.refused),
            bytes_read=sum(result.bytes for result in staged.results),
            seconds=dict(self.seconds),
            actor=self.options.actor,
            commit=commit,
            load_id=self.operation_id,
            splits=len(self.splits),
            splits_reused=self._reused,
            rejects=None if self.options.rejects is None else str(self.options.rejects),
            problems=tuple(self.log.first().listed()),
            problem_totals=dict(self.log.totals),
        )

    @contextmanager
    def _timed(self, stage: str) -> Generator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - began


def _summed(parts: Iterable[Mapping[str, int]]) -> Counter[str]:
    return sum((Counter(part) for part in parts), Counter[str]())
