"""The ways a step of a query can get its rows, as a value: the engine runs it, `explain` prints it."""

from typing import Generic, Protocol, TypeVar

from omnigraph.core.late_dataclass import dataclass


class Way(Protocol):
    """One way to get rows, in words."""

    @property
    def how(self) -> str:
        """Its name."""
        ...

    @property
    def why(self) -> str:
        """The reason it is taken."""
        ...


W = TypeVar("W", bound=Way)
V = TypeVar("V", bound=Way)


@dataclass(frozen=True, slots=True)
class Choice(Generic[W]):
    """One way, or one for few rows and another for more.

    It is made before the query runs, from counts and from what is in memory. Only how many rows the step
    will meet is not known then; so the value holds a way for every number of them.
    """

    ways: tuple[tuple[int | None, W], ...]
    """Each with the greatest number of rows it is for, ascending; the last has no bound."""

    @staticmethod
    def of(way: V) -> "Choice[V]":
        """The same way for any number of rows."""
        return Choice(((None, way),))

    def at(self, rows: float) -> W:
        """The way for this many rows."""
        return next(way for rows_max, way in self.ways if rows_max is None or rows <= rows_max)
