"""The question a step that others would see asks first: is the writer lease still this process's?"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from omnigraph.core.errors import LeaseLost
from omnigraph.core.events import tidying

Fence = Callable[[], None]
"""Raises `LeaseLost` once another process has the lease: what the step is about may be that one's by then."""


def unfenced() -> None:
    """The fence of a caller whom nobody can overtake."""


@contextmanager
def taken_back(what: str, fence: Fence, undo: Callable[[], object]) -> Generator[None]:
    """Undo what fails half-way, unless another process has the lease: what is there may be that one's.

    The failure is then told as the loss of the lease; an interrupt stays one. A failure to undo is a warning.
    """
    try:
        yield
    except BaseException as error:
        lost: LeaseLost | None = None
        with tidying(f"{what} could not be taken back"):
            try:
                fence()
            except LeaseLost as found:
                lost = found
            else:
                undo()
        if lost is not None and isinstance(error, Exception):
            raise lost from error
        raise
