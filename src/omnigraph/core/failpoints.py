"""Named crash windows, and what a test may make happen in them.

A window is a member of `Window` with a sentence that says what has and has not happened at that instant. Code
calls `failpoint(Window.X)`; while nothing is activated that is one test of an empty mapping. A room adds its
members together with the calls.

A child process is told its actions through the environment, read once when this module is imported:
`OMNIGRAPH_FAILPOINTS="mutation.post_table_commit=pass,exit;recovery.sidecar_delete=raise"`.
"""

import os
import signal
import threading
from collections.abc import Callable, Generator, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from enum import StrEnum
from typing import Final, NoReturn, Protocol, TypeVar

EXIT_STATUS: Final = 86
PAUSE_SECONDS_MAX: Final = 60.0
VARIABLE: Final = "OMNIGRAPH_FAILPOINTS"


class Window(StrEnum):
    """Every crash window that exists in the code."""

    INIT_AFTER_SCHEMA_PG_WRITTEN = "init.after_schema_pg_written"
    """The place of the new graph is claimed by its schema source; nothing else exists."""
    INIT_AFTER_SCHEMA_CONTRACT_WRITTEN = "init.after_schema_contract_written"
    """The three schema objects exist; no table, no manifest."""
    INIT_AFTER_COORDINATOR_INIT = "init.after_coordinator_init"
    """Tables and manifest exist: the graph is complete, its creator has not returned."""
    MUTATION_DELETE_NODE_PRE_PRIMARY_DELETE = "mutation.delete_node_pre_primary_delete"
    """The nodes and edges to delete are chosen; nothing is staged."""
    MUTATION_POST_STAGE_PRE_QUEUE = "mutation.post_stage_pre_queue"
    """Every file of the write is staged; no queue, no lease is held; no table has changed."""
    MUTATION_POST_SIDECAR_PRE_COMMIT = "mutation.post_sidecar_pre_commit"
    """The intent is durable; no table has changed."""
    MUTATION_POST_SIDECAR_PRE_FORK = "mutation.post_sidecar_pre_fork"
    """The intent is durable; a table new to the branch has no reference of the branch yet."""
    MUTATION_POST_FORK_PRE_COMMIT = "mutation.post_fork_pre_commit"
    """One more table has a reference of the branch, at the inherited version; no HEAD has moved."""
    MUTATION_POST_TABLE_COMMIT = "mutation.post_table_commit"
    """One more table of the write has moved its HEAD; others may still have to; nothing is published."""
    MUTATION_POST_FINALIZE_PRE_PUBLISHER = "mutation.post_finalize_pre_publisher"
    """Every table of the write has moved its HEAD; nothing is published."""
    PUBLISH_AFTER_STATE_LOAD = "publish.after_state_load"
    """The publisher has read the branch's state; it has compared nothing and written nothing."""
    PUBLISH_RETRYABLE_CONTENTION = "publish.retryable_contention"
    """The new manifest rows are written and durable; nothing points at them."""
    GRAPH_PUBLISH_AFTER_MANIFEST_COMMIT = "graph_publish.after_manifest_commit"
    """The publish is visible and durable; neither the store nor the caller knows of it."""
    GRAPH_PUBLISH_BEFORE_COMMIT_APPEND = "graph_publish.before_commit_append"
    """The publish is visible and durable; the commit is not yet queued for the commit tables."""
    COMMIT_PROJECTION_BEFORE_APPEND = "commit_projection.before_append"
    """Actor rows of a batch of commits are in their table; the commit rows are not."""
    BRANCH_CREATE_AFTER_MANIFEST_BRANCH_CREATE = "branch_create.after_manifest_branch_create"
    """The branch exists in the manifest; it may not be durable and its creator does not know of it."""
    CLONE_FILE_COPIED = "clone.file_copied"
    """One more file of a clone is in its place; nothing points at it."""
    CLONE_POST_COPY = "clone.post_copy"
    """Every file that the tables of a clone need is in its place, durably; nothing points at one."""
    CLONE_POST_TABLES = "clone.post_tables"
    """The versions of the tables are in their places; the manifest of the clone is not."""
    CLONE_POST_STATES = "clone.post_states"
    """Everything is in its place but the schema source: there is no graph yet."""
    LOAD_SPLIT_STAGED = "load.split_staged"
    """One more split of a load is staged and in the journal; others may not be; nothing is checked."""
    LOAD_POST_STAGE = "load.post_stage"
    """Every split of a load is staged and in the journal; nothing is checked."""
    LOAD_BETWEEN_CHECKS = "load.between_checks"
    """The ids of a load are checked, what refers to them is not."""
    LOAD_POST_VERIFY = "load.post_verify"
    """Every check of a load holds; its commit has not begun."""
    ENSURE_INDICES_POST_STAGE_PRE_COMMIT_BTREE = "ensure_indices.post_stage_pre_commit_btree"
    """The index files of a table are written and the intent is durable; its HEAD has not moved."""
    ENSURE_INDICES_POST_PHASE_B_PRE_MANIFEST_COMMIT = "ensure_indices.post_phase_b_pre_manifest_commit"
    """Every table has its indexes at a new version; nothing is published."""
    OPTIMIZE_POST_COMPACT_PRE_REINDEX = "optimize.post_compact_pre_reindex"
    """Small fragments of a table are one at a new version; no index knows it, nothing is published."""
    OPTIMIZE_POST_PHASE_B_PRE_MANIFEST_COMMIT = "optimize.post_phase_b_pre_manifest_commit"
    """Every table has its small fragments as one and its indexes extended; nothing is published."""
    SCHEMA_APPLY_AFTER_LOCK = "schema_apply.after_lock"
    """The lock branch of a schema change exists; nothing else has happened."""
    SCHEMA_APPLY_AFTER_COLUMN_FILES = "schema_apply.after_column_files"
    """New values of columns of one more table are written; nobody points at the files."""
    SCHEMA_APPLY_POST_SIDECAR_PRE_COMMIT = "schema_apply.post_sidecar_pre_commit"
    """The intent of a schema change is durable; no table has changed and none is made."""
    SCHEMA_APPLY_AFTER_TABLE_CREATE = "schema_apply.after_table_create"
    """One more table of an added type exists; others may not; no column has changed."""
    SCHEMA_APPLY_AFTER_TABLE_COMMIT = "schema_apply.after_table_commit"
    """One more table has its new columns; others may not; the new schema is not written."""
    SCHEMA_APPLY_BEFORE_STAGING_WRITE = "schema_apply.before_staging_write"
    """Every table has its new columns; the new schema is not written: recovery would undo the change."""
    SCHEMA_APPLY_AFTER_STAGING_WRITE = "schema_apply.after_staging_write"
    """The new schema lies beside the accepted one: recovery would finish the change; nothing is published."""
    SCHEMA_APPLY_AFTER_MANIFEST_COMMIT = "schema_apply.after_manifest_commit"
    """The schema change is published; the new schema still lies beside the old one."""
    SCHEMA_APPLY_BETWEEN_RENAMES = "schema_apply.between_renames"
    """The schema change is published; one more file of the new schema is in its place."""
    SCHEMA_APPLY_BEFORE_LOCK_RELEASE = "schema_apply.before_lock_release"
    """The schema change is complete; its lock still stops every other writer."""
    SCHEMA_ADOPT_POST_SIDECAR_PRE_COMMIT = "schema_adopt.post_sidecar_pre_commit"
    """The intent of a branch that adopts the schema is durable; no table has changed."""
    SCHEMA_ADOPT_POST_COMMIT_PRE_PUBLISH = "schema_adopt.post_commit_pre_publish"
    """Every table of the branch has the columns of the schema it adopts; nothing is published."""
    RECOVERY_SIDECAR_WRITE = "recovery.sidecar_write"
    """Phase A begins: nothing of the intent is written, no table has changed."""
    RECOVERY_SIDECAR_CONFIRM = "recovery.sidecar_confirm"
    """Every table of a merge has moved; the confirmation is not written, nothing is published."""
    RECOVERY_SIDECAR_DELETE = "recovery.sidecar_delete"
    """Everything is published; the sidecar is still there."""
    RECOVERY_SIDECAR_LIST = "recovery.sidecar_list"
    """Before the pending sidecars are listed; nothing has changed."""
    RECOVERY_POST_LIST_PRE_READ = "recovery.post_list_pre_read"
    """Pending sidecars are listed and not read yet; a live writer may delete its own now."""
    RECOVERY_BEFORE_ROLL_FORWARD_PUBLISH = "recovery.before_roll_forward_publish"
    """A finished write of a dead writer was found; recovery has published nothing."""
    RECOVERY_POST_TABLE_RESTORE_PRE_PUBLISH = "recovery.post_table_restore_pre_publish"
    """One more table has its published content again, at a new version; nothing is published."""
    RECOVERY_POST_ROLLBACK_PUBLISH_PRE_AUDIT = "recovery.post_rollback_publish_pre_audit"
    """The restored versions are published; the audit row is not written, the sidecar is still there."""
    RECOVERY_RECORD_AUDIT = "recovery.record_audit"
    """Recovery has published; the audit row is not written, the sidecar is still there."""
    RECOVERY_ORPHAN_DISCARD_AUDIT_APPEND = "recovery.orphan_discard_audit_append"
    """The commit of a discarded operation is published; its audit row is not written."""

    BRANCH_DELETE_BEFORE_TABLE_CLEANUP = "branch_delete.before_table_cleanup"
    """The branch does not exist any more; one more table still has its reference and its files."""
    CLEANUP_RESOLVE_BRANCH_SNAPSHOT = "cleanup.resolve_branch_snapshot"
    """A cleanup asks one more branch what it shows; nothing of this look is removed yet."""
    CLEANUP_POST_NOTE_PRE_STATES = "cleanup.post_note_pre_states"
    """The files that a cleanup is about to release are noted; everything is still there."""
    CLEANUP_STATES_GC = "cleanup.states_gc"
    """A cleanup is about to remove some more states; those before them are gone, their tables are not."""
    CLEANUP_RECONCILE_FORK = "cleanup.reconcile_fork"
    """The states that go are gone; one more fork that nothing shows is still there."""
    CLEANUP_TABLE_GC = "cleanup.table_gc"
    """A cleanup is about to remove some more versions of a table; no state shows them."""
    CLEANUP_POST_VERSIONS_PRE_FILES = "cleanup.post_versions_pre_files"
    """Every version that goes is gone; the files that only they were read from are not."""
    CLEANUP_POST_FILES_PRE_END = "cleanup.post_files_pre_end"
    """Everything that goes is gone; the note still names it."""
    ERASE_POST_DELETE = "erase.post_delete"
    """One more branch does not show the subject; its files still hold it, other branches may show it."""
    ERASE_POST_REWRITE = "erase.post_rewrite"
    """The newest files and indexes of one more branch do not hold the subject; older states do."""
    ERASE_PRE_RECLAIM = "erase.pre_reclaim"
    """No branch is read from a file that holds the subject; no state, tag or file is removed yet."""
    ERASE_POST_RECLAIM = "erase.post_reclaim"
    """Every state and file that held the subject is gone; caches may still name it."""
    FORK_BEFORE_CLASSIFY = "fork.before_classify"
    """A table has a reference of the branch already; whether it is in use is not known yet."""
    CLASSIFY_FRESH_READ = "classify.fresh_read"
    """Before the live branches are asked whether they use a reference; nothing is changed."""
    FORK_BEFORE_RECLAIM = "fork.before_reclaim"
    """A reference nobody uses was found; it is still there."""
    BRANCH_MERGE_POST_CLASSIFY_PRE_QUEUE = "branch_merge.post_classify_pre_queue"
    """A merge is planned, checked and staged; no queue, no lease is held; no table has changed."""
    BRANCH_MERGE_POST_SIDECAR_PRE_FORK = "branch_merge.post_sidecar_pre_fork"
    """A merge's intent is durable; a table the target writes for the first time has no reference yet."""
    BRANCH_MERGE_ADOPT_AFTER_APPEND_PRE_UPSERT = "branch_merge.adopt_after_append_pre_upsert"
    """New rows of a table only the source changed are committed; its changed and deleted rows are not."""
    BRANCH_MERGE_ADOPT_AFTER_UPSERT_PRE_DELETE = "branch_merge.adopt_after_upsert_pre_delete"
    """New and changed rows of a table only the source changed are committed; deleted rows are still there."""
    BRANCH_MERGE_REWRITE_AFTER_MERGE_PRE_DELETE = "branch_merge.rewrite_after_merge_pre_delete"
    """New and changed rows of a table both sides changed are committed; deleted rows are still there."""
    BRANCH_MERGE_REWRITE_AFTER_DELETE_PRE_INDEX = "branch_merge.rewrite_after_delete_pre_index"
    """The deletions of a table both sides changed are committed; nothing is confirmed."""
    BRANCH_MERGE_BETWEEN_TABLES = "branch_merge.between_tables"
    """One more table of a merge has all its commits; others have some or none; nothing is confirmed."""
    BRANCH_MERGE_POST_EFFECTS_PRE_CONFIRM = "branch_merge.post_effects_pre_confirm"
    """Every table of a merge has all its commits, durably; the sidecar does not say so."""
    BRANCH_MERGE_POST_PHASE_B_PRE_MANIFEST_COMMIT = "branch_merge.post_phase_b_pre_manifest_commit"
    """A merge is confirmed: recovery would finish it; nothing is published."""


