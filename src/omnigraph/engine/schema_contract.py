"""The accepted schema of a graph: its source, its compiled form, and the record that ties them together."""

import functools
import hashlib
import threading
from typing import Any, Final

import orjson

from omnigraph.catalog.ir import from_json, schema_hash, shape_hash, to_json
from omnigraph.catalog.schema import Catalog
from omnigraph.core.errors import Corrupt, InternalError, OmnigraphError, SchemaContractMissing, SchemaDrift
from omnigraph.core.formats import SCHEMA_STATE_FORMAT
from omnigraph.core.ids import OperationId
from omnigraph.core.late_dataclass import dataclass
from omnigraph.manifest.clone_marker import refuse_unfinished_clone
from omnigraph.storage.layout import SCHEMA_IR, SCHEMA_SOURCE, SCHEMA_STATE, STAGING_SUFFIX, schema_name
from omnigraph.storage.objects import StorageAdapter

CATALOGS_KEPT_MAX: Final = 16
_OBJECTS: Final = (SCHEMA_SOURCE, SCHEMA_IR, SCHEMA_STATE)
_SOURCE: Final = (SCHEMA_SOURCE,)


@dataclass(frozen=True, slots=True)
class SchemaContract:
    """The accepted schema: text, catalog, and the hash of its meaning."""

    source: str
    catalog: Catalog
    hash: str


def accept_schema(source: str, *, file: str | None = None) -> SchemaContract:
    """Compile a schema for a new graph."""
    from omnigraph.catalog.build import compile_schema  # noqa: PLC0415 - most processes compile no schema

    catalog = compile_schema(source, file=file)
    return SchemaContract(source, catalog, schema_hash(catalog))


def write_contract(adapter: StorageAdapter, contract: SchemaContract) -> None:
    """Write everything but the source, which a creator claims first. Overwrites what a dead creator left."""
    compiled = to_json(contract.catalog)
    adapter.write_text(schema_name(contract.hash), compiled)
    adapter.write_text(SCHEMA_IR, compiled)
    adapter.write_text(SCHEMA_STATE, state_text(contract))


def stage_contract(adapter: StorageAdapter, contract: SchemaContract, operation_id: OperationId) -> None:
    """Write a schema beside the accepted one. The record comes last: it says that the others are complete."""
    compiled = to_json(contract.catalog)
    adapter.write_text(schema_name(contract.hash), compiled)
    adapter.write_text(SCHEMA_SOURCE + STAGING_SUFFIX, contract.source)
    adapter.write_text(SCHEMA_IR + STAGING_SUFFIX, compiled)
    adapter.write_text(SCHEMA_STATE + STAGING_SUFFIX, state_text(contract, operation_id))


def state_text(contract: SchemaContract, operation_id: OperationId | None = None) -> str:
    """The hash record of an accepted schema, with the operation that made it one."""
    applied_by = {} if operation_id is None else {"operation_id": operation_id}
    return orjson.dumps(
        {
            "format": SCHEMA_STATE_FORMAT,
            "schema_hash": contract.hash,
            "source_hash": contract.catalog.source_hash,
            **applied_by,
        }
    ).decode()


