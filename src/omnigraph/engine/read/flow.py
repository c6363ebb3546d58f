"""The rows of a match in pieces, and equal rows as one.

A step is run for so many rows at a time that what it makes fits a piece. The pieces are put together again
while that stays small; otherwise the steps that follow are run for what there is before the next piece is
made. So no step holds all that it makes, however much that is. Pieces of a step over indexes in memory run
side by side (`engine.read.threads`).

Where nothing but counts and exact sums is wanted, a row whose variables are equal to another's need not exist
twice: it has a weight. Variables that nobody reads any more are dropped at once, and what was several rows
becomes one. So counts of parts that share no variable multiply instead of being unrolled, and a chain of hops
costs one pass over the edges of each.
"""

from __future__ import annotations

import itertools
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from omnigraph.arrays.weights import summed, times, total
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.edges.traverse import Incidence, Neighbours, lengths_of, spans
from omnigraph.engine.read import threads
from omnigraph.engine.read.access import incidence, neighbours
from omnigraph.engine.read.frame import WEIGHT, Frame
from omnigraph.engine.read.limits import ORDINAL_BYTES, PAIR_ORDINALS
from omnigraph.engine.read.measures import most_of
from omnigraph.engine.read.pieces import PIECE_SHARE
from omnigraph.planning import steps as plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Ordinals
    from omnigraph.engine.edges.traverse import AnyIncidence, AnyNeighbours
    from omnigraph.engine.read.match import Matcher

FLOW_ROWS: Final = 1 << 17
"""About how many rows a step makes at a time. What threads make and forget of twice as many, the memory
allocator gives back to the system and takes again, which costs a third more.
"""
ROW_ORDINALS: Final = 8
"""What a row is taken to have, for the size of a piece."""
UNKNOWN_ROWS: Final = 1 << 16
"""Rows that a step is given at a time when nobody knows what it makes of them."""
PATH_ROWS: Final = 1 << 10
"""Rows whose paths are sought at a time: each may look at the whole graph."""
UNCUT_ROWS: Final = 16
"""So few rows are not worth a look at what they lead to."""
SKEW: Final = 8
"""Rows that lead to less than a piece, were their nodes so many times busier than others, are not cut."""
MERGED_ROWS_MIN: Final = 64
"""Fewer rows are not put together."""
DENSE_SHARE: Final = 16
"""Equal ordinals are found through a table that has at most this many slots for each row."""


class Mode(StrEnum):
    """What equal rows mean to those who read them."""

    ROWS = "each counts by itself"
    COUNTS = "they are one row with a weight"
    SET = "they are one row"


