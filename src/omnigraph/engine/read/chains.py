"""Chains: the beginning of a plan that starts at one node and keeps one variable, run over plain lists.

A query for one node and what lies around it touches few rows, and arrays of a few numbers cost more than the
answer. As long as only one variable is wanted and its nodes are few, the steps of a plan run as closures over
a list of ordinals. A chain stops where a step is of another kind, needs a second variable or finds many
nodes; the operators of `engine.read.match` go on from there. Both ways give the same rows in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from omnigraph.engine.edges.traverse import Neighbours, reached
from omnigraph.engine.read.formulas import COMPARE, PLAIN_KINDS
from omnigraph.planning import filters, ir, predicate
from omnigraph.planning.steps import Expand, Filter, Scan, Step, constant_test

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnigraph.catalog.schema import EdgeType, NodeType
    from omnigraph.engine.edges.traverse import AnyNeighbours
    from omnigraph.engine.read.reading import Reading

Nodes: TypeAlias = list[int]
Link: TypeAlias = Callable[["Reading", "AnyNeighbours | None", Nodes], Nodes | None]
"""One step, over the index it was given: the nodes it leads to; None when they are too many for a list."""

FEW_LINKS: Final = 160
"""Up to this many nodes are followed in lists; beyond that numpy is faster."""


class ChainAccess(NamedTuple):
    """A chain that a run begins with, and the index of each step that follows an edge.

    It is left for the operators where a step would lead to more nodes than lists are good for.
    """

    chain: Chain
    indexes: tuple[AnyNeighbours | None, ...]
    """For each step after the first; None for a filter."""

    @property
    def steps(self) -> int:
        """How many steps of the plan it covers."""
        return 1 + len(self.indexes)

    def variable_after(self, done: int) -> str:
        """The variable its nodes stand for after this many steps."""
        return self.chain.variables[done - 1]

    @property
    def title(self) -> str:
        """What it covers."""
        first, last = self.chain.variables[0], self.chain.variables[self.steps - 1]
        return f"${first} to ${last} in {self.steps} steps"

    @property
    def how(self) -> str:
        """Its name."""
        return "lists of nodes"

    @property
    def why(self) -> str:
        """The reason it is taken."""
        return f"it starts at one node and keeps one variable; left for arrays beyond {FEW_LINKS} nodes"

    def why_left(self, done: int) -> str:
        """The reason it stopped after this many steps."""
        return f"left after {done} of {self.steps} steps, for more than {FEW_LINKS} nodes"


class Chain:
    """The steps of a plan that can run over lists, compiled."""

    __slots__ = ("_first", "_hops", "_key", "_links", "_param", "_whole", "is_untested", "variables")

    def __init__(
        self,
        first: Scan,
        key: ir.ValueExpr,
        links: Sequence[tuple[Expand | None, Link]],
        variables: Sequence[str],
    ) -> None:
        self._first = first
        self._key = key
        self._param = key.name if isinstance(key, ir.Param) else None
        self._hops = tuple(hop for hop, _ in links)
        self._links = tuple(link for _, link in links)
        follows = any(hop is not None for hop in self._hops)
        self._whole = None if follows else ChainAccess(self, (None,) * len(links))
        """What every run uses when no edge is followed."""
        tests = [first.rest, *(None if hop is None else hop.test for hop in self._hops)]
        self.is_untested = None not in self._hops and all(test is None for test in tests)
        """Whether it follows keys and edges only, and asks nothing of the nodes they lead to."""
        self.variables = tuple(variables)
        """The variable that the list stands for after each step."""

    @property
    def steps(self) -> int:
        """How many steps of the plan it covers at most."""
        return len(self.variables)

    @property
    def first_table(self) -> str:
        """The key of the table it starts in."""
        return self._first.node.table_key

    @property
    def edge_tables(self) -> tuple[str, ...]:
        """The keys of the edge tables it follows."""
        return tuple(hop.edge.table_key for hop in self._hops if hop is not None)

    def access(self, reading: Reading) -> ChainAccess | None:
        """What of the chain this run can use: up to the first edge whose index is not in memory.

        None when the key is null.
        """
        key = reading.params[self._param] if self._param is not None else reading.value(self._key)
        if key is None:
            return None
        if self._whole is not None:
            return self._whole
        indexes: list[AnyNeighbours | None] = []
        for hop in self._hops:
            index = None if hop is None else reading.index_at_hand(hop.edge, hop.direction)
            if index is None and hop is not None:
                break
            indexes.append(index)
        return ChainAccess(self, tuple(indexes))

    def run(self, reading: Reading, indexes: Sequence[AnyNeighbours | None]) -> tuple[list[int], Nodes]:
        """How many nodes there were after each step that was done, and the nodes after the last of them."""
        first = self._first
        key = reading.params[self._param] if self._param is not None else reading.value(self._key)
        reading.limits.step = first
        reading.limits.claim(1)
        ordinal = reading.image(first.node).find_one(str(key))
        nodes = [] if ordinal < 0 else [ordinal]
        if nodes and first.rest is not None:
            nodes = _kept(reading, first.node, first.rest, nodes)
        counts = [len(nodes)]
        for link, index in zip(self._links, indexes, strict=False):
            found = link(reading, index, nodes) if nodes else nodes
            if found is None:
                break
            nodes = found
            counts.append(len(nodes))
        return counts, nodes


def chain_of(steps: Sequence[Step], needed: Sequence[frozenset[str]], *, as_set: bool) -> Chain | None:
    """The chain a plan begins with; None when it does not start at one node."""
    first = steps[0] if steps else None
    if not isinstance(first, Scan) or first.key is None:
        return None
    variable = first.variable
    links: list[tuple[Expand | None, Link]] = []
    variables = [variable]
    for step, wanted in zip(steps[1:], needed[1:], strict=True):
        match step:
            case Expand(edge_variable=None, closes=False) if step.single and step.start == variable:
                if wanted.intersection(variables):
                    break  # a second variable is wanted later
                variable = step.end
                links.append((step, _hop(step, as_set=as_set)))
            case Filter(ir.Comparison() as comparison):
                test = constant_test(comparison)
                if test is None or test[0].variable != variable:
                    break
                links.append((None, _filter(*test)))
            case _:
                break
        variables.append(variable)
    return Chain(first, first.key, links, variables)


def _hop(step: Expand, *, as_set: bool) -> Link:
    end_type, test = step.node, step.test

    def hop(reading: Reading, index: AnyNeighbours | None, nodes: Nodes) -> Nodes | None:
        assert index is not None  # noqa: S101 - `Chain.access` ends before an edge without one
        reading.limits.step = step
        if isinstance(index, Neighbours):
            found = _follow(reading, index, nodes)
            if found is None:
                return None
        else:
            found = reached(index, np.array(nodes, dtype=np.int64), reading.limits.claim).tolist()
        if as_set and len(nodes) > 1:
            found = list(dict.fromkeys(found))
        if test is not None and end_type is not None and found:
            return _kept(reading, end_type, test, found)
        return found

    return hop


def _follow(reading: Reading, index: Neighbours, nodes: Nodes) -> Nodes | None:
    offset, tails = index.offsets.item, index.tails
    if len(nodes) == 1:
        begin, end = offset(nodes[0]), offset(nodes[0] + 1)
        if end - begin > FEW_LINKS:
            return None
        reading.limits.claim(end - begin)
        return tails[begin:end].tolist()
    spans = [(offset(node), offset(node + 1)) for node in nodes]
    total = sum(end - begin for begin, end in spans)
    if total > FEW_LINKS:
        return None
    reading.limits.claim(total)
    found: Nodes = []
    for begin, end in spans:
        if begin != end:
            found += tails[begin:end].tolist()
    return found


def _filter(reference: ir.PropertyRef, test: ir.Predicate) -> Link:
    owner = reference.owner

    def keep(reading: Reading, _: AnyNeighbours | None, nodes: Nodes) -> Nodes:
        return _kept(reading, owner, test, nodes)

    return keep


def _kept(reading: Reading, owner: NodeType | EdgeType, test: ir.Predicate, nodes: Nodes) -> Nodes:
    """The nodes for which a test is true."""
    formula = predicate.normalize(test, owner, reading.params, reading.now)
    if isinstance(formula, filters.Test) and formula.kind in PLAIN_KINDS:
        compare, wanted = COMPARE[formula.op], formula.value
        values: list[Any] = reading.image(owner).pick(formula.column, nodes)
        pairs = zip(nodes, values, strict=True)
        return [node for node, value in pairs if value is not None and compare(value, wanted)]
    mask = reading.holds(owner, test, np.array(nodes, dtype=np.int64))
    return [node for node, holds in zip(nodes, mask.tolist(), strict=True) if holds]
