"""Paths of a match: working rows whose ends one connects, and what can be read of it."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.arrays.pairs import pack, unpack
from omnigraph.arrays.types import Ordinals
from omnigraph.catalog.types import arrow_type
from omnigraph.core.errors import NegativeWeight
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.edges.paths import Costs, CostSearch, HopSearch
from omnigraph.engine.read.access import incidence, neighbours
from omnigraph.engine.read.limits import ORDINAL_BYTES
from omnigraph.planning import ir

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from omnigraph.catalog.schema import EdgeType
    from omnigraph.engine.edges.paths import Path
    from omnigraph.engine.read.frame import Frame
    from omnigraph.engine.read.reading import Reading
    from omnigraph.planning.steps import Paths

ENDS_PER_START_MAX: Final = 4
"""Up to this many ends of a start are searched from both sides, one by one."""
PATH_BYTES: Final = 24
"""What a path takes beside its nodes."""


@dataclass(slots=True, eq=False)
class PathsFound:
    """The paths of one variable, numbered as they were found."""

    lengths: list[Ordinals] = field(default_factory=list[Ordinals])
    nodes: list[Ordinals] = field(default_factory=list[Ordinals])
    costs: list[Costs] = field(default_factory=list[Costs])
    count: int = 0

    def add(self, path: Path) -> Ordinals:
        """Keep paths of one length; their numbers."""
        rows, size = len(path.pairs), path.nodes.size // max(len(path.pairs), 1)
        self.lengths.append(np.full(rows, size - 1, dtype=np.int64))
        self.nodes.append(path.nodes.reshape(-1))
        self.costs.append(np.zeros(rows) if path.costs is None else path.costs)
        self.count += rows
        return np.arange(self.count - rows, self.count, dtype=np.int64)

    def joined(self) -> tuple[Ordinals, Ordinals, Costs]:
        """Lengths, nodes one path after the other, and costs of all."""
        none = np.zeros(0, dtype=np.int64)
        if len(self.lengths) != 1:
            self.lengths = [np.concatenate([none, *self.lengths])]
            self.nodes = [np.concatenate([none, *self.nodes])]
            self.costs = [np.concatenate([np.zeros(0), *self.costs])]
        return self.lengths[0], self.nodes[0], self.costs[0]


def with_paths(reading: Reading, step: Paths, frame: Frame, keep: frozenset[str] | None, whole: int) -> Frame:
    """The rows whose ends a path connects, with its number where the path is read later."""
    start, end = step.forward.start, step.forward.end
    apart = np.flatnonzero((frame[start] >= 0) & (frame[end] >= 0))
    if step.forward.edge.source == step.forward.edge.target:
        apart = apart[frame[start][apart] != frame[end][apart]]
    pairs, member = np.unique(pack(frame[start][apart], frame[end][apart]), return_inverse=True)
    numbers = np.full(len(pairs), -1, dtype=np.int64)
    kept = keep is None or step.variable in keep
    found = _store(reading, step.variable)
    for path in _sought(reading, step, pairs, max(frame.rows, whole)) if len(pairs) else ():
        if kept:
            reading.limits.hold(path.nodes.nbytes + PATH_BYTES * len(path.pairs))
        numbers[path.pairs] = found.add(path) if kept else 0
    mine = numbers[member.reshape(-1)]
    after = (frame if keep is None else frame.among(keep)).take(apart[mine >= 0])
    return after.bind(step.variable, mine[mine >= 0]) if kept else after


def _store(reading: Reading, variable: str) -> PathsFound:
    if reading.paths is None:
        reading.paths = {}
    return reading.paths.setdefault(variable, PathsFound())


def _sought(reading: Reading, step: Paths, pairs: NDArray[np.uint64], rows: int) -> Iterator[Path]:
    """The paths of distinct pairs of a start and an end, in the way that costs least."""
    claim, most = reading.limits.claim, step.forward.high
    heads, ends = unpack(pairs)
    starts, owner = np.unique(heads, return_inverse=True)
    wanted = pack(owner.reshape(-1), ends)
    image = reading.edge_tables(step.forward.edge).sources

    def ranks(nodes: Ordinals) -> NDArray[np.int64]:
        return np.asarray(pc.rank(image.take("id", nodes))).astype(np.int64)

    if step.weight is not None:
        forward, backward = (incidence(reading, way, rows) for way in (step.forward, step.backward))
        search = CostSearch(forward, backward, _weights(reading, step, step.weight), ranks, claim)
        return search.from_starts(starts, wanted, most)
    near, far = (neighbours(reading, way, rows) for way in (step.forward, step.backward))
    hops = HopSearch(near, far, ranks, claim)
    if len(pairs) <= ENDS_PER_START_MAX * len(starts):
        return hops.between(heads, ends, most)
    return hops.from_starts(starts, wanted, most)


def _weights(reading: Reading, step: Paths, name: str) -> Costs:
    """The weight of every edge; NaN where it has none. Raises NegativeWeight."""
    edge = step.forward.edge
    image = reading.image(edge)
    numbers = image.numbers(name)
    assert numbers is not None  # noqa: S101 - the check lets nothing else weigh
    live = image.live()
    reading.limits.hold(image.extent * ORDINAL_BYTES)
    weights = np.full(image.extent, np.nan)
    values, known = numbers.gather(live)
    if known is not None:
        live, values = live[known], values[known]
    if len(values) and values.min() < 0:
        raise NegativeWeight(edge.name, name, float(values.min()))
    weights[live] = values
    return weights


def path_values(reading: Reading, part: ir.PathRef, numbers: Ordinals) -> Any:
    """What is read of the paths of rows; null for -1."""
    lengths, nodes, costs = _store(reading, part.variable).joined()
    missing = numbers < 0
    if not len(lengths):
        return pa.nulls(len(numbers), arrow_type(part.type))
    safe = np.where(missing, 0, numbers)
    match part.part:
        case ir.PathPart.LENGTH:
            return pa.array(lengths[safe], mask=missing)
        case ir.PathPart.COST:
            return pa.array(costs[safe], mask=missing)
        case ir.PathPart.NODES:
            sizes = np.where(missing, 0, lengths[safe] + 1)
            ends = np.cumsum(sizes)
            begins = (np.cumsum(lengths + 1) - lengths - 1)[safe]
            places = np.repeat(begins - ends + sizes, sizes) + np.arange(ends[-1] if len(ends) else 0)
            reading.limits.claim_values(len(places) * ORDINAL_BYTES)
            ids = _ids(reading, part.path.edge, nodes[places])
            offsets = np.concatenate([np.zeros(1, np.int64), ends]).astype(np.int32)
            made = pa.ListArray.from_arrays(pa.array(offsets), ids, mask=pa.array(missing))
            return made.cast(arrow_type(part.type))
        case _:
            assert_never(part.part)


def _ids(reading: Reading, edge: EdgeType, nodes: Ordinals) -> pa.Array:
    """The ids of the nodes of paths, one path after the other."""
    tables = reading.edge_tables(edge)
    if edge.source == edge.target:
        return tables.sources.take("id", nodes)
    # Ends of different types cannot be chained: each path has two nodes.
    starts, ends = tables.sources.take("id", nodes[::2]), tables.targets.take("id", nodes[1::2])
    turns = np.arange(len(nodes), dtype=np.int64).reshape(2, -1).T.reshape(-1)
    return pa.concat_arrays([starts, ends]).take(pa.array(turns))
