"""Bringing an older `__manifest` up to the internal schema version this program writes.

From any stamp it is one strict swap, which may be repeated after a crash at any point. Readers never migrate.
"""

from typing import TYPE_CHECKING

import pyarrow as pa

from omnigraph.core.errors import FormatTooNew, InternalError, RowLevelCasContention
from omnigraph.core.ids import BranchName
from omnigraph.core.limits import PUBLISHER_RETRY_BUDGET
from omnigraph.manifest.names import LEGACY_RUN_PREFIX
from omnigraph.manifest.state import PRIMARY_KEY, STAMP, manifest_schema

if TYPE_CHECKING:
    from omnigraph.manifest.store import Head, ManifestStore


def refuse_newer_format(stamp: int) -> None:
    """Raise FormatTooNew when a newer program wrote this manifest: it may be read, not written."""
    if stamp > STAMP:
        raise FormatTooNew(found=stamp, supported=STAMP)


def migrate(store: "ManifestStore", head: "Head") -> "Head":
    """The head of the same branch at the current stamp. At that stamp already: no I/O at all.

    Raises FormatTooNew, and RowLevelCasContention when other writers keep getting in between.
    """
    for _ in range(PUBLISHER_RETRY_BUDGET + 1):
        refuse_newer_format(head.stamp)
        if head.stamp == STAMP:
            return head
        if head.stamp < 2:
            refuse_foreign_key(head.handle.schema)
        for name in store.all_branches():
            if name.lstrip("/").startswith(LEGACY_RUN_PREFIX):
                store.references.remove(BranchName(name))
        _restamp(store, head)
        head = store.head(head.snapshot.branch)
    raise RowLevelCasContention(attempts=PUBLISHER_RETRY_BUDGET + 1)


def refuse_foreign_key(schema: pa.Schema) -> None:
    """Raise InternalError when a field other than `object_id` is annotated as the key."""
    for field in schema:
        if field.name != "object_id" and PRIMARY_KEY.encode() in (field.metadata or {}):
            raise InternalError(f"the manifest names '{field.name}' as its key instead of 'object_id'")


def _restamp(store: "ManifestStore", head: "Head") -> None:
    """Write the same rows under the present stamp, unless another writer was first: then nothing happens."""
    branch = head.snapshot.branch
    schema = manifest_schema()
    rows = store.dataset.read(head.handle).cast(schema)
    written = store.dataset.write_rows(head.handle, branch, rows, replacing=True)
    store.dataset.sync(*written.names)
    store.dataset.commit_overwrite(head.handle, branch, schema, written)