class InjectedFailure(Exception):  # noqa: N818  it is not a failure of the product
    """Raised by an activated window. Deliberately outside the product's error tree."""


class Action(Protocol):
    """What happens when execution reaches an activated window."""

    def __call__(self, window: Window) -> None:
        """Act at the window that was reached."""
        ...


A = TypeVar("A", bound=Action)


class Pass:
    """Nothing happens (a step of a sequence)."""

    def __call__(self, window: Window) -> None:
        """Do nothing."""


class Raise:
    """Raise the given exception, or `InjectedFailure` naming the window."""

    def __init__(self, exception: BaseException | None = None) -> None:
        self._exception = exception

    def __call__(self, window: Window) -> NoReturn:
        """Raise."""
        raise self._exception or InjectedFailure(f"injected at {window.value}")


class Callback:
    """Call a function with the window."""

    def __init__(self, function: Callable[[Window], None]) -> None:
        self._function = function

    def __call__(self, window: Window) -> None:
        """Call the function."""
        self._function(window)


class Exit:
    """End the process at once, as a power cut of this process would: no handler, no flush, no atexit."""

    def __init__(self, code: int = EXIT_STATUS) -> None:
        self._code = code

    def __call__(self, window: Window) -> NoReturn:  # noqa: ARG002  every action is told its window
        """End the process."""
        os._exit(self._code)


