"""One open graph: the rooms below, wired together, and what all writes and reads of a handle share."""

from __future__ import annotations

import contextvars
import os
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from omnigraph.core.clock import SYSTEM_CLOCK, Clock
from omnigraph.core.errors import (
    ActorRequired,
    BadRequest,
    Forbidden,
    GraphNotFound,
    OmnigraphError,
)
from omnigraph.core.events import Warned, emit
from omnigraph.core.settings import Settings
from omnigraph.engine.plans import PlanCache
from omnigraph.engine.schema_contract import SchemaContract, SchemaContracts
from omnigraph.engine.tables.cache_files import CacheFiles
from omnigraph.engine.tables.cache_work import BACKGROUND
from omnigraph.engine.tables.key_cache import KeyIndexCache
from omnigraph.engine.upkeep import check_schema_published, settle_on_open
from omnigraph.manifest.clone_marker import refuse_unfinished_clone
from omnigraph.manifest.publisher import ManifestBatchPublisher
from omnigraph.manifest.request_keys import RequestKeys
from omnigraph.manifest.store import ManifestStore
from omnigraph.recovery.context import recovery_context
from omnigraph.storage.durability import DurabilityMode, make_durable
from omnigraph.storage.layout import SCHEMA_SOURCE, GraphRoot
from omnigraph.storage.objects import StorageAdapter, open_adapter
from omnigraph.storage.parallel import shared
from omnigraph.storage.recent_versions import VersionsKept
from omnigraph.storage.tables import TableStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from omnigraph.catalog.schema import Catalog
    from omnigraph.core.ids import Branch, TableKey
    from omnigraph.core.permission import Policy, Question
    from omnigraph.engine.search.embedding import Embedder
    from omnigraph.manifest.state import Snapshot, TableEntry
    from omnigraph.storage.handles import SnapshotHandle

T = TypeVar("T")
_HandleKey: TypeAlias = "tuple[str, Branch, int, str]"

HANDLES_KEPT_MAX: Final = 1024
KEY_INDEX_SHARE: Final = 0.5
"""Share of the cache budget that key indexes may fill."""
OVERLAP_THREADS: Final = 8
"""Threads that wait for the device while the writing thread prepares the next step."""


class AfterPublish(Protocol):
    """Called once a write is visible and its sidecar is gone, with the tables it touched (index
    reconciliation).
    """

    def __call__(
        self, session: GraphSession, snapshot: Snapshot, tables: Sequence[TableKey], *, always: bool = False
    ) -> None:
        """Do what is worthwhile, or with `always` everything. A failure becomes a warning; the write has
        succeeded.
        """
        ...


_sessions: weakref.WeakSet[GraphSession] = weakref.WeakSet()
_key_indexes: KeyIndexCache | None = None
_key_indexes_lock = threading.Lock()


def key_indexes(settings: Settings) -> KeyIndexCache:
    """The key indexes of this process; the first handle decides how large they may grow."""
    global _key_indexes  # noqa: PLW0603  shared by all handles on purpose
    with _key_indexes_lock:
        if _key_indexes is None:
            _key_indexes = KeyIndexCache(int(settings.cache_bytes * KEY_INDEX_SHARE))
        return _key_indexes


def _disown_in_child() -> None:
    # Threads are not inherited, and locks may be held by those that are not: a child opens its own handles.
    global _key_indexes, _key_indexes_lock
    for session in list(_sessions):
        session.disown()
    _key_indexes, _key_indexes_lock = None, threading.Lock()
    BACKGROUND.start_afresh()


os.register_at_fork(after_in_child=_disown_in_child)


