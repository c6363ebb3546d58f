"""What follows a write that is visible. It has succeeded: nothing here may fail it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnigraph.core.bounds import unbounded
from omnigraph.core.errors.base import said
from omnigraph.core.events import Warned, emit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnigraph.core.ids import TableKey
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.write.protocol import CommittedTable, Finished
    from omnigraph.manifest.state import Snapshot


def after_commit(session: GraphSession, finished: Finished) -> None:
    """Carry the key indexes over a write of this handle, then offer its tables to the index reconciler."""
    with unbounded():
        for each in finished.tables:
            _extend_keys(session, finished.snapshot, each)
    offer_index_work(session, finished.snapshot, [each.entry.table_key for each in finished.tables])


def offer_index_work(
    session: GraphSession, snapshot: Snapshot, tables: Sequence[TableKey], *, always: bool = False
) -> None:
    """Let the index reconciler do what is worthwhile for these tables, or with `always` everything."""
    if session.after_publish is None:
        return
    try:
        with unbounded():
            session.after_publish(session, snapshot, tables, always=always)
    except Exception as error:  # noqa: BLE001  the write is visible; index work is never its failure
        emit(Warned("index work after a write failed", said(error)))


def _extend_keys(session: GraphSession, snapshot: Snapshot, committed: CommittedTable) -> None:
    keys = committed.write.keys
    if keys is None:
        return
    identity = session.root.identity
    try:
        # Opened anew: the handle of the commit still lists the files the commit had to sync.
        handle = session.open_entry(snapshot.entries[committed.entry.table_key])
        session.keys.extend(
            identity, session.storage, handle, keys.ids, keys.hidden, base=committed.write.handle
        )
    except Exception as error:  # noqa: BLE001  a cache that cannot follow is dropped, never trusted
        session.keys.forget(identity)
        emit(Warned("the key index was dropped", said(error)))
