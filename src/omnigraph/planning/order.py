"""In which order the variables of a block are bound, by what that costs. Pure: what is known of the data is
given as `Measures`.

A state is a set of bound variables with the rows they would have. From each state every clause that touches a
bound variable leads on; of all states with the same number of clauses done the cheapest few are followed. The
cost of an order is the number of rows and pairs its steps would make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from omnigraph.core.late_dataclass import dataclass
from omnigraph.language.query_tree import Operator
from omnigraph.planning import ir, mentions
from omnigraph.planning.steps import Direction, Move, is_plain, pushable, written_order

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from omnigraph.catalog.schema import EdgeType, NodeType

STATES_KEPT: Final = 24
"""How many orders are followed at a time."""
TRAVERSALS_MAX: Final = 24
"""Larger blocks are run as they are written."""
PROBE_COST: Final = 2.0
"""What it costs to ask whether two nodes are connected, a made pair being 1."""
PATH_COST: Final = 2.0
"""What it costs to find the path to an end, for each node that is as near as it."""
CONDITION_COST: Final = 1.0
"""What it costs to compare values of one row."""
SCAN_COST: Final = 0.05
"""What it costs to look at a row of a table."""
EQUAL_SHARE: Final = 0.1
OTHER_SHARE: Final = 0.33
"""Shares of rows that a condition on several variables is guessed to keep."""


class Measures(Protocol):
    """What is known of the data."""

    def rows(self, node: NodeType) -> float:
        """How many nodes of a type there are."""
        ...

    def share(self, node: NodeType, test: ir.Predicate | None) -> float:
        """The share of the nodes of a type for which a test is true."""
        ...

    def degree(self, edge: EdgeType, direction: Direction, *, reached: bool) -> float:
        """How many neighbours a node has; `reached`: a node that an edge of the same type led to."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    bound: frozenset[str]
    via: dict[str, str]
    """The edge type that led to a variable, or from it: its rows are those of busy nodes, most of all."""
    done: tuple[Move, ...]
    left: frozenset[int]
    """The traversals that are not done, by position."""
    open: tuple[ir.Condition, ...]
    denied: tuple[ir.Block, ...]
    """The conditions and negations that could not be asked yet."""
    rows: float
    cost: float
    turned: int = 0
    """How many hops are followed against their direction."""

    @property
    def rank(self) -> tuple[float, int]:
        """What is followed first: the cheapest, and of those the one that follows edges as they point."""
        return _rough(self.cost + self.rows), self.turned


