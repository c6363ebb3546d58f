"""Bringing the schema files in line with the manifest after a schema apply died between its steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, cast

import orjson

from omnigraph.catalog.ir import from_json
from omnigraph.core.errors import SchemaDrift
from omnigraph.core.ids import TableKey
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
    """What is there after a schema apply died: files, sidecar, hashes, tables."""

    staged: frozenset[str]
    """Which of the three files have a staged copy."""
    sidecar_present: bool
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
    if facts.sidecar_present:
        return SchemaAction.COMPLETE_RENAME
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


@dataclass(frozen=True, slots=True)
class SchemaReconciled:
    """What was done."""

    action: SchemaAction

    @property
    def promoted(self) -> bool:
        """Whether staged files were put in place."""
        return self.action is SchemaAction.COMPLETE_RENAME


def staged_schema_files(context: RecoveryContext) -> frozenset[str]:
    """Which schema files have a staged copy. Cost: three probes."""
    return frozenset(name for name in SCHEMA_FILES if context.adapter.exists(name + STAGING_SUFFIX))


def reconcile_schema_state(context: RecoveryContext, *, sidecar_present: bool) -> SchemaReconciled:
    """Finish or undo the renames of a dead schema apply; nothing to do costs three probes.

    `sidecar_present`: a sidecar of a schema apply exists, so the staged files belong to it. Idempotent: a
    rename whose source is gone has happened. Raises `SchemaDrift` when it cannot be told what was published.
    """
    staged = staged_schema_files(context)
    if not staged:
        return SchemaReconciled(SchemaAction.NOOP)
    action = SchemaAction.COMPLETE_RENAME if sidecar_present else decide_schema_state(_facts(context, staged))
    match action:
        case SchemaAction.COMPLETE_RENAME:
            for name in SCHEMA_FILES:
                if name in staged:
                    context.adapter.rename_text(name + STAGING_SUFFIX, name)
        case SchemaAction.CLEAN:
            for name in SCHEMA_FILES:
                context.adapter.delete(name + STAGING_SUFFIX)
        case SchemaAction.NOOP:
            pass
        case _:
            raise SchemaDrift(
                f"a schema change was interrupted ({action.value})",
                hint=f"inspect the files ending in '{STAGING_SUFFIX}' and remove them, or put them in place",
            )
    return SchemaReconciled(action)


def accepted_operation(context: RecoveryContext) -> tuple[str | None, str | None]:
    """The operation that put the live schema files in place, if they say so, and the hash of that schema."""
    state = _json(context.adapter.read_text(SCHEMA_STATE))
    return state.get("operation_id"), state.get("schema_hash")


def _facts(context: RecoveryContext, staged: frozenset[str]) -> SchemaFacts:
    staged_state = _record(context, SCHEMA_STATE, staged)
    live_state = _json(context.adapter.read_text(SCHEMA_STATE))
    manifest = context.manifest.current(None)
    return SchemaFacts(
        staged=staged,
        sidecar_present=False,
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
