"""Sidecars: the durable note a writer leaves before it moves the first table."""

import json
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, cast

from omnigraph.core.errors import InternalError, SidecarSchemaError
from omnigraph.core.errors.base import said
from omnigraph.core.events import SidecarDeleted, SidecarWritten, Warned, emit
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.formats import CONFIRMATION_SCHEMA_VERSION, SIDECAR_SCHEMA_VERSION
from omnigraph.core.ids import Branch, BranchName, CommitId, OperationId, TableKey
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import SIDECAR_BYTES_MAX
from omnigraph.manifest.commit_record import RequestKey
from omnigraph.storage.checksums import is_whole, sealed
from omnigraph.storage.layout import RECOVERY, is_inside, location_below_any_root
from omnigraph.storage.objects import PreparedText, StorageAdapter


class WriterKind(StrEnum):
    """Which writer left the sidecar."""

    MUTATION = "Mutation"
    LOAD = "Load"
    SCHEMA_APPLY = "SchemaApply"
    BRANCH_MERGE = "BranchMerge"
    ENSURE_INDICES = "EnsureIndices"
    OPTIMIZE = "Optimize"


@dataclass(frozen=True, slots=True)
class SidecarPin:
    """One table the writer is about to commit to."""

    table_key: TableKey
    table_path: str
    """Relative to the graph root: a graph may be moved between the write and its recovery."""
    expected_version: int
    """The pin when the writer started."""
    post_commit_pin: int
    """The HEAD the writer expects: exact for one-commit writers, a lower bound for the others."""
    confirmed_version: int | None = None
    table_branch: Branch = None
    """The Lance branch where the commits land."""


@dataclass(frozen=True, slots=True)
class SidecarRegistration:
    """A table a schema apply is about to register."""

    table_key: TableKey
    table_path: str
    """Relative to the graph root."""
    table_branch: Branch = None


@dataclass(frozen=True, slots=True)
class SidecarTombstone:
    """A table a schema apply is about to remove from the graph."""

    table_key: TableKey
    tombstone_version: int


@dataclass(frozen=True, slots=True)
class SidecarSwitch:
    """A table whose shown version a merge changes without writing rows: it must change together with the
    others.
    """

    table_key: TableKey
    table_path: str
    """Relative to the graph root."""
    expected_version: int
    table_version: int
    table_branch: Branch = None


@dataclass(frozen=True, slots=True)
class SidecarRead:
    """A table the writer only read: its result holds only as long as this version is shown."""

    table_key: TableKey
    expected_version: int


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What one operation intends to do to which tables."""

    operation_id: OperationId
    started_at_us: int
    branch: Branch
    """The graph branch the operation publishes to."""
    actor: str | None
    writer_kind: WriterKind
    tables: tuple[SidecarPin, ...]
    merge_source_commit_id: CommitId | None = None
    additional_registrations: tuple[SidecarRegistration, ...] = ()
    tombstones: tuple[SidecarTombstone, ...] = ()
    switches: tuple[SidecarSwitch, ...] = ()
    reads: tuple[SidecarRead, ...] = ()
    schema_hash: str | None = None
    """The schema the branch follows afterwards, where the write does not change the accepted one."""
    requests: int = 1
    keys: tuple[RequestKey, ...] = ()
    """What the commit record says about the calls the write carries; a recovery commit says it as well."""
    schema_version: int = SIDECAR_SCHEMA_VERSION

    @property
    def name(self) -> str:
        """The object's name inside `__recovery/`."""
        return f"{self.operation_id}.json"

    @property
    def changes_accepted_schema(self) -> bool:
        """Whether it is that of a schema apply; on a branch the writer only adopts a schema."""
        return self.writer_kind is WriterKind.SCHEMA_APPLY and self.branch is None

    def queue_keys(self) -> tuple[tuple[TableKey, Branch], ...]:
        """The write queues its writer holds for the sidecar's whole life, without the schema-apply key."""
        return tuple((pin.table_key, pin.table_branch) for pin in self.tables)

    def unwritten_ground(self) -> dict[TableKey, int]:
        """The versions its result was worked out on, of tables it commits no rows to."""
        return {each.table_key: each.expected_version for each in (*self.reads, *self.switches)}

    def covers(self, table_key: TableKey, branch: Branch) -> bool:
        """Whether this sidecar pins the table on that branch."""
        return any(pin.table_key == table_key and pin.table_branch == branch for pin in self.tables)


