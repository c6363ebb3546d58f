"""What is wrong with records of an input: where and which rule. Counted exactly, kept up to a bound."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from omnigraph.core.errors import Violation
from omnigraph.core.errors.faults import over_limit_text

PROBLEMS_KEPT_PER_KIND_MAX: Final = 100
"""Problems of one kind that a report spells out; the totals count every one."""

LINE_BITS: Final = 40
"""An order is `split << LINE_BITS | line`: input order as one number, and the way back to file and line."""

NO_RECORD: Final = -1
"""The order of a problem that no record of the input causes."""

KINDS: Final = (
    "resource_limit",
    "format",
    "blob_policy",
    "blob_source",
    "required",
    "enum",
    "range",
    "check",
    "unique",
    "key_conflict",
    "endpoint",
    "cardinality",
)
"""Every kind, in the order in which a report and its headline name them."""


def order_of(split: int, line: int) -> int:
    """The place of a record in the whole input."""
    return (split << LINE_BITS) | line


def split_of(order: int) -> int:
    """The split an order lies in."""
    return order >> LINE_BITS


def line_of(order: int) -> int:
    """The line of an order, counted from 0 within its split."""
    return order & ((1 << LINE_BITS) - 1)


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule of one record. `order` is `NO_RECORD` when none of the input is at fault."""

    kind: str
    order: int
    message: str
    entity_kind: str | None = None
    type_name: str | None = None
    entity_id: str | None = None
    property: str | None = None
    file: str | None = None
    line: int | None = None
    limit: int | None = None
    actual: int | None = None
    hint: str | None = None
    """The way out, where one is known."""

    def to_dict(self) -> dict[str, Any]:
        """JSON members, without absent ones, the internal order and the hint, which the error has."""
        members = asdict(self)
        del members["order"], members["hint"]
        return {name: value for name, value in members.items() if value is not None}


def problem_of(broken: Violation, order: int, *, hint: str | None = None) -> Problem:
    """A broken rule as a problem of the record with this order."""
    return Problem(
        kind=broken.rule,
        order=order,
        message=broken.message,
        entity_kind=broken.entity_kind,
        type_name=broken.type_name,
        entity_id=broken.entity_id,
        property=broken.property,
        hint=hint,
    )


def over_limit(order: int, resource: str, actual: int, limit: int) -> Problem:
    """A record that is larger than one may be."""
    return Problem(
        kind="resource_limit",
        order=order,
        message=over_limit_text(resource, actual, limit),
        property=resource,
        limit=limit,
        actual=actual,
    )


@dataclass(frozen=True, slots=True)
class Fault:
    """Records that take part in violations of one rule by one type."""

    kind: str
    type_name: str
    orders: NDArray[np.int64]
    partners: NDArray[np.int64] | None = None
    """For each of them another record of the input that takes part; -1 where there is none."""


@dataclass(slots=True)
class ProblemLog:
    """The first problems of each kind in input order, and exact totals per kind."""

    kept: dict[str, list[Problem]] = field(default_factory=dict[str, list[Problem]])
    totals: dict[str, int] = field(default_factory=dict[str, int])
    kept_max: int = PROBLEMS_KEPT_PER_KIND_MAX

    def add(self, kind: str, problems: Iterable[Problem], count: int) -> None:
        """Count `count` problems and build only as many as are kept."""
        if count == 0:
            return
        self.totals[kind] = self.totals.get(kind, 0) + count
        kept = self.kept.setdefault(kind, [])
        room = self.kept_max - len(kept)
        if room > 0:
            kept.extend(problem for problem, _ in zip(problems, range(room), strict=False))

    def add_one(self, problem: Problem) -> None:
        """Count and keep one problem."""
        self.add(problem.kind, (problem,), 1)

    def merge(self, other: "ProblemLog") -> None:
        """Take over another log; of each kind the first in input order are kept."""
        for kind, total in other.totals.items():
            self.totals[kind] = self.totals.get(kind, 0) + total
            both = self.kept.get(kind, []) + other.kept.get(kind, [])
            both.sort(key=lambda problem: problem.order)
            self.kept[kind] = both[: self.kept_max]

    @property
    def total(self) -> int:
        """All problems of all kinds."""
        return sum(self.totals.values())

    def listed(self) -> list[Problem]:
        """The kept problems, kind by kind in the order of `KINDS`, then in input order."""
        listed: list[Problem] = []
        for kind in KINDS:
            listed += sorted(self.kept.get(kind, []), key=lambda problem: problem.order)
        return listed

    def first(self) -> "ProblemLog":
        """The log with no more problems of each kind than a report spells out."""
        kept = {
            kind: sorted(problems, key=lambda problem: problem.order)[:PROBLEMS_KEPT_PER_KIND_MAX]
            for kind, problems in self.kept.items()
        }
        return ProblemLog(kept, dict(self.totals))