class Parts(NamedTuple):
    """Consecutive rows that a step is given at a time."""

    slices: list[slice]
    side_by_side: bool = False
    """Whether it is arithmetic over arrays in memory, which threads do at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """The steps of one block, run in pieces."""

    matcher: Matcher
    steps: Sequence[plan.Step]
    needed: Sequence[frozenset[str]]
    """For each step the variables that are wanted after it."""
    mode: Mode

    @property
    def piece(self) -> int:
        """About how many rows a step makes at a time: so many that a few pieces fit the memory limit."""
        most = self.matcher.reading.limits.memory_bytes_max // (PIECE_SHARE * ORDINAL_BYTES * ROW_ORDINALS)
        return min(FLOW_ROWS, max(most, 1))

    @property
    def uncut(self) -> int:
        """So many rows a step makes at once: a little more than a piece is not worth two."""
        return self.piece if self.piece < FLOW_ROWS else 2 * FLOW_ROWS

    def frames(self, frame: Frame, at: int = 0) -> Iterator[Frame]:
        """The rows of the frame joined with every way to match the steps from `at` on, in pieces."""
        for number in range(at, len(self.steps)):
            parts = self._parts(self.steps[number], frame)
            if parts is None:
                frame = self._run(number, frame)
                continue
            made: list[Frame] = []
            rows = 0
            self.matcher.whole = frame.rows
            for after in self._made(number, frame, parts):
                made.append(after)
                rows += after.rows
                if rows <= self.piece:
                    continue
                merged = self._merged(made)
                made, rows = [merged], merged.rows
                if rows > self.piece // 2:
                    yield from self.frames(merged, number + 1)
                    made, rows = [], 0
            self.matcher.whole = 0
            if not made:
                return
            frame = self._merged(made)
        yield frame

    # --- pieces ------------------------------------------------------------------------------------------

    def _made(self, number: int, frame: Frame, parts: Parts) -> Iterator[Frame]:
        """What a step makes of each part, in order."""
        matcher = self.matcher
        one_by_one = matcher.beside or matcher.reading.trace is not None or threads.THREADS == 1
        if one_by_one or not parts.side_by_side or len(parts.slices) == 1:
            for part in parts.slices:
                yield self._run(number, frame.part(part))
            return

        def beside(part: slice) -> Frame:
            flow = Flow(matcher.aside(threads.THREADS), self.steps, self.needed, self.mode)
            return flow._run(number, frame.part(part))

        yield from threads.side_by_side(
            parts.slices, beside, lambda part: self._run(number, frame.part(part))
        )

    def _parts(self, step: plan.Step, frame: Frame) -> Parts | None:
        """The rows to give to a step at a time; None: all of them."""
        if frame.rows <= UNCUT_ROWS:
            return None
        match step:
            case plan.Scan():
                if self._is_factor(step):
                    return None
                return self._product(step, frame)
            case plan.Expand(closes=True) if step.edge_variable is None and step.single:
                return self._asked(step, frame)
            case plan.Expand() if step.single:
                if frame.rows * self._degree(step) * SKEW < self.piece or self._is_few(frame, (step,)):
                    return None
                return self._cuts(frame, self._lengths(step, frame))
            case plan.Intersect() if self._is_few(frame, step.arms):
                return None
            case plan.Intersect():
                lengths = [self._lengths(arm, frame) for arm in step.arms]
                known = [each for each in lengths if each is not None]
                cuts = self._cuts(frame, np.minimum.reduce(known) if known else None)
                return cuts if cuts is None or len(known) == len(lengths) else Parts(cuts.slices)
            case plan.Expand() | plan.Maybe():
                return _slices(frame.rows, UNKNOWN_ROWS)
            case plan.Paths():
                return _slices(frame.rows, PATH_ROWS)
            case _:
                return None

    def _is_few(self, frame: Frame, arms: Sequence[plan.Expand]) -> bool:
        """Whether a step makes no more than a piece, however busy the nodes of the rows are."""
        most = (most_of(self.matcher.reading, arm) for arm in arms)
        return any(each is not None and frame.rows * each <= self.piece for each in most)

    def _asked(self, step: plan.Expand, frame: Frame) -> Parts | None:
        """Many rows that are asked whether they are connected: as many parts as there are threads."""
        if frame.rows <= self.piece // 2 or self._lengths(step, frame) is None:
            return None
        return _slices(frame.rows, -(-frame.rows // threads.THREADS), side_by_side=True)

    def _product(self, step: plan.Scan, frame: Frame) -> Parts | None:
        """The rows to join with all that a scan finds at a time. Refused when it would be too many in all:
        looking at every pair takes longer than anybody waits.
        """
        limits, found = self.matcher.reading.limits, max(len(self.matcher.found(step)), 1)
        limits.step, limits.width = step, PAIR_ORDINALS + len(frame.columns)
        limits.claim(frame.rows * found)
        return _slices(frame.rows, max(self.piece // found, 1))

    def _cuts(self, frame: Frame, lengths: Ordinals | None) -> Parts | None:
        if lengths is None:
            return _slices(frame.rows, UNKNOWN_ROWS)
        ends = np.cumsum(lengths)
        made = ends.item(-1)
        if made <= self.uncut:
            return None
        size = min(self.piece, -(-made // threads.THREADS))
        places = np.searchsorted(ends, np.arange(size, made, size), side="right")
        edges = np.unique(np.concatenate([[0], places, [frame.rows]])).tolist()
        slices = [slice(begin, end) for begin, end in itertools.pairwise(edges)]
        return Parts(slices, side_by_side=True) if len(slices) > 1 else None

    def _lengths(self, step: plan.Expand, frame: Frame) -> Ordinals | None:
        """How much each row leads to; None where that is not known."""
        return lengths_of(self._index(step, frame.rows), frame[step.start])

    def _degree(self, step: plan.Expand) -> float:
        tables = self.matcher.reading.edge_tables(step.edge)
        return tables.edges.row_count / max(tables.heads(step.direction).row_count, 1)

    def _index(self, step: plan.Expand, rows: int) -> AnyNeighbours | AnyIncidence:
        reading, rows = self.matcher.reading, max(rows, self.matcher.whole)
        if step.edge_variable is None:
            return neighbours(reading, step, rows)
        return incidence(reading, step, rows)

    def _merged(self, frames: list[Frame]) -> Frame:
        if len(frames) == 1:
            return frames[0]
        if any(WEIGHT in frame for frame in frames):
            frames = [
                frame if WEIGHT in frame else frame.bind(WEIGHT, np.ones(frame.rows, np.int64))
                for frame in frames
            ]
        return self._joined(Frame.joined(frames))

    # --- steps -------------------------------------------------------------------------------------------

    def _run(self, number: int, frame: Frame) -> Frame:
        step, keep = self.steps[number], self.needed[number]
        if self.mode is Mode.COUNTS:
            counted = self._counted(step, frame, keep)
            if counted is not None:
                return counted
        before = frame.columns.keys()
        after = self.matcher.run((step,), frame, (keep,)).among(keep)
        if self.mode is Mode.ROWS or not (before - after.columns.keys()):
            return after
        return self._joined(after)

    def _counted(self, step: plan.Step, frame: Frame, keep: frozenset[str]) -> Frame | None:
        """What a step makes without making its rows; None where it has to make them."""
        match step:
            case plan.Scan() if frame.rows and (frame.columns or frame.rows > 1) and self._is_factor(step):
                factor = len(self.matcher.found(step))
                return self._weighed(step, frame, np.full(frame.rows, factor, np.int64), keep)
            case plan.Expand(closes=False, test=None) if step.single and frame.rows:
                index = self._index(step, frame.rows)
                if not keep.intersection(step.binds):
                    lengths = lengths_of(index, frame[step.start])
                    return None if lengths is None else self._weighed(step, frame, lengths, keep)
                if not isinstance(index, Neighbours | Incidence):
                    return None
                if keep.intersection(frame.columns) or step.edge_variable in keep:
                    return None
                return self._gathered(step, frame, index)
            case plan.Maybe() if frame.rows and not keep.intersection(step.binds):
                return self._weighed(step, frame, np.maximum(self._matches(step, frame), 1), keep)
            case _:
                return None

    def _is_factor(self, step: plan.Scan) -> bool:
        """Whether a scan only multiplies: nobody reads its variable."""
        position = next(number for number, each in enumerate(self.steps) if each is step)
        return self.mode is Mode.COUNTS and step.variable not in self.needed[position]

    def _weighed(self, step: plan.Step, frame: Frame, factors: Ordinals, keep: frozenset[str]) -> Frame:
        """The rows, each as often as it leads on."""
        with self._measured(step) as done:
            after = frame.among(keep)
            dropped = len(after.columns) < len(frame.columns)
            after = after.bind(WEIGHT, times(frame.weights, factors)).keep(factors > 0)
            after = self._joined(after) if dropped else after
            done(self._told(after))
        return after

    def _gathered(self, step: plan.Expand, frame: Frame, index: Neighbours | Incidence) -> Frame:
        """The ends of a hop alone, each once, with the weights of all that lead to it."""
        with self._measured(step) as done:
            lengths, where = spans(index.offsets, frame[step.start], self.matcher.reading.limits.claim)
            ends = index.tails[where]
            weights = frame.weights
            if weights is not None:
                weights = np.repeat(weights, lengths)
            after = _dense(step.end, ends, weights)
            done(self._told(after))
        return after

    def _matches(self, step: plan.Maybe, frame: Frame) -> Ordinals:
        """How often the inner steps match each row."""
        row = "#row"
        inner = Flow(self.matcher, step.steps, plan.needed_after(step.steps, frozenset({row})), Mode.COUNTS)
        rest = {name: column for name, column in frame.columns.items() if name != WEIGHT}
        numbered = Frame(frame.rows, {**rest, row: np.arange(frame.rows, dtype=np.int64)})
        matches = np.zeros(frame.rows, np.int64)
        for made in inner.frames(numbered):
            matches += summed(made[row], made.weights, frame.rows)
        return matches

    def _measured(self, step: plan.Step) -> AbstractContextManager[Callable[[int], None]]:
        limits = self.matcher.reading.limits
        limits.step, limits.width = step, PAIR_ORDINALS
        limits.check()
        return self.matcher.reading.measured(step)

    def _told(self, frame: Frame) -> int:
        """How many rows a step made, for those who measure."""
        if self.matcher.reading.trace is None:
            return 0
        return total(frame.weights, frame.rows)

    # --- equal rows --------------------------------------------------------------------------------------

    def _joined(self, frame: Frame) -> Frame:
        """The rows with those that are equal put together, as far as that is cheap."""
        if self.mode is Mode.ROWS or frame.rows < MERGED_ROWS_MIN:
            return frame
        names = [name for name in frame.columns if name != WEIGHT]
        weights = frame.weights if self.mode is Mode.COUNTS else None
        if not names:
            one = {WEIGHT: np.array([total(weights, frame.rows)])} if self.mode is Mode.COUNTS else {}
            return Frame(1, one)
        if len(names) == 1:
            column = frame[names[0]]
            if column.min() >= 0 and column.max() <= DENSE_SHARE * frame.rows:
                if self.mode is Mode.COUNTS:
                    return _dense(names[0], column, weights)
                return Frame.of(names[0], np.flatnonzero(np.bincount(column)))
        return self._runs(frame, names, weights)

    def _runs(self, frame: Frame, names: list[str], weights: Ordinals | None) -> Frame:
        """The rows with those put together that follow each other."""
        changes = np.zeros(frame.rows, dtype=np.bool_)
        changes[0] = True
        for name in names:
            column = frame[name]
            changes[1:] |= column[1:] != column[:-1]
        first = np.flatnonzero(changes)
        if len(first) > frame.rows * 3 // 4:
            return frame
        merged = {name: frame[name][first] for name in names}
        if self.mode is Mode.COUNTS:
            ends = np.append(first[1:], frame.rows)
            if weights is None:
                merged[WEIGHT] = ends - first
            else:
                total(weights, frame.rows)
                merged[WEIGHT] = np.add.reduceat(weights, first)
        return Frame(len(first), merged)


def _dense(name: str, ordinals: NDArray[np.integer], weights: Ordinals | None) -> Frame:
    """Each ordinal once, with its weight."""
    counts = summed(ordinals, weights, 0)
    present = np.flatnonzero(counts)
    return Frame(len(present), {name: present, WEIGHT: counts[present]})


def _slices(rows: int, size: int, *, side_by_side: bool = False) -> Parts | None:
    if rows <= size:
        return None
    return Parts([slice(at, min(at + size, rows)) for at in range(0, rows, size)], side_by_side)
