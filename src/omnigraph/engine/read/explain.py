"""How a query is answered: its operators, the way each gets its rows and why, estimates and what happened."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import field
from html import escape
from typing import TYPE_CHECKING, Any, Final

from omnigraph.core.errors import EmbedderError
from omnigraph.core.events import Event, StorageCall, TableRead
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import GIB, KIB, MIB
from omnigraph.engine.edges.choice import IN_MEMORY
from omnigraph.engine.read.access import BY_KEY, decide
from omnigraph.engine.read.measures import OTHER_SHARE, TableMeasures
from omnigraph.engine.search.choice import Access, coverage_of
from omnigraph.engine.search.embedding import usable_embedder
from omnigraph.planning import explain, ir, mentions, steps

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from omnigraph.engine.read.prepared import CountedTerm, Prepared
    from omnigraph.engine.read.reading import Reading
    from omnigraph.planning.access import Choice, Way

MISSED_FACTOR: Final = 10
"""An analyzed plan warns of an estimate that is wrong by this factor or more."""
GROUPED_SHARE: Final = 0.1
"""The share of rows that is guessed to be the number of groups."""


@dataclass(slots=True)
class StepCost:
    """What one step did over all its runs."""

    rows_out: int = 0
    seconds: float = 0.0
    requests: int = 0
    bytes: int = 0


class Trace:
    """Collects what one run did: rows, time and reads of each step. Not thread-safe: one per run.

    It is a listener: what the storage tells in the context of the run is counted.
    """

    def __init__(self) -> None:
        self.costs: dict[int, StepCost] = {}
        self.ways: dict[int, list[Way]] = {}
        """How each step and each search got its rows, by its identity: one way, or several in turn."""
        self.chained: list[int] = []
        """How many nodes a chain had after each step it did."""
        self.recalls: dict[int, float] = {}
        """Of searches that did not look at everything: the share of the true answer they found."""
        self.calls: Counter[str] = Counter()
        self.requests = 0
        self.bytes = 0
        self.aside_seconds = 0.0
        """Time spent on measuring, which a run without `analyze` does not spend."""
        self._aside = False

    def __call__(self, event: Event) -> None:
        """Hear an event."""
        if self._aside:
            return
        if isinstance(event, StorageCall):
            self.calls[event.kind] += 1
        elif isinstance(event, TableRead):
            self.requests += event.requests
            self.bytes += event.bytes

    def took(self, subject: object, way: Way) -> None:
        """Note how a step or a search gets its rows."""
        ways = self.ways.setdefault(id(subject), [])
        if not self._aside and way not in ways:
            ways.append(way)

    @contextmanager
    def aside(self) -> Generator[None]:
        """Work that only the measuring needs: neither its time nor its reads count."""
        self._aside = True
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.aside_seconds += time.perf_counter() - begun
            self._aside = False

    @contextmanager
    def step(self, subject: object) -> Generator[Callable[[int], None]]:
        """Time a step; the callable takes the number of rows that came out."""
        cost = self.costs.setdefault(id(subject), StepCost())
        requests, size, aside = self.requests, self.bytes, self.aside_seconds
        begun = time.perf_counter()

        def done(rows_out: int) -> None:
            cost.rows_out += rows_out

        try:
            yield done
        finally:
            cost.seconds += time.perf_counter() - begun - (self.aside_seconds - aside)
            cost.requests += self.requests - requests
            cost.bytes += self.bytes - size


@dataclass(slots=True)
class Operator:
    """One operator of a plan."""

    name: str
    detail: str
    access: str = ""
    """How it gets its rows; of a run, how it got them."""
    why: str = ""
    ways: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The ways it may take, when that waits for the number of rows it meets."""
    folded: bool | None = None
    """Of a hop: whether the rows it leads to are counted and summed without being made."""
    estimated_rows: int | None = None
    statistics: list[str] = field(default_factory=list[str])
    """What the estimate is made from: counts and degrees of edges, values of properties."""
    actual_rows: int | None = None
    seconds: float | None = None
    requests: int | None = None
    bytes: int | None = None
    """What it read from storage."""
    exact: bool | None = None
    """Of a search: whether the answer is certainly that of brute force."""
    coverage: Mapping[str, Any] | None = None
    """Of a search: what the index on its column covers. Rows it does not cover are searched all the same."""
    recall: float | None = None
    """Of a search that is not exact, measured by `analyze`: the share of the true answer it found."""
    embedding: str | None = None
    """Of a comparison of vectors with a text: how the text becomes a vector."""
    inner: list[Operator] = field(default_factory=list["Operator"])

    def take(self, cost: StepCost | None) -> None:
        """Take over what a run measured."""
        if cost is not None:
            self.actual_rows, self.seconds = cost.rows_out, cost.seconds
            self.requests, self.bytes = cost.requests, cost.bytes

    @property
    def warning(self) -> str | None:
        """Of a run: that the estimate was far from what happened."""
        if self.estimated_rows is None or self.actual_rows is None:
            return None
        guessed, actual = max(self.estimated_rows, 1), max(self.actual_rows, 1)
        if max(guessed, actual) < MISSED_FACTOR * min(guessed, actual):
            return None
        if actual > guessed:
            return f"{actual / guessed:,.0f} times as many rows as estimated"
        return f"{guessed / actual:,.0f} times fewer rows than estimated"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; unknown members are left out."""
        members: dict[str, Any] = {
            "operator": self.name,
            "detail": self.detail,
            "access": self.access or None,
            "why": self.why or None,
            "ways": self.ways or None,
            "folded": self.folded,
            "estimated_rows": self.estimated_rows,
            "statistics": self.statistics or None,
            "actual_rows": self.actual_rows,
            "warning": self.warning,
            "seconds": self.seconds,
            "requests": self.requests,
            "bytes": self.bytes,
            "exact": self.exact,
            "coverage": None if self.coverage is None else dict(self.coverage),
            "recall": self.recall,
            "embedding": self.embedding,
            "inner": [each.to_dict() for each in self.inner] or None,
        }
        return {name: value for name, value in members.items() if value is not None}

    def lines(self, depth: int = 0) -> Iterator[str]:
        """The text form, one operator per line."""
        facts: list[str] = []
        if self.estimated_rows is not None:
            facts.append(f"about {_counted(self.estimated_rows, 'row')}")
        if self.actual_rows is not None:
            facts.append(_counted(self.actual_rows, "row"))
        if self.seconds is not None:
            facts.append(f"{self.seconds * 1000:.2f} ms")
        if self.bytes:
            facts.append(f"read {bytes_text(self.bytes)} in {_counted(self.requests or 0, 'request')}")
        tail = f"  [{', '.join(facts)}]" if facts else ""
        yield f"{'  ' * depth}{self.name} {self.detail}{tail}"
        if self.access:
            reason = f": {self.why}" if self.why else ""
            yield f"{'  ' * depth}    by {self.access}{reason}"
        for known in self.statistics:
            yield f"{'  ' * depth}    of {known}"
        if self.warning is not None:
            yield f"{'  ' * depth}    warning: {self.warning}"
        if self.folded:
            yield f"{'  ' * depth}    its rows are counted and summed, not made"
        if self.exact is not None:
            yield f"{'  ' * depth}    {self._answer_text()}"
        if self.embedding is not None:
            yield f"{'  ' * depth}    {self.embedding}"
        for each in self.inner:
            yield from each.lines(depth + 1)

    def _answer_text(self) -> str:
        answer = "exact answer" if self.exact else "approximate answer"
        if self.recall is not None:
            answer += f", recall {self.recall:.2f}"
        if self.coverage is None:
            return answer
        if self.coverage["state"] == "NotNeeded":
            return f"{answer}; no index is needed: {self.coverage['reason']}"
        told = [str(self.coverage[name]) for name in ("index", "reason") if name in self.coverage]
        return f"{answer}; coverage {self.coverage['state']} ({', '.join(told)})"


def bytes_text(size: int) -> str:
    """A number of bytes for people."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The plan of one query at one commit; with `analyze` also what a run did."""

    query_name: str
    commit_id: str
    operators: tuple[Operator, ...]
    order: str = ""
    """In which order the clauses are run and why, when they could be run in another one."""
    analyzed: bool = False
    rows: int | None = None
    seconds: float | None = None
    storage_calls: Mapping[str, int] = field(default_factory=dict[str, int])
    requests: int = 0
    bytes: int = 0
    """What the run read from tables; caches answer without reading."""
    memory_bytes_max: int | None = None
    """The largest set of working rows, in bytes."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        members: dict[str, Any] = {
            "query_name": self.query_name,
            "graph_commit_id": self.commit_id,
            "operators": [each.to_dict() for each in self.operators],
        }
        if self.order:
            members["order"] = self.order
        if self.analyzed:
            members["analyze"] = {
                "rows": self.rows,
                "seconds": self.seconds,
                "requests": self.requests,
                "bytes": self.bytes,
                "storage_calls": dict(self.storage_calls),
                "working_bytes_max": self.memory_bytes_max,
            }
        return members

    def __str__(self) -> str:
        lines = [f"query {self.query_name} at {self.commit_id}"]
        if self.order:
            lines.append(f"  clauses {self.order}")
        for each in self.operators:
            lines.extend(each.lines(1))
        if self.analyzed:
            calls = ", ".join(f"{count} {kind}" for kind, count in sorted(self.storage_calls.items()))
            took = (self.seconds or 0) * 1000
            read = f"read {bytes_text(self.bytes)} in {_counted(self.requests, 'request')}"
            gave = f"{_counted(self.rows or 0, 'row')} in {took:.2f} ms"
            lines.append(f"  {gave}; {read}; storage calls: {calls or 'none'}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def describe(
    reading: Reading, prepared: Prepared, trace: Trace | None = None, result_rows: int | None = None
) -> tuple[Operator, ...]:
    """The operators of a query as they will run, or as they ran. Cost: metadata of the tables it names.

    `trace` and `result_rows` are what a run measured and gave.
    """
    describer = _Describer(reading, trace, TableMeasures(reading))
    if prepared.terms:
        operators, rows = describer.terms(prepared.terms)
    else:
        operators, rows = describer.beginning(prepared.steps)
        rest, rows = describer.all(prepared.steps[describer.chained :], rows)
        operators += rest
    plan = prepared.plan
    for name, detail in explain.result_titles(plan):
        operator = Operator(name, detail)
        match name:
            case "rank" if plan.ranking is not None:
                describer.rank(operator, plan.ranking)
                if reading.rank_depth is not None:
                    rows = min(rows, float(reading.rank_depth))
            case "limit":
                end = rows if plan.limit is None else min(rows - plan.offset, float(plan.limit))
                rows = max(end, 0.0)
            case "aggregate":
                rows = rows * GROUPED_SHARE if plan.grouping else 1.0
            case _:
                pass
        if name in {"project", "aggregate"}:
            describer.searches(operator, *(column.expression for column in plan.columns))
        operator.estimated_rows = round(rows)
        operators.append(operator)
    if result_rows is not None:
        # What follows the match keeps one order of rows; only its end is known.
        operators[-1].actual_rows = result_rows
    return tuple(operators)


@dataclass(frozen=True, slots=True, eq=False)
class _Describer:
    reading: Reading
    trace: Trace | None
    measures: TableMeasures

    @property
    def chained(self) -> int:
        """How many steps a chain does, or did."""
        chain = self.reading.accesses.chain
        if chain is None:
            return 0
        return chain.steps if self.trace is None else len(self.trace.chained)

    def beginning(self, sequence: Sequence[steps.Step]) -> tuple[list[Operator], float]:
        """The operators of a chain: one that holds those of its steps. One step is itself."""
        chain = self.reading.accesses.chain
        if chain is None:
            return [], 1.0
        inner, rows = self.all(sequence[: self.chained], 1.0)
        counts: Sequence[int | None] = [None] * len(inner) if self.trace is None else self.trace.chained
        for operator, count in zip(inner, counts, strict=True):
            operator.actual_rows = count
        if chain.steps == 1:
            inner[0].take(self._cost(chain))
            return inner, rows
        operator = Operator("chain", chain.title, chain.how, chain.why, estimated_rows=round(rows))
        if self.chained < chain.steps:
            operator.why = chain.why_left(self.chained)
        operator.inner = inner
        operator.take(self._cost(chain))
        return [operator], rows

    def terms(self, terms: Sequence[CountedTerm]) -> tuple[list[Operator], float]:
        """What is counted and taken away, each with its own steps."""
        operators: list[Operator] = []
        total = 0.0
        for sign, told, term in terms:
            self.reading.accesses = decide(self.reading, term)
            operator = Operator("count" if sign > 0 else "without", told)
            operator.inner, rows = self.all(term.steps, 1.0)
            operator.estimated_rows = round(rows)
            total += sign * rows
            operators.append(operator)
        return operators, max(total, 0.0)

    def all(self, sequence: Sequence[steps.Step], rows: float) -> tuple[list[Operator], float]:
        operators: list[Operator] = []
        for step in sequence:
            name, detail = explain.title_of(step)
            operator = Operator(name, detail)
            operator.inner, _ = self.all(steps.inner_steps(step), rows)
            self._access(operator, step)
            rows *= self._factor(step)
            operator.estimated_rows = round(rows)
            operator.statistics = self.measures.known_of(step)
            operator.take(self._cost(step))
            operators.append(operator)
        return operators, rows

    def _cost(self, subject: object) -> StepCost | None:
        return None if self.trace is None else self.trace.costs.get(id(subject))

    def _access(self, operator: Operator, step: steps.Step) -> None:
        accesses = self.reading.accesses
        match step:
            case steps.Scan():
                access = accesses.scans.get(step, BY_KEY)
                operator.access, operator.why = access.how, access.why
            case steps.Expand():
                self._choice(operator, step, accesses.expands.get(step, IN_MEMORY))
                operator.folded = True if step is accesses.folded else None
            case steps.Filter():
                self.searches(operator, step.condition)
            case _:
                pass

    def _choice(self, operator: Operator, subject: object, choice: Choice[Any]) -> None:
        """The way that was taken; before a run, the ways that may be."""
        taken = [] if self.trace is None else self.trace.ways.get(id(subject), [])
        names = [way.how for way in taken]
        if len(choice.ways) > 1:
            operator.ways = [
                {"access": way.how, "why": way.why} | ({} if most is None else {"rows_max": most})
                for most, way in choice.ways
            ]
            names = names or [
                way.how if most is None else f"{way.how} up to {most:,} rows" for most, way in choice.ways
            ]
        ways = taken or [way for _, way in choice.ways]
        operator.access = ", then ".join(names) or ways[0].how
        operator.why = ways[0].why

    def _factor(self, step: steps.Step) -> float:
        """How many rows come out for each that goes in."""
        measures = self.measures
        match step:
            case steps.Scan():
                if step.key is not None:
                    return 1.0
                return measures.rows(step.node) * measures.share(step.node, step.test)
            case steps.Expand() if step.closes:
                return min(measures.degree(step.edge, step.direction) / self._ends(step), 1.0)
            case steps.Expand():
                degree = measures.degree(step.edge, step.direction)
                reached = sum(degree**hop for hop in range(step.low, step.high + 1))
                share = 1.0 if step.node is None else measures.share(step.node, step.test)
                return min(reached, self._ends(step)) * share
            case steps.Intersect():
                lead, *others = sorted(step.arms, key=self._factor)
                share = 1.0 if step.node is None else measures.share(step.node, step.test)
                for arm in others:
                    share *= min(self._factor(arm) / self._ends(arm), 1.0)
                return self._factor(lead) * share
            case steps.Paths():
                return self._factor(step.forward)
            case steps.Nothing():
                return 0.0
            case steps.Test():
                return measures.share(step.node, step.test)
            case steps.Filter(condition=ir.Comparison() as condition):
                test = steps.constant_test(condition)
                return OTHER_SHARE if test is None else measures.share(test[0].owner, test[1])
            case steps.Filter() | steps.Without():
                return OTHER_SHARE
            case steps.Maybe():
                return 1.0

    def _ends(self, step: steps.Expand) -> float:
        """How many nodes an edge can lead to."""
        tables = self.reading.edge_tables(step.edge)
        backward = step.direction is steps.Direction.BACKWARD
        return float(max((tables.sources if backward else tables.targets).row_count, 1))

    def rank(self, operator: Operator, ranking: ir.Ranking) -> None:
        """Say how a ranking finds the best rows."""
        operator.take(self._cost(ranking))
        if not isinstance(ranking, ir.Rrf):
            self._search(operator, ranking)
            self._embed(operator, ranking)
            return
        operator.access, operator.why = "both rankings", "fused by rank"
        for arm in (ranking.first, ranking.second):
            part = Operator("arm", explain.operand_text(arm))
            self._search(part, arm)
            self._embed(part, arm)
            operator.inner.append(part)

    def searches(self, operator: Operator, *items: ir.ColumnExpr | ir.Condition) -> None:
        """Say how the searches in expressions or a condition are answered: one on the operator itself."""
        found = [search for item in items for search in mentions.searches_in(item)]
        if len(found) == 1:
            self._search(operator, found[0])
        else:
            for search in found:
                part = Operator("search", explain.operand_text(search))
                self._search(part, search)
                operator.inner.append(part)
        self._embed(operator, *found)

    def _search(self, operator: Operator, search: ir.SearchExpr) -> None:
        choice = self.reading.accesses.searches[id(search)]
        self._choice(operator, search, choice)
        taken = [] if self.trace is None else self.trace.ways.get(id(search), [])
        ways = [way for way in taken if isinstance(way, Access)] or [way for _, way in choice.ways]
        operator.exact = all(way.exact for way in ways)
        operator.coverage = coverage_of(self.reading, search.property)
        operator.recall = None if self.trace is None else self.trace.recalls.get(id(search))

    def _embed(self, operator: Operator, *searches: ir.SearchExpr) -> None:
        """Say how the texts that are compared with vectors are embedded. Embeds none."""
        found = mentions.embedded(searches)
        if not found:
            return
        try:
            model = usable_embedder(self.reading.session.embedder, found).model
        except EmbedderError as error:
            operator.embedding = f"the text cannot be embedded: {error.message}"
        else:
            operator.embedding = f"the text is embedded by the model '{model}'"
