"""What operations report about themselves.

Operations call `emit` with small frozen values. Progress bars, logs, metrics and the probes of cost tests are
listeners. With no listener an emit costs one comparison; an event that is expensive to build goes under
`if listening():`.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Literal

from omnigraph.core.errors.base import said
from omnigraph.core.ids import Branch
from omnigraph.core.late_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """The base of every event."""


@dataclass(frozen=True, slots=True)
class TableStaged(Event):
    """Files of one table were written; nobody points at them yet."""

    table_key: str
    primitive: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TableCommitted(Event):
    """The HEAD of one table moved."""

    table_key: str
    version: int


@dataclass(frozen=True, slots=True)
class DurableOperation(Event):
    """One step toward durability, reported before and after it happens (crash tests act on it)."""

    kind: str
    path: str
    moment: Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class StorageCall(Event):
    """One call of the storage adapter or of a dataset. Cost tests count them."""

    kind: str
    target: str


@dataclass(frozen=True, slots=True)
class TableRead(Event):
    """One scan, search or take of a table read this much; told when it ended."""

    table_key: str
    requests: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PathTaken(Event):
    """A step or a search of a query gets its rows in this way. `explain` prints the same words."""

    step: str
    how: str


@dataclass(frozen=True, slots=True)
class Published(Event):
    """A branch shows a new state."""

    branch: Branch
    manifest_version: int
    commit_id: str


@dataclass(frozen=True, slots=True)
class SidecarWritten(Event):
    """Phase A of an operation is durable."""

    operation_id: str


@dataclass(frozen=True, slots=True)
class SidecarDeleted(Event):
    """Phase D of an operation is done."""

    operation_id: str


@dataclass(frozen=True, slots=True)
class RecoveryPerformed(Event):
    """A write of a dead writer was settled."""

    operation_id: str
    kind: str


@dataclass(frozen=True, slots=True)
class Progress(Event):
    """How far a long operation is. `total=None` while it is not known."""

    operation: str
    stage: str
    done: int
    total: int | None
    unit: str


@dataclass(frozen=True, slots=True)
class TextsEmbedded(Event):
    """Texts of a query or of a write were turned into vectors."""

    model: str
    texts: int
    dimension: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Warned(Event):
    """Something a user should know that does not stop the operation."""

    message: str
    detail: str | None = None


Listener = Callable[[Event], None]

_here: ContextVar[tuple[Listener, ...]] = ContextVar("omnigraph_listeners", default=())
_everywhere: tuple[Listener, ...] = ()
_open_listens = 0
_lock = threading.Lock()


def listening() -> bool:
    """Whether anybody in this process listens."""
    return _open_listens > 0


def emit(event: Event) -> None:
    """Hand the event to the listeners of the whole process, then to those of this context.

    A listener that raises stops the operation that emitted: probes of crash tests depend on it.
    """
    if _open_listens == 0:
        return
    for listener in _everywhere:
        listener(event)
    for listener in _here.get():
        listener(event)


@contextmanager
def listen(listener: Listener, *, everywhere: bool = False) -> Generator[None]:
    """Hear the events of this context, or with `everywhere` those of every thread of the process."""
    global _everywhere, _open_listens  # noqa: PLW0603  one counter makes the silent case one comparison
    token: Token[tuple[Listener, ...]] | None = None
    with _lock:
        _open_listens += 1
        if everywhere:
            _everywhere = (*_everywhere, listener)
    if not everywhere:
        token = _here.set((*_here.get(), listener))
    try:
        yield
    finally:
        if token is not None:
            _here.reset(token)
        with _lock:
            _open_listens -= 1
            if everywhere:
                remaining = list(_everywhere)
                remaining.remove(listener)
                _everywhere = tuple(remaining)


@contextmanager
def tidying(what: str) -> Generator[None]:
    """Clear away once an outcome is decided: a failure in here is a warning and changes nothing about it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  whatever it is, it is not the failure of the operation
        emit(Warned(what, said(error)))
