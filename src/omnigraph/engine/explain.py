"""How a query is answered: its operators, the way each gets its rows and why, estimates and what happened."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Final

from omnigraph.core.events import Event, StorageCall, listen
from omnigraph.planning import explain, ir, predicate, steps

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from omnigraph.catalog.schema import NodeType
    from omnigraph.engine.reading import Prepared, Reading
    from omnigraph.engine.search_access import Access

EQUALITY_SHARE: Final = 0.1
OTHER_SHARE: Final = 0.33
"""Shares of rows a test is guessed to keep; there are no statistics of values."""


@dataclass(slots=True)
class StepCost:
    """What one step did over all its runs."""

    runs: int = 0
    rows_in: int = 0
    rows_out: int = 0
    seconds: float = 0.0


class Trace:
    """Collects what each step of one run did. Not thread-safe: one per run."""

    def __init__(self) -> None:
        self.costs: dict[int, StepCost] = {}
        self.accesses: dict[int, Access] = {}

    def searched(self, expression: ir.Search | ir.Nearest | ir.Bm25, access: Access) -> None:
        """Note how a search got its answer."""
        self.accesses.setdefault(id(expression), access)

    @contextmanager
    def step(self, step: steps.Step, rows_in: int) -> Generator[Callable[[int], None]]:
        """Time a step; the callable takes the number of rows that came out."""
        cost = self.costs.setdefault(id(step), StepCost())
        cost.runs += 1
        cost.rows_in += rows_in
        begun = time.perf_counter()

        def done(rows_out: int) -> None:
            cost.rows_out += rows_out

        try:
            yield done
        finally:
            cost.seconds += time.perf_counter() - begun


@dataclass(slots=True)
class Operator:
    """One operator of a plan."""

    name: str
    detail: str
    access: str = ""
    """How it gets its rows."""
    why: str = ""
    estimated_rows: int | None = None
    actual_rows: int | None = None
    seconds: float | None = None
    inner: list[Operator] = field(default_factory=list["Operator"])

    def to_dict(self) -> dict[str, Any]:
        """As JSON says it; unknown members are left out."""
        members: dict[str, Any] = {
            "operator": self.name,
            "detail": self.detail,
            "access": self.access or None,
            "why": self.why or None,
            "estimated_rows": self.estimated_rows,
            "actual_rows": self.actual_rows,
            "seconds": self.seconds,
            "inner": [each.to_dict() for each in self.inner] or None,
        }
        return {name: value for name, value in members.items() if value is not None}

    def lines(self, depth: int = 0) -> Iterator[str]:
        """As text, an operator a line."""
        facts: list[str] = []
        if self.estimated_rows is not None:
            facts.append(f"about {self.estimated_rows} rows")
        if self.actual_rows is not None:
            facts.append(f"{self.actual_rows} rows")
        if self.seconds is not None:
            facts.append(f"{self.seconds * 1000:.2f} ms")
        tail = f"  [{', '.join(facts)}]" if facts else ""
        yield f"{'  ' * depth}{self.name} {self.detail}{tail}"
        if self.access:
            reason = f": {self.why}" if self.why else ""
            yield f"{'  ' * depth}    by {self.access}{reason}"
        for each in self.inner:
            yield from each.lines(depth + 1)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The plan of one query at one commit; with `analyze` also what a run did."""

    query_name: str
    commit_id: str
    operators: tuple[Operator, ...]
    analyzed: bool = False
    rows: int | None = None
    seconds: float | None = None
    storage_calls: Mapping[str, int] = field(default_factory=dict[str, int])
    memory_bytes_max: int | None = None
    """The largest set of working rows, in bytes."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON says it."""
        members: dict[str, Any] = {
            "query_name": self.query_name,
            "graph_commit_id": self.commit_id,
            "operators": [each.to_dict() for each in self.operators],
        }
        if self.analyzed:
            members["analyze"] = {
                "rows": self.rows,
                "seconds": self.seconds,
                "storage_calls": dict(self.storage_calls),
                "working_bytes_max": self.memory_bytes_max,
            }
        return members

    def __str__(self) -> str:
        lines = [f"query {self.query_name} at {self.commit_id}"]
        for each in self.operators:
            lines.extend(each.lines(1))
        if self.analyzed:
            calls = ", ".join(f"{count} {kind}" for kind, count in sorted(self.storage_calls.items()))
            took = (self.seconds or 0) * 1000
            lines.append(f"  {self.rows} rows in {took:.2f} ms; storage: {calls or 'none'}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


class CallCounter:
    """Counts the storage calls of a run by kind."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __call__(self, event: Event) -> None:
        """Hear an event."""
        if isinstance(event, StorageCall):
            self.calls[event.kind] += 1


@contextmanager
def counted() -> Generator[CallCounter]:
    """Count the storage calls of this context."""
    counter = CallCounter()
    with listen(counter):
        yield counter


def describe(
    reading: Reading, prepared: Prepared, nodes: Mapping[str, NodeType], trace: Trace | None = None
) -> tuple[Operator, ...]:
    """The operators of a query as they would run now. Cost: metadata of the tables it names."""
    describer = _Describer(reading, nodes, trace)
    operators, rows = describer.all(prepared.steps, 1.0)
    for name, detail in explain.result_titles(prepared.plan):
        operator = Operator(name, detail)
        if name == "rank" and prepared.plan.ranking is not None:
            operator.access, operator.why = describer.ranking(prepared.plan.ranking)
        if name == "project":
            operator.estimated_rows = round(rows)
        operators.append(operator)
    return tuple(operators)


@dataclass(frozen=True, slots=True, eq=False)
class _Describer:
    reading: Reading
    nodes: Mapping[str, NodeType]
    trace: Trace | None

    def all(self, sequence: Sequence[steps.Step], rows: float) -> tuple[list[Operator], float]:
        operators: list[Operator] = []
        for step in sequence:
            name, detail = explain.title_of(step)
            operator = Operator(name, detail)
            operator.inner, _ = self.all(explain.inner_steps(step), rows)
            rows *= self._factor(step)
            operator.estimated_rows = round(rows)
            operator.access, operator.why = self._access(step)
            cost = None if self.trace is None else self.trace.costs.get(id(step))
            if cost is not None:
                operator.actual_rows, operator.seconds = cost.rows_out, cost.seconds
            operators.append(operator)
        return operators, rows

    def _factor(self, step: steps.Step) -> float:
        """How many rows come out for each that goes in."""
        match step:
            case steps.Scan():
                if step.key is not None:
                    return 1.0
                return self.reading.image(step.node).row_count * share_of(step.test)
            case steps.Expand() if step.closes:
                return OTHER_SHARE
            case steps.Expand():
                tables = self.reading.edge_tables(step.edge, self.nodes)
                backward = step.direction is steps.Direction.BACKWARD
                heads = (tables.targets if backward else tables.sources).row_count
                degree = tables.edges.row_count / max(heads, 1)
                reached = sum(degree**hop for hop in range(step.low, step.high + 1))
                most = float((tables.sources if backward else tables.targets).row_count)
                return min(reached, most) * share_of(step.test)
            case steps.Nothing():
                return 0.0
            case steps.Filter() | steps.Test() | steps.Without():
                return OTHER_SHARE
            case steps.Maybe():
                return 1.0

    def _access(self, step: steps.Step) -> tuple[str, str]:
        match step:
            case steps.Scan():
                return self._scan_access(step)
            case steps.Expand():
                tables = self.reading.edge_tables(step.edge, self.nodes)
                kind = "neighbours" if step.edge_variable is None else "incidence"
                adjacency = self.reading.caches.adjacency
                if adjacency.is_ready(tables, step.direction, kind):
                    return "adjacency in memory", "it is there for this state of the tables"
                edges = tables.edges.row_count
                return "adjacency", f"made from {edges} edges or from the state read before, then kept"
            case steps.Filter(condition=ir.SearchTest(search=search)):
                return self._text(search.property)
            case _:
                return "", ""

    def _scan_access(self, step: steps.Scan) -> tuple[str, str]:
        image = self.reading.image(step.node)
        if step.test is None:
            return "all rows", "nothing restricts it"
        key = None if step.key is None else self.reading.value(step.key)
        if isinstance(key, str):
            return "key index", "the key is given"
        needed, text = self.reading.pushed(step)
        if self.reading.runs_in_memory(image, needed):
            return f"columns in memory ({', '.join(sorted(needed))})", f"{image.row_count} rows"
        indexes = [
            f"{index.name}, {len(index.uncovered)} fragments uncovered" if index.uncovered else index.name
            for column in sorted(needed)
            for index in self.reading.session.storage.index_coverage(image.handle, column)
            if index.kind.upper() == "BTREE"
        ]
        how = "index " + "; ".join(indexes) if indexes else "a scan of the columns"
        return how, f"filter {text}"

    def ranking(self, ranking: ir.Ranking) -> tuple[str, str]:
        match ranking:
            case ir.Nearest():
                rows = self.reading.image(ranking.property.owner).row_count
                return "exact distances", f"all vectors of {rows} rows are compared"
            case ir.Bm25():
                return self._text(ranking.property)
            case ir.Rrf():
                return "both rankings", "fused by rank"

    def _text(self, reference: ir.PropertyRef) -> tuple[str, str]:
        rows = self.reading.image(reference.owner).row_count
        return "text in memory", f"covers all {rows} rows of {reference.owner.name}.{reference.prop.name}"


def share_of(test: ir.Predicate | None) -> float:
    """The share of rows a predicate is guessed to keep."""
    match test:
        case None:
            return 1.0
        case ir.And():
            share = 1.0
            for part in test.parts:
                share *= share_of(part)
            return share
        case ir.Compare() if test.op is predicate.Operator.EQ:
            return EQUALITY_SHARE
        case _:
            return OTHER_SHARE
