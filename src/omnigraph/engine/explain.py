"""What a run of a query did, step by step."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from omnigraph.planning.steps import Step


@dataclass(slots=True)
class StepCost:
    """What one step did over all its runs."""

    runs: int = 0
    rows_in: int = 0
    rows_out: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list[str])


class Trace:
    """Collects what each step of one run did. Not thread-safe: one per run."""

    def __init__(self) -> None:
        self.costs: dict[int, StepCost] = {}
        self._open: list[StepCost] = []

    @contextmanager
    def step(self, step: Step, rows_in: int) -> Generator[Callable[[int], None]]:
        """Time a step; the callable takes the number of rows that came out."""
        cost = self.costs.setdefault(id(step), StepCost())
        cost.runs += 1
        cost.rows_in += rows_in
        self._open.append(cost)
        begun = time.perf_counter()

        def done(rows_out: int) -> None:
            cost.rows_out += rows_out

        try:
            yield done
        finally:
            cost.seconds += time.perf_counter() - begun
            self._open.pop()

    def note(self, text: str) -> None:
        """Say how the current step got its rows."""
        if self._open and text not in self._open[-1].notes:
            self._open[-1].notes.append(text)
