"""Creating a graph. The graph exists from the one swap that writes the first state of its manifest."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from omnigraph.catalog.schema import TableType
from omnigraph.catalog.types import IndexKind
from omnigraph.core.clock import SYSTEM_CLOCK, Clock
from omnigraph.core.errors import (
    AlreadyInitialized,
    InitializationClaimed,
    InitializationCommitted,
    InitializationIndeterminate,
    InternalError,
)
from omnigraph.core.errors.base import said
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import CommitId, OperationId, TableKey, new_ulid, refuse_reserved_actor
from omnigraph.core.settings import Settings
from omnigraph.engine.schema_contract import SchemaContract, accept_schema, write_contract
from omnigraph.engine.session import GraphSession, connect_storage
from omnigraph.manifest.clone_marker import read_marker
from omnigraph.manifest.commit_record import CommitRecord
from omnigraph.manifest.state import TableEntry
from omnigraph.storage.checksums import FileSum
from omnigraph.storage.handles import Stamp
from omnigraph.storage.indexes import IndexKind as PhysicalIndex
from omnigraph.storage.indexes import IndexPlan
from omnigraph.storage.layout import (
    SCHEMA_IR,
    SCHEMA_SOURCE,
    SCHEMA_STATE,
    schema_name,
    table_location,
)
from omnigraph.storage.text_analysis import analyser_options

if TYPE_CHECKING:
    from omnigraph.engine.search.embedding import Embedder

CREATE_THREADS: Final = 4


def create_graph(
    uri: str,
    schema: str,
    *,
    schema_file: str | None = None,
    actor: str | None = None,
    force: bool = False,
    settings: Settings | None = None,
    storage_options: Mapping[str, str] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    embedder: "Embedder | None" = None,
) -> GraphSession:
    """Create an empty graph with this schema and open it.

    Raises `AlreadyInitialized` when a graph is there, `InitializationClaimed` when another creation runs or
    died (`force` takes over what a dead one left), `InitializationCommitted` when something failed after the
    graph existed, `InitializationIndeterminate` when nobody can tell whether it does. A failure before the
    graph exists removes what was written.
    """
    refuse_reserved_actor(actor)
    contract = accept_schema(schema, file=schema_file)
    root, chosen, adapter = connect_storage(uri, settings=settings, storage_options=storage_options)
    session = GraphSession(root, settings=chosen, adapter=adapter, clock=clock, embedder=embedder)
    session.manifest.drop_unfinished_creation()
    if session.manifest.exists():
        raise AlreadyInitialized(root.uri)
    _refuse_clone(session)
    if force:
        _remove_contract(session, contract)
    _claim(session, contract)
    try:
        failpoint(Window.INIT_AFTER_SCHEMA_PG_WRITTEN)
        write_contract(adapter, contract)
        failpoint(Window.INIT_AFTER_SCHEMA_CONTRACT_WRITTEN)
        _create_tables_and_manifest(session, contract, actor)
        failpoint(Window.INIT_AFTER_COORDINATOR_INIT)
        session.schemas.current()
    except BaseException as error:
        if not _exists(session, error):
            _remove_contract(session, contract)
            raise
        # A graph whose manifest exists is complete: its files are not ours to remove any more.
        if not isinstance(error, Exception):
            raise
        raise InitializationCommitted(
            f"the graph at '{root.uri}' was created; what came after that failed: {said(error)}",
            hint="open it; do not init again",
        ) from error
    return session


def _exists(session: GraphSession, cause: BaseException) -> bool:
    """Whether a creation that stopped has made its graph. Raises when that cannot be told."""
    try:
        return session.manifest.exists()
    except Exception as error:
        if not isinstance(cause, Exception):
            raise cause from error
        raise InitializationIndeterminate(
            f"whether the graph at '{session.root.uri}' was created cannot be told ({said(error)}); it failed"
            f" because of: {said(cause)}",
            hint="look at it with `omnigraph verify` when the storage answers; neither init nor delete first",
        ) from cause


def _refuse_clone(session: GraphSession) -> None:
    marker = read_marker(session.adapter)
    if marker is not None:
        raise InitializationClaimed(
            f"'{session.root.uri}' holds an unfinished clone of '{marker.source}'",
            hint="clone it again, which goes on from there, or choose another place",
        )


def _claim(session: GraphSession, contract: SchemaContract) -> None:
    """The schema source is the claim: whoever creates it creates the graph."""
    if session.adapter.write_text_if_absent(SCHEMA_SOURCE, contract.source):
        return
    if session.manifest.exists():
        raise AlreadyInitialized(session.root.uri)
    raise InitializationClaimed(
        f"'{session.root.uri}' is being created by another process, or its creation was interrupted",
        hint="make sure that none runs, then init with force",
    )


def _remove_contract(session: GraphSession, contract: SchemaContract) -> None:
    # The claim goes last: until then nobody else starts on the same place.
    for name in (SCHEMA_STATE, SCHEMA_IR, schema_name(contract.hash), SCHEMA_SOURCE):
        session.adapter.delete(name)


def _create_tables_and_manifest(session: GraphSession, contract: SchemaContract, actor: str | None) -> None:
    operation_id = OperationId(new_ulid())
    types = {TableKey(each.table_key): each for each in contract.catalog.tables()}
    keys = list(types)

    def create(key: TableKey) -> tuple[TableEntry, list[FileSum]]:
        return _create_table(session, types[key], operation_id)

    made = session.map_tables(create, keys, threads=CREATE_THREADS)
    genesis = CommitRecord(
        id=CommitId(new_ulid()),
        parents=(),
        actor=actor,
        operation="init",
        time_us=session.clock.now_us(),
        home=None,
        manifest_version=0,
        schema_hash=contract.hash,
        operation_id=operation_id,
    )
    files = [each for _, sums in made for each in sums]
    session.manifest.create([entry for entry, _ in made], genesis, files)


def _create_table(
    session: GraphSession, table_type: TableType, operation_id: OperationId
) -> tuple[TableEntry, list[FileSum]]:
    key = TableKey(table_type.table_key)
    location = table_location(key)
    # No manifest names anything here: what lies below is left from a creation that died.
    session.adapter.delete_prefix(location)
    stamp = Stamp(operation_id, key)
    handle = session.storage.create_table(
        key, location, table_type.arrow_schema, stamp, index_plans(table_type, on_empty=True)
    )
    session.storage.make_durable([handle])
    made = session.storage.transaction_of(location, None, handle.version)
    if made is None:
        raise InternalError(f"the table of '{table_type.name}' vanished while it was created")
    return TableEntry(key, location, handle.version, None, 0, made.uuid), session.storage.sums([handle])


def index_plans(table_type: TableType, *, on_empty: bool = False) -> list[IndexPlan]:
    """The physical indexes of a type; `on_empty`: only those that must exist before the first row.

    Full-text search needs some inverted index to exist, and finds rows it does not cover yet.
    """
    return [
        IndexPlan(
            PhysicalIndex[spec.kind.name],
            spec.column,
            analyser_options(spec.text) if spec.kind is IndexKind.INVERTED else {},
        )
        for spec in table_type.index_specs
        if not on_empty or spec.kind is IndexKind.INVERTED
    ]