class SchemaContracts:
    """Reads the accepted schema and keeps it while the three objects do not change. Thread-safe."""

    def __init__(self, adapter: StorageAdapter) -> None:
        self._adapter = adapter
        self._lock = threading.Lock()
        self._seen: tuple[object, ...] | None = None
        self._source_seen: tuple[object, ...] | None = None
        self._contract: SchemaContract | None = None
        self._catalogs: dict[str, Catalog] = {}

    def current(self) -> SchemaContract:
        """The accepted schema. Cost when nothing changed: three probes.

        Raises `SchemaContractMissing` when an object is gone and `SchemaDrift` when the source does not
        compile to the accepted schema. A source that differs in comments and layout only is accepted.
        """
        seen = self._adapter.identities(_OBJECTS)
        with self._lock:
            if self._contract is not None and seen == self._seen:
                return self._contract
        source_seen = self._adapter.identities(_SOURCE)
        contract = self._read_or_staged()
        with self._lock:
            self._contract, self._seen, self._source_seen = contract, seen, source_seen
            self._catalogs[contract.hash] = contract.catalog
        return contract

    def latest(self) -> SchemaContract:
        """The accepted schema as it was last seen, without a probe; whoever asks has looked at the source."""
        return self._contract or self.current()

    def check_source(self) -> None:
        """Raise as `current` does when the source is not the accepted schema. Cost: one probe if unchanged.

        Enough for a read, whose snapshot names the compiled schema it follows by its hash.
        """
        seen = self._source_seen
        if seen is None or self._adapter.identities(_SOURCE) != seen:
            self.current()

    def catalog(self, wanted: str) -> Catalog:
        """The compiled schema with this hash: the accepted one, or one that a branch still follows."""
        with self._lock:
            known = self._catalogs.get(wanted)
        if known is not None:
            return known
        text = self._adapter.read_text_if_exists(schema_name(wanted))
        if text is None:
            raise SchemaContractMissing(schema_name(wanted))
        catalog, hashed = _compiled(text)
        if hashed != wanted:
            raise Corrupt(schema_name(wanted))
        with self._lock:
            if len(self._catalogs) >= CATALOGS_KEPT_MAX:
                self._catalogs.clear()
            self._catalogs[wanted] = catalog
        return catalog

    def _read_or_staged(self) -> SchemaContract:
        """The accepted schema; while its files are being put in place, those that are not yet."""
        try:
            return self._read(frozenset())
        except (SchemaDrift, SchemaContractMissing):
            staged = frozenset(name for name in _OBJECTS if self._adapter.exists(name + STAGING_SUFFIX))
            # The record is put in place last, the source first: before that the old files are complete.
            if SCHEMA_STATE not in staged or SCHEMA_SOURCE in staged:
                return self._read(frozenset())
            return self._read(staged)

    def _read(self, staged: frozenset[str]) -> SchemaContract:
        source = self._text(SCHEMA_SOURCE)
        accepted, hashed = _compiled(self._text(SCHEMA_IR, staged))
        state = _state(self._text(SCHEMA_STATE, staged))
        if hashed != state:
            raise SchemaDrift(
                "the compiled schema of the graph does not match its record",
                hint="restore the schema files from a backup",
            )
        if hashlib.sha256(source.encode()).hexdigest() != accepted.source_hash:
            _require_same_meaning(source, accepted)
        return SchemaContract(source, accepted, hashed)

    def _text(self, name: str, staged: frozenset[str] = frozenset()) -> str:
        text = self._adapter.read_text_if_exists(name + STAGING_SUFFIX) if name in staged else None
        if text is None:  # not staged, or put in place since
            text = self._adapter.read_text_if_exists(name)
        if text is None:
            refuse_unfinished_clone(self._adapter)
            raise SchemaContractMissing(name)
        return text


@functools.lru_cache(CATALOGS_KEPT_MAX)
def _compiled(text: str) -> tuple[Catalog, str]:
    """A stored schema and its hash; kept, for a process opens the same graph more than once."""
    catalog = from_json(text)
    return catalog, schema_hash(catalog)


_DRIFT_HINT: Final = (
    "put the accepted text back into `_schema.pg`; another schema is accepted by `omnigraph schema apply`"
)


def _require_same_meaning(source: str, accepted: Catalog) -> None:
    """A text other than the accepted one must compile to the accepted schema."""
    from omnigraph.catalog.build import compile_schema  # noqa: PLC0415

    try:
        compiled = compile_schema(source)
    except OmnigraphError as error:
        raise SchemaDrift(
            f"the schema file of the graph no longer compiles: {error.message}", hint=_DRIFT_HINT
        ) from error
    if shape_hash(compiled) != shape_hash(accepted):
        raise SchemaDrift("the schema file of the graph is not the accepted schema", hint=_DRIFT_HINT)


def _state(text: str) -> str:
    try:
        value: Any = orjson.loads(text)
        return str(value["schema_hash"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InternalError(f"'{SCHEMA_STATE}' is damaged: it names no schema") from error