def to_text(sidecar: Sidecar) -> str:
    """The JSON object of a sidecar; optional members are left out when empty."""
    value: dict[str, Any] = {
        "schema_version": sidecar.schema_version,
        "operation_id": sidecar.operation_id,
        "started_at": str(sidecar.started_at_us),
        "branch": sidecar.branch,
        "actor_id": sidecar.actor,
        "writer_kind": sidecar.writer_kind.value,
        "tables": [_pin_value(pin) for pin in sidecar.tables],
    }
    if sidecar.merge_source_commit_id is not None:
        value["merge_source_commit_id"] = sidecar.merge_source_commit_id
    if sidecar.additional_registrations:
        value["additional_registrations"] = [
            _without_empty(
                {
                    "table_key": each.table_key,
                    "table_path": each.table_path,
                    "table_branch": each.table_branch,
                }
            )
            for each in sidecar.additional_registrations
        ]
    if sidecar.tombstones:
        value["tombstones"] = [
            {"table_key": each.table_key, "tombstone_version": each.tombstone_version}
            for each in sidecar.tombstones
        ]
    if sidecar.switches:
        value["switches"] = [
            _without_empty(
                {
                    "table_key": each.table_key,
                    "table_path": each.table_path,
                    "expected_version": each.expected_version,
                    "table_version": each.table_version,
                    "table_branch": each.table_branch,
                }
            )
            for each in sidecar.switches
        ]
    if sidecar.schema_hash is not None:
        value["schema_hash"] = sidecar.schema_hash
    if sidecar.reads:
        value["reads"] = [
            {"table_key": each.table_key, "expected_version": each.expected_version} for each in sidecar.reads
        ]
    if sidecar.requests != 1:
        value["requests"] = sidecar.requests
    if sidecar.keys:
        value["keys"] = [each.to_list() for each in sidecar.keys]
    return json.dumps(value, ensure_ascii=False)


def parse_sidecar(name: str, text: str) -> Sidecar:
    """Read a sidecar of any version we know; members we do not know are ignored.

    Raises `SidecarSchemaError` naming the object when it is not valid JSON, lacks a member, has one of the
    wrong type, or comes from a newer version (then with the version found and the greatest supported).
    """
    version = _read_version(name, text)
    if version > SIDECAR_SCHEMA_VERSION:
        raise SidecarSchemaError(
            object=name,
            found=version,
            max_supported_version=SIDECAR_SCHEMA_VERSION,
            message=f"recovery note '{name}' has version {version}; "
            f"this program understands versions up to {SIDECAR_SCHEMA_VERSION}",
        )
    if not is_whole(text):
        raise SidecarSchemaError(
            object=name,
            message=f"recovery note '{name}' is malformed: it holds other bytes than were written",
        )
    try:
        sidecar = _from_members(_Members(json.loads(text)), version)
    except _MalformedError as reason:
        raise SidecarSchemaError(
            object=name, message=f"recovery note '{name}' is malformed: {reason}"
        ) from None
    if sidecar.name != name:
        message = f"recovery note '{name}' is malformed: it belongs to operation '{sidecar.operation_id}'"
        raise SidecarSchemaError(object=name, message=message)
    return sidecar


def _read_version(name: str, text: str) -> int:
    if len(text) > SIDECAR_BYTES_MAX:
        raise SidecarSchemaError(object=name, message=f"recovery note '{name}' is malformed: it is too large")
    try:
        value = json.loads(text)
        version = value["schema_version"]
    except (ValueError, TypeError, KeyError, RecursionError):
        version = None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise SidecarSchemaError(
            object=name, message=f"recovery note '{name}' is not valid JSON with a version"
        )
    return version


class _MalformedError(Exception):
    """A member is missing or has the wrong type."""


