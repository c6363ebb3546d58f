"""What a write says about its outcome when it stops: by an error of its own, or by an interrupt."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from omnigraph.core.errors import RecoveryRequired, RowLevelCasContention, UnpublishedWrite
from omnigraph.core.errors.base import said
from omnigraph.core.ids import OperationId


@contextmanager
def left_to_recovery(what: str, operation_id: OperationId, *, moved: Callable[[], bool]) -> Generator[None]:
    """Turn a failure after the first effect into one that says so; the sidecar stays.

    `what` names the write in the message ("the merge"). `moved` is asked when something fails: while no table
    has moved, the failure is raised as it is.
    """
    try:
        yield
    except RecoveryRequired:
        raise
    except Exception as error:
        if not moved():
            raise
        if isinstance(error, RowLevelCasContention):
            raise UnpublishedWrite(operation_id, attempts=error.attempts) from error
        message = f"{what} stopped half-way and must be recovered: {said(error)}"
        raise RecoveryRequired(message, operation_id) from error


class WriteCourse:
    """How far one call that writes has come. As a context manager it gives an interrupt (Ctrl-C) a note.

    An interrupt stays what it is, because callers rely on its type, and it may come between any two steps. So
    the course is moved on before an effect and after a publish: the note may say less than is so, never more.
    """

    def __init__(self, what: str, carried: Sequence["WriteCourse"] = ()) -> None:
        self.what = what
        """The call in messages: "the merge"."""
        self._carried = carried
        """Calls that this one carries; they come as far as it does."""
        self._operation_id: OperationId | None = None
        self._visible = False
        self._with_others = False
        self._told = False

    def intends(self, operation_id: OperationId) -> None:
        """From here on there may be a sidecar, and tables may move."""
        self._operation_id = operation_id
        for each in self._carried:
            each.intends(operation_id)

    def published(self) -> None:
        """The write is visible; what follows cannot take it back."""
        self._visible = True
        for each in self._carried:
            each.published()

    def left_to_others(self) -> None:
        """Another thread of this process carries the write, together with its own."""
        self._with_others = True

    @property
    def begun(self) -> bool:
        """Whether there may be an effect, seen by nobody yet or by everybody."""
        return self._operation_id is not None

    @property
    def operation_id(self) -> OperationId | None:
        """The operation whose sidecar there may be."""
        return self._operation_id

    @property
    def note(self) -> str:
        """What is known about the outcome, in one line."""
        if self._visible:
            return f"{self.what} was interrupted after its commit: it is complete and visible"
        if self._with_others:
            return (
                f"{self.what} was interrupted while another thread carried it together with others: it may"
                " still be completed, `omnigraph commit list` shows the outcome"
            )
        if self._operation_id is None:
            return f"{self.what} was interrupted before its first effect: nothing was changed"
        return (
            f"{self.what} was interrupted half-way and may have moved tables: the next opening for writing"
            f" settles it, then `omnigraph recoveries` and `omnigraph commit list` show the outcome"
            f" (operation {self._operation_id})"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt) and not self._told:
            self._told = True
            error.add_note(self.note)


def together(courses: Sequence[WriteCourse]) -> WriteCourse:
    """The course of calls that are carried as one write."""
    return courses[0] if len(courses) == 1 else WriteCourse(courses[0].what, courses)
