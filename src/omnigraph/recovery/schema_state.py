"""Bringing the schema files in line with the manifest after a schema apply died between its steps."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, cast

import orjson

from omnigraph.catalog.ir import from_json
from omnigraph.core.errors import SchemaDrift
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import OperationId, TableKey
from omnigraph.core.late_dataclass import dataclass
from omnigraph.recovery.context import RecoveryContext
from omnigraph.storage.layout import SCHEMA_IR, SCHEMA_SOURCE, SCHEMA_STATE, STAGING_SUFFIX

SCHEMA_FILES: Final = (SCHEMA_SOURCE, SCHEMA_IR, SCHEMA_STATE)
"""In the order a schema apply renames them."""


class SchemaAction(StrEnum):
    """What to do with staged schema files."""

    NOOP = "Noop"
    COMPLETE_RENAME = "CompletedStagingRename"
    """The new schema was published, or will be: put the staged files in place."""
    CLEAN = "CleanedStaging"
    """Nothing of the new schema was published: remove the staged files."""
    REFUSE_MISMATCH = "refuse: the schema source is not the staged one"
    REFUSE_AMBIGUOUS = "refuse: published or not cannot be told"
    REFUSE_UNKNOWN = "refuse: the manifest matches neither schema"


@dataclass(frozen=True, slots=True)
class SchemaFacts:
    """What is there after a schema apply died and left no sidecar: files, hashes, tables."""

    staged: frozenset[str]
    """Which of the three files have a staged copy."""
    source_is_staged_one: bool
    """The live source is the one the staged record names (its rename has happened)."""
    hashes_equal: bool
    live_tables: frozenset[TableKey]
    staged_tables: frozenset[TableKey]
    manifest_tables: frozenset[TableKey]
    published: bool | None
    """Whether the operation the staged record names was published; None when the record names none."""


def decide_schema_state(facts: SchemaFacts) -> SchemaAction:
    """What to do about staged schema files; the first answer that fits.

    The record of the apply says best whether it was published. Without one, the tables of the manifest are
    compared with those of both schemas.
    """
    if not facts.staged:
        return SchemaAction.NOOP
    if SCHEMA_SOURCE not in facts.staged:
        return SchemaAction.COMPLETE_RENAME if facts.source_is_staged_one else SchemaAction.REFUSE_MISMATCH
    if facts.hashes_equal:
        return SchemaAction.CLEAN
    if facts.published is not None:
        return SchemaAction.COMPLETE_RENAME if facts.published else SchemaAction.CLEAN
    if facts.staged_tables == facts.live_tables:
        return SchemaAction.REFUSE_AMBIGUOUS
    if facts.manifest_tables == facts.live_tables:
        return SchemaAction.CLEAN
    if facts.manifest_tables == facts.staged_tables:
        return SchemaAction.COMPLETE_RENAME
    return SchemaAction.REFUSE_UNKNOWN


def staged_schema_files(context: RecoveryContext) -> frozenset[str]:
    """Which schema files have a staged copy. Cost: three probes."""
    return frozenset(name for name in SCHEMA_FILES if context.adapter.exists(name + STAGING_SUFFIX))


def reconcile_schema_state(context: RecoveryContext) -> SchemaAction:
    """Finish or undo the renames of a schema apply that left no sidecar; nothing to do costs three probes.

    Idempotent: a rename whose source is gone has happened. Raises `SchemaDrift` when it cannot be told what
    was published.
    """
    staged = staged_schema_files(context)
    if not staged:
        return SchemaAction.NOOP
    action = decide_schema_state(_facts(context, staged))
    match action:
        case SchemaAction.COMPLETE_RENAME:
            place_staged(context)
        case SchemaAction.CLEAN:
            discard_staged(context)
        case SchemaAction.NOOP:
            pass
        case _:
            raise SchemaDrift(
                f"a schema change was interrupted ({action.value})",
                hint=f"inspect the files ending in '{STAGING_SUFFIX}' and remove them, or put them in place",
            )
    return action


def place_staged(context: RecoveryContext) -> None:
    """Make the staged schema the accepted one. The record goes last: while it is staged, it decides."""
    for name in SCHEMA_FILES:
        if context.adapter.exists(name + STAGING_SUFFIX):
            context.adapter.rename_text(name + STAGING_SUFFIX, name)
            failpoint(Window.SCHEMA_APPLY_BETWEEN_RENAMES)


def discard_staged(context: RecoveryContext) -> None:
    """Remove a staged schema. The record goes first: without it the others mean nothing."""
    for name in reversed(SCHEMA_FILES):
        context.adapter.delete(name + STAGING_SUFFIX)


def staged_by(context: RecoveryContext, operation_id: OperationId) -> str | None:
    """The hash of the schema that an operation staged completely, whether or not it is in place already.

    The record is staged last and put in place last, and names its operation.
    """
    for name in (SCHEMA_STATE + STAGING_SUFFIX, SCHEMA_STATE):
        text = context.adapter.read_text_if_exists(name)
        if text is not None and (state := _json(text)).get("operation_id") == operation_id:
            return state.get("schema_hash")
    return None


def settle_schema_files(context: RecoveryContext, operation_id: OperationId) -> None:
    """Put in place what a settled schema apply had staged if main follows that schema, else remove it.

    Called once the outcome is published. Files that were put in place stay: only a published schema is.
    """
    if not staged_schema_files(context):
        return
    hashed = staged_by(context, operation_id)
    if hashed is not None and context.manifest.current(None).schema_hash == hashed:
        place_staged(context)
    else:
        discard_staged(context)


def _facts(context: RecoveryContext, staged: frozenset[str]) -> SchemaFacts:
    staged_state = _record(context, SCHEMA_STATE, staged)
    live_state = _json(context.adapter.read_text(SCHEMA_STATE))
    manifest = context.manifest.current(None)
    return SchemaFacts(
        staged=staged,
        source_is_staged_one=_live_source_hash(context) == staged_state.get("source_hash"),
        hashes_equal=staged_state.get("schema_hash") == live_state.get("schema_hash"),
        live_tables=_tables(context.adapter.read_text(SCHEMA_IR)),
        staged_tables=_tables(context.adapter.read_text(_staged_or_live(SCHEMA_IR, staged))),
        manifest_tables=frozenset(manifest.entries),
        published=None
        if "schema_hash" not in staged_state
        else _published(staged_state, manifest.schema_hash),
    )


def _published(staged_state: Mapping[str, Any], current_hash: str) -> bool | None:
    """Whether the branch follows the staged schema; None for a record that does not name its operation."""
    if "operation_id" not in staged_state:
        return None
    return staged_state.get("schema_hash") == current_hash


def _live_source_hash(context: RecoveryContext) -> str:
    from omnigraph.catalog.build import compile_schema  # noqa: PLC0415 - only while a schema is applied

    return compile_schema(context.adapter.read_text(SCHEMA_SOURCE)).source_hash


def _staged_or_live(name: str, staged: frozenset[str]) -> str:
    return name + STAGING_SUFFIX if name in staged else name


def _record(context: RecoveryContext, name: str, staged: frozenset[str]) -> Mapping[str, Any]:
    return _json(context.adapter.read_text(_staged_or_live(name, staged)))


def _json(text: str) -> Mapping[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise SchemaDrift("the record of the accepted schema is damaged", hint="restore it from a backup")
    return cast("dict[str, Any]", value)


def _tables(compiled: str) -> frozenset[TableKey]:
    return frozenset(TableKey(key) for key in from_json(compiled).table_keys())