class Kill:
    """Have the system kill the process (SIGKILL), as an operator or the out-of-memory killer would."""

    def __call__(self, window: Window) -> None:  # noqa: ARG002  every action is told its window
        """Kill the process."""
        os.kill(os.getpid(), signal.SIGKILL)


class Interrupt:
    """Send the process what a terminal sends on Ctrl-C (SIGINT); the main thread is interrupted."""

    def __call__(self, window: Window) -> None:  # noqa: ARG002  every action is told its window
        """Interrupt the process."""
        os.kill(os.getpid(), signal.SIGINT)


class Pause:
    """Hold the arriving thread until `release()`. Every wait is bounded; passing the bound is an error."""

    def __init__(self, *, seconds_max: float = PAUSE_SECONDS_MAX) -> None:
        self.reached = threading.Event()
        self._released = threading.Event()
        self._seconds_max = seconds_max

    def __call__(self, window: Window) -> None:
        """Hold the thread that arrived."""
        self.reached.set()
        if not self._released.wait(self._seconds_max):
            raise TimeoutError(f"nobody released the pause at {window.value} within {self._seconds_max} s")

    def wait_until_reached(self) -> None:
        """Return once a thread is held here."""
        if not self.reached.wait(self._seconds_max):
            raise TimeoutError(f"no thread reached the pause within {self._seconds_max} s")

    def release(self) -> None:
        """Let the held thread go on, and every later one pass."""
        self._released.set()