class GraphSession:
    """An open graph. Thread-safe; may be shared by any number of threads, and by no forked child.

    `read_only` sessions never write, not even to finish an interrupted write of somebody else.
    """

    def __init__(
        self,
        root: GraphRoot,
        *,
        settings: Settings,
        adapter: StorageAdapter,
        read_only: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        embedder: Embedder | None = None,
    ) -> None:
        if embedder is not None:
            from omnigraph.engine.search.embedding import check_embedder  # noqa: PLC0415  few handles are given one

            check_embedder(embedder)
        self.root = root
        self.settings = settings
        self.adapter = adapter
        self.read_only = read_only
        self.clock = clock
        self.durability = DurabilityMode(settings.durability)
        self.storage = TableStorage(root, settings, adapter)
        self.manifest = ManifestStore(root, settings, adapter, read_only=read_only)
        self.publisher = ManifestBatchPublisher(self.manifest, clock)
        self.commits = self.manifest.commits
        self.request_keys = RequestKeys(self.commits, clock)
        self.schemas = SchemaContracts(adapter)
        self.plans = PlanCache()
        self.keys = key_indexes(settings)
        self.cache_files = CacheFiles.of(root, settings, read_only=read_only)
        self.keys.attach(root.identity, self.cache_files)
        self.after_publish: AfterPublish | None = None
        self.policy: Policy | None = None
        """What every write has to ask; without one everything is permitted."""
        self.recovery = recovery_context(
            root, adapter, self.storage, self.manifest, self.publisher, settings, clock
        )
        self.queues = self.recovery.queues
        self.lease = self.recovery.lease
        self.sidecars = self.recovery.sidecars
        self._handles: OrderedDict[_HandleKey, SnapshotHandle] = OrderedDict()
        self._kept = VersionsKept[_HandleKey]()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False
        self._inherited = False
        self._embedder = embedder
        self._embedder_given = self._embedder_known = embedder is not None
        self.syncs = root.is_local and self.durability is not DurabilityMode.OS
        """Whether new files have to be synced at all."""
        self.disturbed = False
        """Whether the last write of this handle found that another one had been published meanwhile."""
        BACKGROUND.attach(root.identity)
        _sessions.add(self)

    # --- entering --------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise `BadRequest` on a closed handle, and on one that a forked child got from its parent."""
        if self._inherited:
            raise BadRequest(
                "the graph was opened before this process was forked",
                # Opening it here would not do: the threads of the table format were not forked either.
                hint="start processes by 'spawn', or fork before the first graph is opened",
            )
        if self._closed:
            raise BadRequest("the graph is closed")

    def ask(self, actor: str | None, *questions: Question) -> None:
        """Whether the actor may do all of this. Raises Forbidden, ActorRequired, PolicyEvaluationFailed."""
        policy = self.policy
        if policy is None:
            return
        for question in questions:
            decision = policy.decide(actor, question)
            if decision.allowed:
                continue
            if actor is None and policy.tells_actors_apart:
                raise ActorRequired(
                    "the graph has a policy, and the write names no actor",
                    hint="say who writes: actor=, or --as on the command line",
                )
            raise Forbidden(decision.message, hint="ask the owner of the graph's policy")

    def disown(self) -> None:
        """In a forked child: the handle stays with the parent and is of no use here."""
        self._closed = self._inherited = True
        self._pool, self._lock = None, threading.Lock()

    def begin_read(self) -> None:
        """What every public call that reads does first: the handle is open and the schema source on disk is
        the accepted one. Cost: one probe.
        """
        if self._closed:
            self.check_open()
        self.schemas.check_source()

    def contract(self) -> SchemaContract:
        """The accepted schema, of an open handle."""
        self.check_open()
        return self.schemas.current()

    @property
    def embedder_is_configured(self) -> bool:
        """Whether settings and environment name the embedder, and not the caller."""
        return not self._embedder_given

    @property
    def embedder(self) -> Embedder | None:
        """What embeds the texts of queries and writes: the one given, else the configured one.

        Raises EmbedderError.
        """
        if not self._embedder_known:
            from omnigraph.engine.search.embedding import configured_embedder  # noqa: PLC0415  few handles ask

            self._embedder = configured_embedder(self.settings)
            self._embedder_known = True
        return self._embedder

    def close(self) -> None:
        """Finish the commit tables and let go of threads. Calling it again does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)
        self.keys.save_rest(self.root.identity)
        BACKGROUND.detach(self.root.identity)
        if self.read_only:
            return
        try:
            self.commits.close()
        except OmnigraphError as error:
            # The manifest has every commit; the next opening completes the tables from it.
            emit(
                Warned("the commit tables could not be extended; they will be completed later", error.message)
            )

    # --- reading ---------------------------------------------------------------------------------------

    def catalog_of(self, snapshot: Snapshot) -> Catalog:
        """The schema the snapshot's branch follows."""
        return self.schemas.catalog(snapshot.schema_hash)

    def branch_identity(self, branch: Branch) -> str:
        """What tells this branch from a later one of the same name."""
        return self.manifest.head(branch).token or ""

    def open_entry(self, entry: TableEntry) -> SnapshotHandle:
        """The table version a snapshot shows. The same object while it is in use, so caches recognise it."""
        key = (entry.location, entry.branch, entry.version, entry.transaction_uuid)
        with self._lock:
            kept = self._handles.get(key)
            if kept is not None:
                self._handles.move_to_end(key)
                return kept
        opened = self.storage.open_version(entry.table_key, entry.location, entry.branch, entry.version)
        handle = replace(opened, transaction_uuid=entry.transaction_uuid)
        self._remember(key, handle)
        return handle

    def _remember(self, key: _HandleKey, handle: SnapshotHandle) -> None:
        with self._lock:
            self._handles[key] = handle
            leaving = self._kept.leaving(key[:2], key)
            if leaving is not None:
                self._handles.pop(leaving, None)
            while len(self._handles) > HANDLES_KEPT_MAX:
                self._handles.popitem(last=False)

    # --- writing ---------------------------------------------------------------------------------------

    def map_tables(
        self, work: Callable[[TableKey], T], keys: Sequence[TableKey], *, threads: int = 1
    ) -> list[T]:
        """Run `work` for each table, in order, on at most `threads` threads."""
        if threads <= 1 or len(keys) <= 1:
            return [work(key) for key in keys]
        with ThreadPoolExecutor(min(threads, len(keys)), "omnigraph-stage") as pool:
            begun = [pool.submit(contextvars.copy_context().run, work, key) for key in keys]
            return [each.result() for each in begun]

    def share(self, work: Callable[[TableKey], T], keys: Sequence[TableKey], *, threads: int) -> list[T]:
        """As `map_tables` for short work: this thread takes part, and waiting threads of the session help.

        Nothing of it runs any more when this returns or raises, not even after an interrupt: a thread left
        behind might move a table that nobody covers.
        """
        return shared(work, keys, threads=threads, submit=self.submit)

    def submit(self, work: Callable[..., T], *args: Any, **named: Any) -> Future[T]:
        """Run `work` beside this thread, with its listeners."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(OVERLAP_THREADS, "omnigraph-overlap")
            pool = self._pool
        return pool.submit(contextvars.copy_context().run, work, *args, **named)

    def make_durable(self, paths: Sequence[str]) -> None:
        """Sync new local files and the directories that name them: one round."""
        if self.root.is_local:
            make_durable(paths, self.durability, root=self.root.uri)


def connect_storage(
    uri: str, *, settings: Settings | None, storage_options: Mapping[str, str] | None
) -> tuple[GraphRoot, Settings, StorageAdapter]:
    """The address, the settings and the adapter of a graph."""
    chosen = settings or Settings.from_environment()
    root = GraphRoot(uri, dict(storage_options or {}))
    adapter = open_adapter(root.uri, root.storage_options, durability=DurabilityMode(chosen.durability))
    return root, chosen, adapter


def open_session(
    uri: str,
    *,
    read_only: bool = False,
    settings: Settings | None = None,
    storage_options: Mapping[str, str] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    embedder: Embedder | None = None,
) -> GraphSession:
    """Open an existing graph. Read-write opening first settles what dead writers left.

    Raises `GraphNotFound`, `SchemaContractMissing`, `FormatTooNew`.
    """
    root, chosen, adapter = connect_storage(uri, settings=settings, storage_options=storage_options)
    session = GraphSession(
        root, settings=chosen, adapter=adapter, read_only=read_only, clock=clock, embedder=embedder
    )
    if not session.manifest.dataset.exists():
        refuse_unfinished_clone(adapter)
        raise GraphNotFound(root.uri, hint="create it with `omnigraph init`")
    if not read_only:
        if adapter.identity(SCHEMA_SOURCE) is None:
            refuse_unfinished_clone(adapter)
        settle_on_open(session)
    check_schema_published(session)
    return session