class _Search:
    """The orders of one block."""

    def __init__(
        self, block: ir.Block, bound: frozenset[str], wanted: frozenset[str] | None, measures: Measures
    ) -> None:
        self.block = block
        self.measures = measures
        self.wanted = wanted
        # Sorted, so that what is found does not depend on how the clauses are written.
        self.hops = sorted(block.traversals, key=_sorted_by)
        self.nodes = {
            node.name: node for node in sorted(block.nodes, key=lambda node: node.name) if not node.outer
        }
        self.extent = {name: max(measures.rows(node.type), 1.0) for name, node in self.nodes.items()}
        later = frozenset[str]().union(*(inner.binds for inner in block.optionals))
        conditions = tuple(c for c in block.conditions if not mentions.variables_of(c) & later)
        left = frozenset(range(len(block.traversals)))
        self.first = _State(bound, {}, (), left, conditions, block.negations, 1.0, 0.0)

    def best(self) -> _State:
        states, finished = [self.first], list[_State]()
        while True:
            following: list[_State] = []
            for state in states:
                for after in self._after(state):
                    # Not among those that go on: the rows it has would count against it there.
                    (finished if self._is_done(after) else following).append(after)
            if not following:
                finished = finished or states  # there was nothing to do
                return min(finished, key=lambda state: (_rough(state.cost), state.turned))
            cheapest: dict[Hashable, _State] = {}
            for state in following:
                # What led to a variable says how busy its nodes are, so what follows may cost more.
                key = (state.bound, state.left, frozenset(state.via.items()))
                known = cheapest.get(key)
                if known is None or state.rank < known.rank:
                    cheapest[key] = state
            states = sorted(cheapest.values(), key=lambda state: state.rank)[:STATES_KEPT]

    def _is_done(self, state: _State) -> bool:
        return not state.left and self.nodes.keys() <= state.bound

    def _after(self, state: _State) -> list[_State]:
        ready = [
            number
            for number in sorted(state.left)
            if self.hops[number].source in state.bound or self.hops[number].target in state.bound
        ]
        if ready:
            pinned = self._pinned_ends(state, ready)
            return [self.follow(state, number) for number in ready] + [
                self.scan(state, node) for node in pinned
            ]
        return [self.scan(state, node) for name, node in self.nodes.items() if name not in state.bound]

    def _pinned_ends(self, state: _State, ready: Sequence[int]) -> list[ir.NodeVariable]:
        """The other ends of paths that are found by themselves: between two nodes less is looked at than
        around one.
        """
        names = {name for number in ready if self.hops[number].path for name in self.hops[number].ends}
        nodes = [node for name, node in self.nodes.items() if name in names and name not in state.bound]
        return [node for node in nodes if self.scan(state, node).rows <= state.rows * 1.5]

    def replay(self, moves: Sequence[Move]) -> _State:
        """What a given order would make."""
        state = self.first
        for move in moves:
            if not isinstance(move, ir.Traversal):
                state = self.scan(state, move)
            elif (number := self.hops.index(move)) in state.left:
                state = self.follow(state, number)
        return state

    def scan(self, state: _State, node: ir.NodeVariable) -> _State:
        tests, rest = pushable(node, state.open)
        share = self.measures.share(node.type, node.matches)
        for test in tests:
            share *= self.measures.share(node.type, test)
        extent = self.extent[node.name]
        rows = state.rows * extent * share
        # A row that is found by its key costs next to nothing, whatever the size of its table.
        looked = 0.0 if extent * share <= 1.5 else extent * SCAN_COST
        return self._settled(
            state, state.bound | {node.name}, state.via, (node,), state.left, tuple(rest), rows, looked + rows
        )

    def follow(self, state: _State, number: int) -> _State:
        hop = self.hops[number]
        left = state.left - {number}
        if hop.is_empty:
            return self._settled(
                state, state.bound | set(hop.ends), state.via, (hop,), left, state.open, 0.0, 0.0
            )
        forward = hop.source in state.bound
        start, end = hop.ends if forward else hop.ends[::-1]
        one_way = Direction.FORWARD if forward else Direction.BACKWARD
        direction = Direction.EITHER if hop.undirected else one_way
        degree = self.measures.degree(hop.edge, direction, reached=state.via.get(start) == hop.edge.name)
        high = hop.high if hop.edge.source == hop.edge.target else 1
        reached = sum(degree**length for length in range(hop.low, high + 1))
        extent = self.extent.get(end)
        if extent is not None:
            reached = min(reached, extent)
        sought = 0.0
        if hop.path is not None:  # without weights it is sought from both ends
            sought = PATH_COST * (reached if hop.weight is not None else reached**0.5)
        if hop.source in state.bound and hop.target in state.bound:
            share = _connected_share(reached, extent)
            probed = high == 1 and hop.edge_variable is None
            cost = state.rows * (sought if hop.path is not None else PROBE_COST if probed else reached)
            bound = state.bound | set(_named_by(hop))
            return self._settled(state, bound, state.via, (hop,), left, state.open, state.rows * share, cost)
        others = self._arms(state, number, end)
        degrees = sorted([reached, *(self._degree(self.hops[other], end) for other in others)])
        made = state.rows * degrees[0]
        share, rest = 1.0, list(state.open)
        node = self.nodes.get(end)
        if node is not None:
            share = self.measures.share(node.type, node.matches)
            tests, rest = pushable(node, rest)
            for test in tests:
                share *= self.measures.share(node.type, test)
        kept = made * share
        for degree in degrees[1:]:
            kept *= _connected_share(degree, extent)
        return self._settled(
            state,
            state.bound | {end, *_named_by(hop)},
            {**state.via, start: hop.edge.name, end: hop.edge.name},
            (hop, *(self.hops[other] for other in others)),
            left.difference(others),
            tuple(rest),
            kept,
            made * (1.0 + PROBE_COST * len(others)) + made * share * sought,
        )

    def _arms(self, state: _State, number: int, end: str) -> list[int]:
        """The other hops that lead to a variable from what is bound: it is bound by all of them at once."""
        if not is_plain(self.hops[number]):
            return []
        return [
            other
            for other in sorted(state.left - {number})
            if is_plain(self.hops[other])
            and end in self.hops[other].ends
            and state.bound.intersection(self.hops[other].ends)
        ]

    def _degree(self, hop: ir.Traversal, end: str) -> float:
        """How many nodes a hop leads to at its end, on average: of several lists the shortest is followed,
        so how busy the others are does not matter.
        """
        one_way = Direction.FORWARD if end == hop.target else Direction.BACKWARD
        direction = Direction.EITHER if hop.undirected else one_way
        return self.measures.degree(hop.edge, direction, reached=False)

    def _settled(
        self,
        state: _State,
        bound: frozenset[str],
        via: dict[str, str],
        moves: tuple[Move, ...],
        left: frozenset[int],
        conditions: tuple[ir.Condition, ...],
        rows: float,
        cost: float,
    ) -> _State:
        """The state after a move, with the conditions that can be asked now."""
        waiting: list[ir.Condition] = []
        for condition in conditions:
            if mentions.variables_of(condition) <= bound:
                cost += rows * CONDITION_COST
                rows *= _share(condition)
            else:
                waiting.append(condition)
        denied: list[ir.Block] = []
        for inner in state.denied:
            if inner.outer & self.nodes.keys() <= bound:
                cost += rows * PROBE_COST * len(inner.traversals)
            else:
                denied.append(inner)
        if self.wanted is not None:
            rows = min(rows, self._distinct(bound, left, waiting))
        turned = sum(isinstance(move, ir.Traversal) and move.source not in state.bound for move in moves)
        return _State(
            bound,
            via,
            (*state.done, *moves),
            left,
            tuple(waiting),
            tuple(denied),
            rows,
            state.cost + cost,
            state.turned + turned,
        )

    def _distinct(self, bound: frozenset[str], left: frozenset[int], waiting: list[ir.Condition]) -> float:
        """How many rows there are at most when equal ones are counted together."""
        needed = set(self.wanted or ())
        for number in left:
            needed.update(self.hops[number].ends)
        for condition in waiting:
            needed |= mentions.variables_of(condition)
        most = 1.0
        for name in needed & bound:
            most *= self.extent.get(name, 1e18)
        return most


