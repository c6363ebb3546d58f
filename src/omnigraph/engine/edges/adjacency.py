"""Which nodes an edge table connects at one snapshot, as indexes over ordinals; built on first use.

An index belongs to the exact contents of three tables: the edges and both endpoint types. It is built for a
*base* state and kept in files. Later states of the tables are answered by the same index under an overlay of
what was committed since (`engine.edges.overlay`), until so much has changed that a thread folds both.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import numpy as np

from omnigraph.arrays.pairs import heads_of, pack
from omnigraph.core import limits
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.edges.endpoints import EdgeState, EdgeTables, Endpoints, StateKey, resolve
from omnigraph.engine.edges.files import (
    load_base,
    load_ends,
    load_incidence,
    load_neighbours,
    save_ends,
    save_incidence,
    save_neighbours,
)
from omnigraph.engine.edges.overlay import (
    NO_NODE,
    OverlaidIncidence,
    OverlaidNeighbours,
    Packed,
    overlay_incidence,
    overlay_neighbours,
)
from omnigraph.engine.edges.traverse import Incidence, Neighbours, incidence
from omnigraph.engine.tables.cache_work import BACKGROUND
from omnigraph.engine.tables.derived import DerivedCache
from omnigraph.planning.steps import Direction

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnigraph.arrays.types import Ordinals
    from omnigraph.engine.edges.overlay import Ends
    from omnigraph.engine.tables.cache_files import CacheFiles

__all__ = ["AdjacencyCache", "DerivedCache", "EdgeTables", "Endpoints", "PairIndex"]

FOLD_CHANGES_MIN: Final = 50_000
FOLD_SHARE: Final = 0.01
"""An overlay of more changes than both is folded in the background."""
OVERLAY_SHARE_MAX: Final = 0.25
"""An overlay of more changes than this share of the edges is folded at once."""
WIDE_SHARE: Final = 0.25
WIDE_READS_MIN: Final = 3
"""After this many steps from at least this share of the nodes, an overlay is folded in the background,
however small it is: correcting every node costs such a step more than the whole index does.
"""
STATES_KEPT_MAX: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class PairIndex:
    """Distinct neighbours of a base state, and its pairs that several edges make (one entry less each)."""

    index: Neighbours
    repeats: Packed

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.index.nbytes + self.repeats.nbytes


class AdjacencyCache:
    """The adjacency indexes of a process.

    Thread-safety: any method from any thread; readers never wait for a fold.
    """

    def __init__(self, derived: DerivedCache) -> None:
        self._derived = derived
        self._lock = threading.Lock()
        self._bases: dict[tuple[str, str], EdgeTables] = {}
        self._latest: dict[tuple[str, str], EdgeState] = {}
        self._states: OrderedDict[StateKey, EdgeState] = OrderedDict()
        self._wide_reads: dict[tuple[str, str], int] = {}
        """Wide steps over an overlay since the last fold of it, by place."""
        self.built = self.followed = self.folds = self.loaded = 0
        """How often ends were made from whole tables, an overlay from an earlier state, a base from an
        overlay, and a base was found in a file.
        """

    @property
    def bytes_max(self) -> int:
        """The bound of everything that is derived from tables."""
        return self._derived.bytes_max

    # --- what readers ask --------------------------------------------------------------------------------

    def neighbours(self, tables: EdgeTables, direction: Direction) -> Neighbours | OverlaidNeighbours:
        """Distinct neighbours in one direction, or in either."""
        found = self.ready_neighbours(tables, direction)
        if found is not None:
            return found
        state, ends = self._state(tables)
        base = self._pairs(state.base, ends, direction)
        if state.is_base:
            return base.index
        key = (tables.key(), "over neighbours", direction)
        return self._derived.get(
            key, OverlaidNeighbours, lambda: _correct_neighbours(base, state, ends, direction)
        )

    def incidence(self, tables: EdgeTables, direction: Direction) -> Incidence | OverlaidIncidence:
        """Edges in one direction, or in either; a self-loop is given once."""
        found = self.ready_incidence(tables, direction)
        if found is not None:
            return found
        state, ends = self._state(tables)
        base = self._edges(state.base, ends, direction)
        if state.is_base:
            return base
        key = (tables.key(), "over incidence", direction)
        return self._derived.get(
            key, OverlaidIncidence, lambda: _correct_incidence(base, state, ends, direction)
        )

    def ready_neighbours(
        self, tables: EdgeTables, direction: Direction
    ) -> Neighbours | OverlaidNeighbours | None:
        """The neighbours if they are in memory for exactly this state."""
        key = tables.key()
        found = self._derived.peek((key, "neighbours", direction), PairIndex)
        if found is not None:
            return found.index
        return self._derived.peek((key, "over neighbours", direction), OverlaidNeighbours)

    def ready_incidence(
        self, tables: EdgeTables, direction: Direction
    ) -> Incidence | OverlaidIncidence | None:
        """The edges if they are in memory for exactly this state."""
        key = tables.key()
        found = self._derived.peek((key, "incidence", direction), Incidence)
        return found or self._derived.peek((key, "over incidence", direction), OverlaidIncidence)

    def is_ready(self, tables: EdgeTables, direction: Direction, kind: str) -> bool:
        """Whether an index is in memory for exactly this state."""
        key = tables.key()
        return any(self._derived.has((key, each, direction)) for each in (kind, f"over {kind}"))

    def is_near(self, tables: EdgeTables, direction: Direction, kind: str) -> bool:
        """Whether an index costs little now: an earlier state of it is in memory, or a file has it."""
        with self._lock:
            base = self._bases.get(tables.place)
        if base is not None and self._derived.has((base.key(), kind, direction)):
            return True
        files = _files(tables)
        return files is not None and (
            load_base(files, tables, kind, direction) is not None
            or load_base(files, tables, "ends", None) is not None
        )

    def build_later(self, tables: EdgeTables, direction: Direction, kind: str) -> bool:
        """Make an index in the background. False when nobody does such work for this graph."""
        identity = tables.edges.identity
        if _files(tables) is None:
            return False

        def build() -> None:
            self._state(tables, check=lambda: BACKGROUND.check(identity))
            if kind == "neighbours":
                self.neighbours(tables, direction)
            else:
                self.incidence(tables, direction)

        BACKGROUND.submit(identity, ("adjacency", tables.place, kind, direction), build)
        return True

    def followed_from(self, tables: EdgeTables, direction: Direction, nodes: int) -> None:
        """A step went over an overlay from this many nodes."""
        if nodes < max(1, WIDE_SHARE * tables.heads(direction).extent):
            return
        place = tables.place
        with self._lock:
            state = self._states.get(tables.key())
            reads = self._wide_reads.get(place, 0) + 1
            due = state is not None and not state.is_base and reads >= WIDE_READS_MIN
            self._wide_reads[place] = 0 if due else reads
        ends = self._ends(state.base) if due and state is not None else None
        if ends is not None and state is not None:
            self._fold_later(state, ends)

    # --- states ------------------------------------------------------------------------------------------

    def _state(
        self, tables: EdgeTables, check: Callable[[], None] | None = None
    ) -> tuple[EdgeState, Endpoints]:
        """A state with the ends of its base: known, followed from an earlier one, from a file, or built."""
        with self._lock:
            known = self._states.get(tables.key())
        if known is not None:
            ends = self._ends(known.base)
            if ends is not None:
                return known, ends
        with self._lock:
            latest, newest = self._latest.get(tables.place), self._bases.get(tables.place)
        candidates = [] if newest is None else [EdgeState.of_base(newest)]
        if latest is not None and latest.base is newest:
            candidates.insert(0, latest)
        for earlier in candidates:
            found = self._follow(earlier, tables)
            if found is not None:
                return found
        stored = self._stored(tables)
        return stored if stored is not None else self._build(tables, check)

    def _follow(self, earlier: EdgeState, tables: EdgeTables) -> tuple[EdgeState, Endpoints] | None:
        ends = self._ends(earlier.base)
        state = None if ends is None else earlier.then(tables, ends)
        if ends is None or state is None:
            return None
        edges = len(ends.sources)
        if state.changes > max(OVERLAY_SHARE_MAX * edges, 1):
            return self._fold(state, ends)
        self.followed += 1
        self._remember(state)
        if state.changes > max(FOLD_CHANGES_MIN, FOLD_SHARE * edges):
            self._fold_later(state, ends)
        return state, ends

    def _stored(self, tables: EdgeTables) -> tuple[EdgeState, Endpoints] | None:
        """From the cache files: the ends of this state, or of an earlier one that can be followed."""
        files = _files(tables)
        base = None if files is None else load_base(files, tables, "ends", None)
        ends = None if base is None else self._ends(base)
        if base is None or ends is None:
            return None
        self.loaded += 1
        if base.key() == tables.key():
            self._adopt(base)
            return EdgeState.of_base(base), ends
        state = EdgeState.of_base(base).then(tables, ends)
        if state is None or state.changes > max(OVERLAY_SHARE_MAX * len(ends.sources), 1):
            return None
        self._adopt(base)
        self._remember(state)
        return state, ends

    def _build(self, tables: EdgeTables, check: Callable[[], None] | None) -> tuple[EdgeState, Endpoints]:
        def build() -> Endpoints:
            self.built += 1
            return resolve(tables, check)

        ends = self._derived.get((tables.key(), "ends"), Endpoints, build)
        self._adopt(tables)
        self._save(tables, "ends", lambda files: save_ends(files, tables, ends))
        return EdgeState.of_base(tables), ends

    def _fold(self, state: EdgeState, ends: Endpoints) -> tuple[EdgeState, Endpoints]:
        """Make a state its own base, with the indexes its base had."""
        tables = state.tables
        folded = self._derived.get((tables.key(), "ends"), Endpoints, lambda: state.folded(ends))
        for direction in Direction:
            if self._derived.has((state.base.key(), "neighbours", direction)):
                self._pairs(tables, folded, direction)
            if self._derived.has((state.base.key(), "incidence", direction)):
                self._edges(tables, folded, direction)
        self.folds += 1
        self._adopt(tables)
        self._save(tables, "ends", lambda files: save_ends(files, tables, folded))
        return EdgeState.of_base(tables), folded

    def _fold_later(self, state: EdgeState, ends: Endpoints) -> None:
        BACKGROUND.submit(
            state.tables.edges.identity, ("fold", state.tables.place), lambda: self._fold(state, ends)
        )

    def _adopt(self, tables: EdgeTables) -> None:
        """Use a state as the base of later ones, unless there is one of a newer version."""
        with self._lock:
            before = self._bases.get(tables.place)
            if before is not None and _is_newer(before, tables):
                return
            self._bases[tables.place] = tables
        self._remember(EdgeState.of_base(tables))

    def _remember(self, state: EdgeState) -> None:
        with self._lock:
            self._states[state.tables.key()] = state
            while len(self._states) > STATES_KEPT_MAX:
                self._states.popitem(last=False)
            before = self._latest.get(state.tables.place)
            newest = self._bases.get(state.tables.place)
            if state.base is newest and (
                before is None or before.base is not newest or not _is_newer(before.tables, state.tables)
            ):
                self._latest[state.tables.place] = state

    # --- indexes of base states --------------------------------------------------------------------------

    def _ends(self, base: EdgeTables) -> Endpoints | None:
        """The ends of a base: in memory or in a file."""
        key = (base.key(), "ends")
        found = self._derived.peek(key, Endpoints)
        if found is None:
            files = _files(base)
            found = None if files is None else load_ends(files, base)
            if found is not None:
                self._derived.put(key, found)
        return found

    def _pairs(self, base: EdgeTables, ends: Endpoints, direction: Direction) -> PairIndex:
        def build() -> PairIndex:
            files = _files(base)
            stored = None if files is None else load_neighbours(files, base, direction)
            if stored is not None:
                return PairIndex(*stored)
            made = _pair_index(ends, direction, base.heads(direction).extent)
            self._save(
                base,
                f"neighbours {direction}",
                lambda files: save_neighbours(files, base, direction, made.index, made.repeats),
            )
            return made

        return self._derived.get((base.key(), "neighbours", direction), PairIndex, build)

    def _edges(self, base: EdgeTables, ends: Endpoints, direction: Direction) -> Incidence:
        def build() -> Incidence:
            files = _files(base)
            stored = None if files is None else load_incidence(files, base, direction)
            if stored is not None:
                return stored
            heads, tails, edges = _incident(ends, direction)
            made = incidence(heads, tails, edges, base.heads(direction).extent)
            self._save(
                base,
                f"incidence {direction}",
                lambda files: save_incidence(files, base, direction, made),
            )
            return made

        return self._derived.get((base.key(), "incidence", direction), Incidence, build)

    def _save(self, tables: EdgeTables, what: str, save: Callable[[CacheFiles], object]) -> None:
        files = _files(tables)
        if files is not None and files.writable:
            BACKGROUND.submit(tables.edges.identity, ("save", what, tables.place), lambda: save(files))


def _files(tables: EdgeTables) -> CacheFiles | None:
    """The cache files of the graph, when the edge table is large enough for them."""
    if tables.edges.row_count < limits.CACHED_ROWS_MIN:
        return None
    return tables.edges.keys.files_of(tables.edges.identity)


def _is_newer(one: EdgeTables, other: EdgeTables) -> bool:
    """Whether the first shows a later version of the edges than the second, on the same branch."""
    mine, theirs = one.edges.handle, other.edges.handle
    return mine.branch == theirs.branch and mine.version > theirs.version


def _sides(sources: Ends, targets: Ends, direction: Direction) -> list[tuple[Ends, Ends]]:
    match direction:
        case Direction.FORWARD:
            return [(sources, targets)]
        case Direction.BACKWARD:
            return [(targets, sources)]
        case Direction.EITHER:
            return [(sources, targets), (targets, sources)]


def _packed_pairs(sources: Ends, targets: Ends, direction: Direction) -> Packed:
    """The pairs of the living edges; both ways for either direction, a self-loop once."""
    parts: list[Packed] = []
    for number, (heads, tails) in enumerate(_sides(sources, targets, direction)):
        keep = heads >= 0
        if number:
            keep &= heads != tails
        whole = bool(keep.all())
        parts.append(pack(heads if whole else heads[keep], tails if whole else tails[keep]))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _pair_index(ends: Endpoints, direction: Direction, extent: int) -> PairIndex:
    """Cost: one sort of packed pairs; about 26 ns an edge."""
    packed = _packed_pairs(ends.sources, ends.targets, direction)
    packed.sort()
    repeats = packed[:0].copy()
    if len(packed):
        again = packed[1:] == packed[:-1]
        if again.any():
            repeats = packed[1:][again]
            packed = packed[np.r_[True, ~again]]
    offsets = np.zeros(extent + 1, dtype=np.int64)
    heads = heads_of(packed)
    np.cumsum(np.bincount(heads, minlength=extent), out=offsets[1:])
    return PairIndex(Neighbours(offsets, packed.astype(np.uint32)), repeats)


def _incident(ends: Endpoints, direction: Direction) -> tuple[Ordinals, Ordinals, Ordinals]:
    """Heads, tails and edges in one direction, in the order of the edges."""
    parts: list[tuple[Ordinals, Ordinals, Ordinals]] = []
    for number, (heads, tails) in enumerate(_sides(ends.sources, ends.targets, direction)):
        wanted = heads >= 0
        if number:
            wanted &= heads != tails  # the other side of a self-loop is the same edge again
        edges = np.flatnonzero(wanted)
        parts.append((heads[edges].astype(np.int64), tails[edges].astype(np.int64), edges))
    heads, tails, edges = (np.concatenate(column) for column in zip(*parts, strict=True))
    if len(parts) > 1:
        order = np.argsort(edges, kind="stable")
        heads, tails, edges = heads[order], tails[order], edges[order]
    return heads, tails, edges


def _correct_neighbours(
    base: PairIndex, state: EdgeState, ends: Endpoints, direction: Direction
) -> OverlaidNeighbours:
    gone = _packed_pairs(ends.sources[state.dead], ends.targets[state.dead], direction)
    added = _packed_pairs(state.fresh_sources, state.fresh_targets, direction)
    backward = direction is Direction.BACKWARD
    heads, tails = (state.targets, state.sources) if backward else (state.sources, state.targets)
    return overlay_neighbours(base.index, base.repeats, gone, added, heads, tails)


def _correct_incidence(
    base: Incidence, state: EdgeState, ends: Endpoints, direction: Direction
) -> OverlaidIncidence:
    fresh = Endpoints(state.fresh_sources, state.fresh_targets, 0)
    heads_of, tails_of, edges = _incident(fresh, direction)
    added = (heads_of, tails_of, edges + state.base.edges.extent)
    sides = _sides(ends.sources[state.dead], ends.targets[state.dead], direction)
    dead_heads = np.concatenate([heads for heads, _ in sides]).astype(np.int64)
    backward = direction is Direction.BACKWARD
    heads, tails = (state.targets, state.sources) if backward else (state.sources, state.targets)
    return overlay_incidence(base, state.dead, dead_heads[dead_heads != NO_NODE], added, heads, tails)
