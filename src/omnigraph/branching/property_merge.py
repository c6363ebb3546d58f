"""Which side changed which property of the rows that both sides changed, and what conflicts show of them.

A property whose values differ is the source's where every base has the target's value, the target's where
every base has the source's, and open otherwise. Some properties go together: both ends of an edge, and a text
with the vectors that were computed from it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from omnigraph.arrays.addresses import ABSENT
from omnigraph.branching.equality import chunk_rows, column_groups, columns_differ, read_rows
from omnigraph.branching.merge_plan import AS_OURS, AS_THEIRS, DisputedProperty
from omnigraph.branching.settling import Divided
from omnigraph.catalog.blobs import REFERENCE
from omnigraph.catalog.schema import EdgeType
from omnigraph.engine.read.result import json_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Addresses, Mask
    from omnigraph.branching.merge_plan import Collisions
    from omnigraph.branching.settling import Settled
    from omnigraph.catalog.schema import TableType
    from omnigraph.storage.handles import SnapshotHandle
    from omnigraph.storage.tables import TableStorage

_BLOB_SHOWN_MAX: Final = 64
"""Bytes of a blob that a conflict shows as they are; of a larger one it shows the size and a digest."""
_Place: TypeAlias = "tuple[SnapshotHandle | None, Addresses]"
"""A table version and rows of it; `ABSENT` for those that are elsewhere."""
_NOTHING_DIVIDED: Final = Divided((), *(np.empty((0, 0), np.bool_) for _ in range(3)))


@dataclass(frozen=True, slots=True)
class Sides:
    """The versions of one table that a merge compares."""

    storage: TableStorage
    theirs: SnapshotHandle
    ours: SnapshotHandle | None
    bases: Sequence[SnapshotHandle | None]

    def groups(self) -> list[list[pa.Field]]:
        """The columns of either side without the identity: the light ones at once, then the heavy ones."""
        ours = self.theirs if self.ours is None else self.ours
        found = column_groups(self.theirs.schema, ours.schema)
        return [group for fields in found if (group := [each for each in fields if each.name != "id"])]


def divide(
    sides: Sides, collisions: Collisions, *, together: Sequence[Sequence[str]], whole: Mask
) -> Divided:
    """Who changed which property of each collision. In rows marked `whole` every difference is open.

    Cost: the rows both sides changed in different ways, on every side, in bounded pieces.
    """
    if len(collisions) == 0:
        return _NOTHING_DIVIDED
    groups = sides.groups()
    names = tuple(field.name for fields in groups for field in fields)
    differ = np.zeros((len(collisions), len(names)), np.bool_)
    as_theirs, as_ours = np.ones_like(differ), np.ones_like(differ)
    chosen, first = np.flatnonzero(collisions.both), 0
    for fields in groups:
        columns = slice(first, first := first + len(fields))
        step = chunk_rows(fields)
        for start in range(0, len(chosen), step):
            rows = chosen[start : start + step]
            found = _compare(sides, collisions, rows, fields)
            differ[rows, columns], as_theirs[rows, columns], as_ours[rows, columns] = found
    for group in together:
        members = [names.index(name) for name in group if name in names]
        for matrix, join in ((differ, np.any), (as_theirs, np.all), (as_ours, np.all)):
            matrix[:, members] = join(matrix[:, members], axis=1, keepdims=True)
    open_ = np.where(whole[:, None], differ, differ & ~as_theirs & ~as_ours)
    return Divided(names, differ, differ & as_ours & ~open_, open_)


def _compare(
    sides: Sides, collisions: Collisions, rows: NDArray[np.int64], fields: Sequence[pa.Field]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Where the sides differ, and where every base has the source's value, or the target's."""
    if sides.ours is None:
        raise AssertionError  # a table the target does not have cannot have collisions
    theirs = read_rows(sides.storage, sides.theirs, collisions.theirs[rows], fields)
    ours = read_rows(sides.storage, sides.ours, collisions.ours[rows], fields)
    differ = columns_differ(theirs, ours)
    as_theirs, as_ours = np.ones_like(differ), np.ones_like(differ)
    for handle, addresses in zip(sides.bases, collisions.bases, strict=True):
        at = addresses[rows]
        there, here = np.zeros_like(differ), np.zeros_like(differ)  # a base without the row has no value
        there[at == AS_THEIRS], here[at == AS_OURS] = True, True
        there[at == AS_OURS], here[at == AS_THEIRS] = ~differ[at == AS_OURS], ~differ[at == AS_THEIRS]
        stored = np.flatnonzero(_is_address(at))
        if len(stored) and handle is not None:
            places = pa.array(stored)
            base = read_rows(sides.storage, handle, at[stored], fields)
            there[stored] = ~columns_differ(base, theirs.take(places))
            here[stored] = ~columns_differ(base, ours.take(places))
        as_theirs &= there
        as_ours &= here
    return differ, as_theirs, as_ours


def _is_address(at: Addresses) -> Mask:
    return (at != ABSENT) & (at != AS_THEIRS) & (at != AS_OURS)