def _rough(cost: float) -> float:
    """A cost without what the order of its additions makes of it."""
    return float(f"{cost:.9g}")


def _connected_share(degree: float, extent: float | None) -> float:
    """The share of pairs that an edge connects, when a node has so many neighbours among all."""
    return min(degree / (extent or max(degree * 3, 1.0)), 1.0)


def _sorted_by(hop: ir.Traversal) -> tuple[str, ...]:
    return (hop.edge.name, *hop.ends, f"{hop.low},{hop.high}", str(hop.undirected), *_named_by(hop))


def _named_by(hop: ir.Traversal) -> tuple[str, ...]:
    """The variables of a traversal beside its ends."""
    return tuple(name for name in (hop.edge_variable, hop.path) if name is not None)


def _share(condition: ir.Condition) -> float:
    match condition:
        case ir.Comparison(op=Operator.NE):
            return 0.95
        case ir.Comparison(op=Operator.EQ):
            return EQUAL_SHARE
        case _:
            return OTHER_SHARE


class Chosen(NamedTuple):
    """An order of a block, and why it is taken."""

    moves: tuple[Move, ...]
    why: str
    cost: float = 0.0


def by_cost(
    block: ir.Block, bound: frozenset[str], wanted: frozenset[str] | None, measures: Measures
) -> Chosen:
    """The moves of a block in the cheapest order that was found, the same however its clauses are written.

    `wanted` are the variables that something after the block reads, when equal rows are counted together;
    None when every row counts by itself.
    """
    moves = written_order(block, bound)
    if len(moves) < 2 or len(block.traversals) > TRAVERSALS_MAX:
        return Chosen(moves, "as written: there is no choice")
    search = _Search(block, bound, wanted, measures)
    best, written = search.best(), search.replay(moves)
    if best.done == moves:
        told = f"about {written.cost:,.0f} rows and pairs, no order found costs less"
        return Chosen(moves, f"as written: {told}", written.cost)
    told = f"about {best.cost:,.0f} rows and pairs, {written.cost:,.0f} as written"
    return Chosen(best.done, f"by cost: {told}", best.cost)
