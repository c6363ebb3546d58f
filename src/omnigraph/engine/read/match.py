"""Running the steps of a match over working rows."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, assert_never

import numpy as np

from omnigraph.arrays.weights import total
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.edges.traverse import connected, expand, expand_edges, intersect, reach, reached
from omnigraph.engine.read.access import incidence, neighbours, pair_filter, scanned
from omnigraph.engine.read.flow import Flow, Mode
from omnigraph.engine.read.frame import FEW_ROWS, Frame, distinct_rows, first_places
from omnigraph.engine.read.limits import ORDINAL_BYTES, PAIR_ORDINALS
from omnigraph.engine.read.measures import most_of
from omnigraph.engine.read.operands import condition_holds
from omnigraph.engine.read.paths import with_paths
from omnigraph.engine.read.pieces import PIECE_ROWS, SEARCHES, fetches_of, pieces
from omnigraph.planning import ir, mentions
from omnigraph.planning import steps as plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnigraph.arrays.pair_filter import PairFilter
    from omnigraph.arrays.types import Mask, Ordinals
    from omnigraph.engine.edges.traverse import AnyNeighbours
    from omnigraph.engine.read.reading import Reading


def _numbered(frame: Frame) -> tuple[str, Frame]:
    """The rows with a hidden variable that numbers them, and its name.

    No query can spell the name, and a block inside a block gets another one.
    """
    name = f"#row{len(frame.columns)}"
    return name, frame.bind(name, np.arange(frame.rows, dtype=np.int64))


def _by_row(condition: ir.Condition) -> tuple[ir.Operand, ...] | None:
    """The operands of a condition whose answer for a row follows from that row; None of a search, which is
    answered for all rows at once.
    """
    operands = mentions.operands_of(condition)
    return None if any(isinstance(operand, SEARCHES) for operand in operands) else operands


def _filters(steps: Sequence[plan.Step]) -> int:
    """How many of the next steps look at each row by itself."""
    count = 0
    for step in steps:
        if not isinstance(step, plan.Test) and (
            not isinstance(step, plan.Filter) or _by_row(step.condition) is None
        ):
            break
        count += 1
    return count


@dataclass(slots=True, eq=False)
class Matcher:
    """Runs the steps of one query over working rows."""

    reading: Reading
    as_set: bool = False
    """Whether equal rows may be one row: nothing that follows counts them."""
    whole: int = 0
    """How many rows a step is run for in all, when it is given a part of them."""
    scans: dict[plan.Scan, Ordinals] = field(default_factory=dict[plan.Scan, "Ordinals"])
    """What scans found: the same for all parts."""
    beside: bool = False
    """Whether it runs a part beside others."""

    def aside(self, others: int) -> Matcher:
        """One that runs a part on a thread beside so many, with its share of the memory."""
        return Matcher(self.reading.aside(others), self.as_set, self.whole, self.scans, beside=True)

    def found(self, step: plan.Scan) -> Ordinals:
        """The nodes that a scan binds."""
        if step not in self.scans:
            self.scans[step] = scanned(self.reading, step)
        return self.scans[step]

    def run(
        self, steps: Sequence[plan.Step], frame: Frame, needed: Sequence[frozenset[str] | None] | None = None
    ) -> Frame:
        """The rows of `frame` joined with every way to match the steps.

        `needed` names for each step the variables that are still wanted after it; the others are dropped.
        """
        limits = self.reading.limits
        through = 0
        for number, step in enumerate(steps):
            if number < through:
                continue  # done with the product before it
            keep = None if needed is None else needed[number]
            kept = len(frame.columns) if keep is None else sum(name in keep for name in frame.columns)
            limits.step, limits.width = step, PAIR_ORDINALS + kept
            limits.held_bytes = frame.rows * ORDINAL_BYTES * len(frame.columns)
            limits.check()
            if isinstance(step, plan.Scan) and frame.rows > 1:
                through = number + 1 + _filters(steps[number + 1 :])
                after = None if needed is None else needed[number + 1 : through]
                frame = self._product(step, frame, steps[number + 1 : through], after)
            else:
                with self.reading.measured(step) as done:
                    frame = self._step(step, frame, keep)
                    done(frame.rows if self.reading.trace is None else total(frame.weights, frame.rows))
        return frame

    def _step(self, step: plan.Step, frame: Frame, keep: frozenset[str] | None) -> Frame:
        match step:
            case plan.Scan():
                return self._scan(step, frame)
            case plan.Expand():
                return self._expand(step, frame, keep)
            case plan.Intersect():
                return self._intersect(step, frame, keep)
            case plan.Filter():
                mask = self._true(step.condition, frame)
                return (frame if keep is None else frame.among(keep)).keep(mask)
            case plan.Test():
                return frame.keep(self.reading.holds(step.node, step.test, frame[step.variable]))
            case plan.Paths():
                return with_paths(self.reading, step, frame, keep, self.whole)
            case plan.Nothing():
                return self._bind_nothing(step.binds, frame)
            case plan.Maybe():
                return self._maybe(step, frame)
            case plan.Without():
                return self._without(step, frame)
            case _:
                assert_never(step)

    def _true(self, condition: ir.Condition, frame: Frame) -> Mask:
        """The rows for which a condition is true; the values of many rows are compared in pieces."""
        reading = self.reading
        operands = None if frame.rows <= FEW_ROWS else _by_row(condition)
        constant = isinstance(condition, ir.Comparison) and plan.constant_test(condition) is not None
        if operands is None or constant:  # `Reading.holds` has pieces of its own
            return condition_holds(reading, condition, frame)
        mask = np.empty(frame.rows, dtype=np.bool_)
        for part in pieces(reading, frame.rows, fetches_of(reading, operands, frame)):
            mask[part] = condition_holds(reading, condition, frame.part(part))
        return mask

    def _scan(self, step: plan.Scan, frame: Frame) -> Frame:
        ordinals = self.found(step)
        self.reading.limits.claim(frame.rows * max(len(ordinals), 1))
        if frame.rows == 1 and not frame.columns:
            return Frame(len(ordinals), {step.variable: ordinals})
        return frame.product(step.variable, ordinals, self.reading.limits.check)

    def _product(
        self,
        step: plan.Scan,
        frame: Frame,
        filters: Sequence[plan.Step],
        needed: Sequence[frozenset[str] | None] | None,
    ) -> Frame:
        """Every row with every entity that a scan binds; of those the rows that pass the filters after it.

        Made for some rows at a time: what the filters drop is never held, and the limits are looked at.
        """
        measured = self.reading.measured
        with measured(step):
            ordinals = self.found(step)
        limits = self.reading.limits
        limits.claim(frame.rows * max(len(ordinals), 1))
        size = max(PIECE_ROWS // max(len(ordinals), 1), 1) if filters else frame.rows
        kept: list[Frame] = []
        for begin in range(0, frame.rows, size):
            part = frame if frame.rows <= size else frame.part(slice(begin, begin + size))
            with measured(step) as done:
                wide = part.product(step.variable, ordinals, limits.check)
                done(wide.rows)
            kept.append(self.run(filters, wide, needed))
        return kept[0] if len(kept) == 1 else Frame.joined(kept)

    def _expand(self, step: plan.Expand, frame: Frame, keep: frozenset[str] | None) -> Frame:
        if not frame.rows:
            return self._bind_nothing(step.binds, frame)
        if step.edge_variable is not None:
            return self._expand_edges(step, frame)
        if step.closes:
            return self._close(step, frame)
        index = neighbours(self.reading, step, max(frame.rows, self.whole))
        claim = self.reading.limits.claim
        base = frame if keep is None else frame.among(keep)
        if not step.single:
            rows, found = self._reach(index, step, frame)
            return self._tested(step, base.take(rows).bind(step.end, found))
        if base.columns:
            rows, found = expand(index, frame[step.start], claim)
            return self._tested(step, base.take(rows).bind(step.end, found))
        found = reached(index, frame[step.start], claim)
        if self.as_set and len(found) > FEW_ROWS:
            found = found[first_places(found)]
        return self._tested(step, Frame(len(found), {step.end: found}))

    def _expand_edges(self, step: plan.Expand, frame: Frame) -> Frame:
        assert step.edge_variable is not None  # noqa: S101 - the caller asked
        index = incidence(self.reading, step, max(frame.rows, self.whole))
        rows, found, edges = expand_edges(index, frame[step.start], self.reading.limits.claim)
        wide = frame.take(rows).bind(step.edge_variable, edges)
        if step.closes:
            return wide.keep(frame[step.end][rows] == found)
        return self._tested(step, wide.bind(step.end, found))

    def _close(self, step: plan.Expand, frame: Frame) -> Frame:
        """Both ends are bound: keep the rows where the second is reached from the first."""
        index = neighbours(self.reading, step, max(frame.rows, self.whole))
        if step.single:
            pairs = pair_filter(self.reading, step, index, frame.rows)
            return frame.keep(connected(index, frame[step.start], frame[step.end], pairs))
        rows, found = self._reach(index, step, frame)
        mask = np.zeros(frame.rows, dtype=np.bool_)
        mask[rows[found == frame[step.end][rows]]] = True
        return frame.keep(mask)

    def _intersect(self, step: plan.Intersect, frame: Frame, keep: frozenset[str] | None) -> Frame:
        """Bind a variable to what the nodes of each row have in common."""
        if not frame.rows:
            return self._bind_nothing(step.binds, frame)
        reading, rows = self.reading, max(frame.rows, self.whole)
        indexes = [neighbours(reading, arm, rows) for arm in step.arms]

        def filtered(arm: int) -> PairFilter | None:
            return pair_filter(reading, step.arms[arm], indexes[arm], rows)

        heads = [frame[arm.start] for arm in step.arms]
        single = (number for number, arm in enumerate(step.arms) if most_of(reading, arm) == 1)
        at, found = intersect(indexes, heads, reading.limits.claim, filtered, next(single, None))
        wide = (frame if keep is None else frame.among(keep)).take(at).bind(step.end, found)
        if step.node is None or step.test is None:
            return wide
        return wide.keep(reading.holds(step.node, step.test, found))

    def _reach(self, index: AnyNeighbours, step: plan.Expand, frame: Frame) -> tuple[Ordinals, Ordinals]:
        claim = self.reading.limits.claim
        return reach(index, frame[step.start], step.low, step.high, claim, backward=step.backward)

    def _tested(self, step: plan.Expand, frame: Frame) -> Frame:
        if step.node is None or step.test is None:
            return frame
        return frame.keep(self.reading.holds(step.node, step.test, frame[step.end]))

    def _bind_nothing(self, binds: Sequence[str], frame: Frame) -> Frame:
        empty = frame.take(np.empty(0, dtype=np.int64))
        for name in binds:
            if name not in empty:
                empty = empty.bind(name, np.empty(0, dtype=np.int64))
        return empty

    def _maybe(self, step: plan.Maybe, frame: Frame) -> Frame:
        row, numbered = _numbered(frame)
        matched = self.run(step.steps, numbered)
        missing = np.ones(frame.rows, dtype=np.bool_)
        missing[matched[row]] = False
        rest = numbered.keep(missing) if missing.any() else numbered.take(np.empty(0, dtype=np.int64))
        order = np.argsort(np.concatenate([matched[row], rest[row]]), kind="stable")
        names = [*frame.columns, *step.binds]
        nothing = np.full(rest.rows, -1, dtype=np.int64)
        columns: dict[str, Ordinals] = {
            name: np.concatenate([matched[name], rest.columns.get(name, nothing)])[order] for name in names
        }
        return Frame(len(order), columns)

    def _without(self, step: plan.Without, frame: Frame) -> Frame:
        """Drop the rows for which the inner steps match. Each combination of what they mention is asked once,
        unless asking costs no more than finding the combinations.
        """
        member = None
        asked = frame.only(step.mentions)
        if not all(_only_keeps(inner) for inner in step.steps):
            first, member = distinct_rows([frame[name] for name in step.mentions], frame.rows)
            asked = asked.take(first)
        row, numbered = _numbered(asked)
        hit = np.zeros(asked.rows, dtype=np.bool_)
        needed = plan.needed_after(step.steps, frozenset({row}))
        for made in Flow(self, step.steps, needed, Mode.SET).frames(numbered):
            hit[made[row]] = True
        return frame.keep(~(hit if member is None else hit[member]))


def _only_keeps(step: plan.Step) -> bool:
    """Whether a step makes no row of which it does not look at one."""
    return isinstance(step, plan.Filter | plan.Test) or (
        isinstance(step, plan.Expand) and step.closes and step.single and step.edge_variable is None
    )