class Sequence:
    """One action per arrival, in order; after the last one, nothing. Thread-safe."""

    def __init__(self, actions: SequenceOf[Action]) -> None:
        self._actions = list(actions)
        self._lock = threading.Lock()

    def __call__(self, window: Window) -> None:
        """Do the next action."""
        with self._lock:
            action = self._actions.pop(0) if self._actions else Pass()
        action(window)


_NAMED_ACTIONS: Final[Mapping[str, Callable[[], Action]]] = {
    "pass": Pass,
    "raise": Raise,
    "exit": Exit,
    "kill": Kill,
    "interrupt": Interrupt,
}


def parse_failpoints(text: str) -> dict[Window, Action]:
    """The actions a child process is told. An unknown window or action is a ValueError, never ignored."""
    parsed: dict[Window, Action] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        name, separator, actions = part.partition("=")
        if not separator:
            raise ValueError(f"{VARIABLE}: '{part}' is not <window>=<action>[,<action>]")
        steps = [step.strip() for step in actions.split(",")]
        unknown = [step for step in steps if step not in _NAMED_ACTIONS]
        if unknown:
            raise ValueError(f"{VARIABLE}: unknown action '{unknown[0]}'; known: {', '.join(_NAMED_ACTIONS)}")
        made = [_NAMED_ACTIONS[step]() for step in steps]
        parsed[Window(name.strip())] = made[0] if len(made) == 1 else Sequence(made)
    return parsed


_active: dict[Window, Action] = parse_failpoints(os.environ.get(VARIABLE, ""))


def failpoint(window: Window) -> None:
    """Let a test act here. Cost when nothing is activated: one test of an empty mapping."""
    if _active:
        action = _active.get(window)
        if action is not None:
            action(window)


@contextmanager
def activate(window: Window, action: A) -> Generator[A]:
    """Activate `action` at `window` for every thread of the process. One action per window at a time."""
    if window in _active:
        raise ValueError(f"{window.value} is already activated")
    _active[window] = action
    try:
        yield action
    finally:
        del _active[window]