class _Members:
    """The members of one JSON object, read with the type they must have."""

    def __init__(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise _MalformedError("an object was expected")
        self._value = cast("dict[str, Any]", value)

    def text(self, member: str) -> str:
        value = self._required(member)
        if not isinstance(value, str) or not value:
            raise _MalformedError(f"'{member}' must be text")
        return value

    def optional_text(self, member: str) -> str | None:
        return None if self._value.get(member) is None else self.text(member)

    def number(self, member: str) -> int:
        value = self._required(member)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise _MalformedError(f"'{member}' must be a number")
        return value

    def optional_number(self, member: str) -> int | None:
        return None if self._value.get(member) is None else self.number(member)

    def objects(self, member: str, *, required: bool) -> list["_Members"]:
        value: Any = self._required(member) if required else self._value.get(member) or []
        if not isinstance(value, list):
            raise _MalformedError(f"'{member}' must be a list")
        return [_Members(each) for each in cast("list[Any]", value)]

    def keys(self) -> tuple[RequestKey, ...]:
        value: Any = self._value.get("keys") or []
        try:
            return tuple(RequestKey.from_list(each) for each in value)
        except (TypeError, ValueError):
            raise _MalformedError("'keys' must be a list of keys") from None

    def _required(self, member: str) -> Any:
        if member not in self._value:
            raise _MalformedError(f"'{member}' is missing")
        return self._value[member]


def _branch(name: str | None) -> Branch:
    return None if name is None else BranchName(_inside(name))


def _inside(name: str) -> str:
    """A name that becomes a path: recovery must not be led out of the graph."""
    if not is_inside(name):
        raise _MalformedError(f"'{name}' is not below the graph")
    return name


def _from_members(members: _Members, version: int) -> Sidecar:
    started_at = members.text("started_at")
    kind = members.text("writer_kind")
    if not started_at.isdecimal():
        raise _MalformedError("'started_at' must be microseconds as decimal text")
    if kind not in set(WriterKind):
        raise _MalformedError(f"the writer kind '{kind}' is unknown")
    source = members.optional_text("merge_source_commit_id")
    return Sidecar(
        operation_id=OperationId(members.text("operation_id")),
        started_at_us=int(started_at),
        branch=_branch(members.optional_text("branch")),
        actor=members.optional_text("actor_id"),
        writer_kind=WriterKind(kind),
        tables=tuple(_pin(each, version) for each in members.objects("tables", required=True)),
        merge_source_commit_id=None if source is None else CommitId(source),
        additional_registrations=tuple(
            SidecarRegistration(
                TableKey(each.text("table_key")),
                _inside(each.text("table_path")),
                _branch(each.optional_text("table_branch")),
            )
            for each in members.objects("additional_registrations", required=False)
        ),
        tombstones=tuple(
            SidecarTombstone(TableKey(each.text("table_key")), each.number("tombstone_version"))
            for each in members.objects("tombstones", required=False)
        ),
        switches=tuple(
            SidecarSwitch(
                TableKey(each.text("table_key")),
                _inside(each.text("table_path")),
                each.number("expected_version"),
                each.number("table_version"),
                _branch(each.optional_text("table_branch")),
            )
            for each in members.objects("switches", required=False)
        ),
        reads=tuple(
            SidecarRead(TableKey(each.text("table_key")), each.number("expected_version"))
            for each in members.objects("reads", required=False)
        ),
        schema_hash=members.optional_text("schema_hash"),
        requests=members.optional_number("requests") or 1,
        keys=members.keys(),
        schema_version=version,
    )


def _pin(members: _Members, version: int) -> SidecarPin:
    # Version 1 knows no confirmation: a member of that name would mean something else there.
    confirmed = (
        members.optional_number("confirmed_version") if version >= CONFIRMATION_SCHEMA_VERSION else None
    )
    return SidecarPin(
        table_key=TableKey(members.text("table_key")),
        # Earlier programs wrote the full address.
        table_path=_inside(location_below_any_root(members.text("table_path"))),
        expected_version=members.number("expected_version"),
        post_commit_pin=members.number("post_commit_pin"),
        confirmed_version=confirmed,
        table_branch=_branch(members.optional_text("table_branch")),
    )


def _pin_value(pin: SidecarPin) -> dict[str, Any]:
    return _without_empty(
        {
            "table_key": pin.table_key,
            "table_path": pin.table_path,
            "expected_version": pin.expected_version,
            "post_commit_pin": pin.post_commit_pin,
            "confirmed_version": pin.confirmed_version,
            "table_branch": pin.table_branch,
        }
    )


def _without_empty(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: member for name, member in value.items() if member is not None}


class SidecarStore:
    """The pending sidecars of one graph.

    Every write is atomic and, on local disk, durable before the call returns. Failures are never swallowed.
    """

    def __init__(self, adapter: StorageAdapter) -> None:
        self._adapter = adapter

    def write(self, sidecar: Sidecar) -> None:
        """Phase A: make the intent durable. When this raises, no table may be moved."""
        failpoint(Window.RECOVERY_SIDECAR_WRITE)
        self._adapter.write_text(_path(sidecar.name), sealed(to_text(sidecar)))
        emit(SidecarWritten(sidecar.operation_id))

    def prepare(self, sidecar: Sidecar) -> PreparedText:
        """Write the sidecar durably under a name no listing shows; it covers nothing yet."""
        return self._adapter.prepare_text(_path(sidecar.name), sealed(to_text(sidecar)))

    def write_prepared(self, sidecar: Sidecar, prepared: PreparedText) -> None:
        """Phase A for a prepared sidecar: give it its name, durably. When this raises, no table may move."""
        failpoint(Window.RECOVERY_SIDECAR_WRITE)
        self._adapter.place_text(prepared)
        emit(SidecarWritten(sidecar.operation_id))

    def discard_prepared(self, prepared: PreparedText) -> None:
        """Remove a prepared sidecar that will not be written."""
        self._adapter.discard_text(prepared)

    def unfinished(self, *, age_s_min: float) -> tuple[PreparedText, ...]:
        """Sidecars that were begun at least `age_s_min` ago and never got their name; they cover nothing."""
        found = self._adapter.unfinished(RECOVERY, age_s_min=age_s_min)
        return tuple(each for each in found if each.name.endswith(".json"))

    def confirm_sidecar_phase_b(self, sidecar: Sidecar, achieved: Mapping[TableKey, int]) -> Sidecar:
        """Write the sidecar again with the version every pinned table reached; a merge's commit point.

        Raises `InternalError` naming the tables when one has no achieved version; nothing is written then.
        """
        missing = [pin.table_key for pin in sidecar.tables if pin.table_key not in achieved]
        if missing:
            raise InternalError(
                f"the merge cannot be confirmed, no version is known of: {', '.join(missing)}"
            )
        pins = tuple(replace(pin, confirmed_version=achieved[pin.table_key]) for pin in sidecar.tables)
        confirmed = replace(sidecar, tables=pins)
        failpoint(Window.RECOVERY_SIDECAR_CONFIRM)
        self._adapter.write_text(_path(confirmed.name), sealed(to_text(confirmed)))
        emit(SidecarWritten(confirmed.operation_id))
        return confirmed

    def delete(self, operation_id: OperationId) -> None:
        """Phase D. Deleting what is gone is fine."""
        failpoint(Window.RECOVERY_SIDECAR_DELETE)
        self._adapter.delete(_path(f"{operation_id}.json"))
        emit(SidecarDeleted(operation_id))

    def delete_or_warn(self, operation_id: OperationId) -> bool:
        """Phase D after a successful publish: a failure is a warning, the write has succeeded.

        The next write's heal or the next open consumes what is left. Returns whether the sidecar is gone.
        """
        try:
            self.delete(operation_id)
        except Exception as error:  # noqa: BLE001 the write is visible; whatever went wrong here is not its failure
            emit(
                Warned(
                    "a recovery note of a finished write could not be deleted",
                    f"{operation_id}: {said(error)}",
                )
            )
            return False
        return True

    def list(self) -> tuple[str, ...]:
        """The names of the pending sidecars, oldest first. Cost: one listing."""
        failpoint(Window.RECOVERY_SIDECAR_LIST)
        names = self._adapter.list_dir(RECOVERY)
        return tuple(sorted(name for name in names if name.endswith(".json")))

    def read(self, name: str) -> Sidecar | None:
        """Read one sidecar; None when its writer deleted it meanwhile."""
        text = self._adapter.read_text_if_exists(_path(name))
        return None if text is None else parse_sidecar(name, text)

    def pending(self) -> tuple[Sidecar, ...]:
        """Every pending sidecar, oldest first. One that vanishes between listing and reading has finished."""
        names = self.list()
        if names:
            failpoint(Window.RECOVERY_POST_LIST_PRE_READ)
        return tuple(sidecar for name in names if (sidecar := self.read(name)) is not None)


def operation_of(name: str) -> OperationId:
    """The operation a sidecar of this name belongs to."""
    return OperationId(name.removesuffix(".json"))


def _path(name: str) -> str:
    return f"{RECOVERY}/{name}"
