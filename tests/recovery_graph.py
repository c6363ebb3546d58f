"""A graph of three tables whose writers can be stopped by hand: raw commits, hand-written sidecars."""

import json
from dataclasses import replace

import pyarrow as pa

from graphs import pins_of
from omnigraph.core.ids import BranchName, OperationId, TableKey, new_ulid
from omnigraph.core.settings import Settings
from omnigraph.engine.create import create_graph
from omnigraph.engine.session import GraphSession, connect_storage
from omnigraph.engine.upkeep import settle_on_open
from omnigraph.manifest.changes import CommitIntent, SubTableUpdate
from omnigraph.recovery.sidecar import Sidecar, SidecarPin, WriterKind, to_text
from omnigraph.storage.handles import Stamp

SCHEMA = """
node Company { name: String @key }
node Person { name: String @key  age: I32? }
edge Knows: Person -> Person { since: I32? }
"""
PERSON = TableKey("node:Person")
COMPANY = TableKey("node:Company")
KNOWS = TableKey("edge:Knows")
FAST = Settings(durability="os")
"""Tests of logic need no device; tests of durability say so."""


class RawGraph:
    """One open graph and the steps of a write, each by itself."""

    def __init__(self, session: GraphSession) -> None:
        self.session = session
        self.context = session.recovery

    @classmethod
    def create(cls, path, settings=FAST):
        return cls(create_graph(str(path), SCHEMA, settings=settings))

    @classmethod
    def open(cls, path, settings=FAST):
        """A read-write open as a new process would do it: nothing is remembered, everything is settled."""
        graph = cls.attach(path, settings)
        graph.swept = settle_on_open(graph.session)
        return graph

    @classmethod
    def attach(cls, path, settings=FAST):
        """A handle that settles nothing."""
        root, chosen, adapter = connect_storage(str(path), settings=settings, storage_options=None)
        return cls(GraphSession(root, settings=chosen, adapter=adapter))

    # --- looking

    def pins(self, branch=None):
        return pins_of(self.session.manifest.current(branch))

    def head(self, key, branch=None):
        entry = self.session.manifest.current(branch).entries[key]
        return self.session.storage.head_version(entry.location, entry.branch)

    def ids(self, key, branch=None):
        entry = self.session.manifest.current(branch).entries[key]
        return sorted(
            self.session.storage.read(self.session.open_entry(entry), columns=["id"])["id"].to_pylist()
        )

    def sidecars(self):
        return self.context.sidecars.list()

    def audit(self):
        return self.context.recoveries.list()

    def commits(self, branch=None):
        return self.context.commits.list(branch)

    # --- the steps of a write

    def commit(self, key, names, *, operation_id=None, branch=None, table_branch=None, **values):
        """Phase B of one table: append rows with these ids; returns the handle at the new HEAD.

        `values`: the same for every row, by column.
        """
        entry = self.session.manifest.current(branch).entries[key]
        head = self.session.storage.open_head(key, entry.location, table_branch)
        columns = {name: [None] * len(names) for name in head.schema.names} | {"id": list(names)}
        if "name" in columns:
            columns["name"] = list(names)
        if key == KNOWS:
            columns |= {"src": ["ada"] * len(names), "dst": ["ada"] * len(names)}
        columns |= {name: [value] * len(names) for name, value in values.items()}
        rows = pa.table(columns, schema=head.schema)
        staged = self.session.storage.stage_append(head, rows, Stamp(operation_id or new_ulid(), key))
        return self.session.storage.commit_staged(head, staged)

    def publish(self, handles, *, operation_id=None, branch=None, actor="writer"):
        """Phase C: show these handles."""
        storage = self.session.storage
        current = self.session.manifest.current(branch)
        changes = [
            SubTableUpdate(
                each.table_key,
                each.version,
                each.branch,
                each.row_count,
                storage.transaction_of(each.location, each.branch, each.version).uuid,
                storage.branch_identifier(each.location, each.branch),
            )
            for each in handles
        ]
        expected = {each.table_key: current.pin(each.table_key) for each in handles}
        intent = CommitIntent(new_ulid(), "mutation", actor, OperationId(operation_id or new_ulid()))
        return self.session.publisher.publish(branch, changes, expected, intent)

    def write(self, key, names, *, branch=None):
        """A complete, healthy write."""
        operation_id = new_ulid()
        table_branch = self.session.manifest.current(branch).entries[key].branch
        handle = self.commit(key, names, operation_id=operation_id, branch=branch, table_branch=table_branch)
        return self.publish([handle], operation_id=operation_id, branch=branch)

    def sidecar(self, *keys, kind=WriterKind.MUTATION, branch=None, commits=1, operation_id=None, **changes):
        """Phase A: the note of a writer that is about to commit to these tables."""
        snapshot = self.session.manifest.current(branch)
        pins = tuple(
            SidecarPin(
                key,
                snapshot.entries[key].location,
                snapshot.pin(key),
                snapshot.pin(key) + commits,
                table_branch=None if branch is None else BranchName(branch),
            )
            for key in keys
        )
        made = Sidecar(
            operation_id=OperationId(operation_id or new_ulid()),
            started_at_us=self.session.clock.now_us(),
            branch=branch,
            actor="ana",
            writer_kind=kind,
            tables=pins,
        )
        return replace(made, **changes) if changes else made

    def note(self, *keys, **options):
        """As `sidecar`, written."""
        made = self.sidecar(*keys, **options)
        self.context.sidecars.write(made)
        return made

    def downgrade(self, sidecar):
        """Rewrite the note as its version-1 form, which had full addresses."""
        value = json.loads(to_text(sidecar)) | {"schema_version": 1}
        for pin in value["tables"]:
            pin["table_path"] = self.session.root.dataset_uri(pin["table_path"])
        self.session.adapter.write_text(f"__recovery/{sidecar.name}", json.dumps(value))