def going_together(table_type: TableType) -> list[tuple[str, ...]]:
    """The groups of properties that a merge takes from one side."""
    groups: dict[str, list[str]] = {}
    for prop in table_type.properties:
        if prop.embed is not None:
            groups.setdefault(prop.embed.source, [prop.embed.source]).append(prop.name)
    ends = [("src", "dst")] if isinstance(table_type, EdgeType) else []
    return [*ends, *map(tuple, groups.values())]


# --- what conflicts show -------------------------------------------------------------------------------


def with_properties(sides: Sides, settled: Settled) -> Settled:
    """The open conflicts with the values of the properties they are about: the open ones, or what one side
    changed in a row that the other deleted. Cost: the rows of the open conflicts.
    """
    undecided, disputed = settled.undecided, settled.disputed
    if undecided is None or disputed is None or not len(undecided):
        return settled
    shown: list[list[DisputedProperty]] = [[] for _ in settled.conflicts]
    places: dict[str, list[_Place]] = {
        "base": _base_places(sides, undecided),
        "ours": [(sides.ours, undecided.ours)],
        "theirs": [(sides.theirs, undecided.theirs)],
    }
    for fields in sides.groups():
        columns = [disputed.names.index(field.name) for field in fields]
        for start in range(0, len(undecided), step := chunk_rows(fields)):
            rows = slice(start, start + step)
            found = {
                role: _gathered(sides.storage, [(handle, at[rows]) for handle, at in where], fields)
                for role, where in places.items()
            }
            wanted = disputed.open[rows][:, columns] | _changed_beside_deletion(found)
            _tell(found, wanted, fields, shown[rows])
    named = zip(settled.conflicts, shown, strict=True)
    return replace(settled, conflicts=tuple(replace(each, properties=tuple(of)) for each, of in named))


def _base_places(sides: Sides, collisions: Collisions) -> list[_Place]:
    """Where the rows of the first base that has them are."""
    places: list[_Place] = []
    found = np.zeros(len(collisions), np.bool_)
    for handle, at in zip(sides.bases, collisions.bases, strict=True):
        here: list[_Place] = [
            (handle, np.where(_is_address(at) & ~found, at, ABSENT)),
            (sides.theirs, np.where((at == AS_THEIRS) & ~found, collisions.theirs, ABSENT)),
            (sides.ours, np.where((at == AS_OURS) & ~found, collisions.ours, ABSENT)),
        ]
        for _, addresses in here:
            found |= addresses != ABSENT
        places += here
    return places


def _gathered(
    storage: TableStorage, places: Sequence[_Place], fields: Sequence[pa.Field]
) -> tuple[pa.Table, Mask]:
    """Rows from several tables in their order, and which of them there are; the others are null."""
    at = np.full(len(places[0][1]), -1, np.int64)
    parts = [pa.schema(list(fields)).empty_table()]
    filled = 0
    for handle, addresses in places:
        rows = np.flatnonzero(addresses != ABSENT)
        if handle is not None and len(rows):
            parts.append(read_rows(storage, handle, addresses[rows], fields))
            at[rows] = filled + np.arange(len(rows))
            filled += len(rows)
    there = at >= 0
    return pa.concat_tables(parts).take(pa.array(at, mask=~there)), there


def _changed_beside_deletion(found: Mapping[str, tuple[pa.Table, Mask]]) -> NDArray[np.bool_]:
    """What one side changed in rows that the other deleted."""
    (base, _), (ours, here), (theirs, there) = (found[role] for role in ("base", "ours", "theirs"))
    changed_here = columns_differ(base, ours) & (here & ~there)[:, None]
    return changed_here | (columns_differ(base, theirs) & (there & ~here)[:, None])


def _tell(
    found: Mapping[str, tuple[pa.Table, Mask]],
    wanted: NDArray[np.bool_],
    fields: Sequence[pa.Field],
    shown: Sequence[list[DisputedProperty]],
) -> None:
    """Add the wanted values of one piece to what is shown of each conflict."""
    for number, field in enumerate(fields):
        rows = np.flatnonzero(wanted[:, number])
        if not len(rows):
            continue
        places = pa.array(rows)
        values = {role: _json(rows_.column(number).take(places)) for role, (rows_, _) in found.items()}
        there = {role: present[rows].tolist() for role, (_, present) in found.items()}
        for at, row in enumerate(rows.tolist()):
            of_row = {role: values[role][at] for role in found if there[role][at]}
            shown[row].append(DisputedProperty(field.name, of_row))


def _json(column: Any) -> list[Any]:
    """Values as JSON says them. Of a large blob its size and a digest, enough to tell blobs apart."""
    if not pa.types.is_large_binary(column.type):
        return json_values(column)
    cells: list[bytes | None] = column.to_pylist()
    said = [
        cell if cell is None or len(cell) <= _BLOB_SHOWN_MAX or cell.startswith(REFERENCE) else None
        for cell in cells
    ]
    texts = json_values(pa.array(said, pa.large_binary()))
    return [
        text if text is not None or cell is None else _digest(cell)
        for text, cell in zip(texts, cells, strict=True)
    ]


def _digest(cell: bytes) -> str:
    return f"{len(cell):,} bytes, sha256 {hashlib.sha256(cell).hexdigest()[:16]}"
