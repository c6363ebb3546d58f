"""One call of a route as its handler sees it, and what a handler may be told to ask first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from omnigraph.core.ids import normalize_branch, show_branch
from omnigraph.core.permission import Action, Question

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnigraph.api.graph import Graph
    from omnigraph.core.cancel import Cancellation
    from omnigraph.server.answers import Answer, Stream
    from omnigraph.server.bodies import Body

Said = TypeVar("Said", bound="Body")


@dataclass(frozen=True, slots=True)
class Call(Generic[Said]):
    """What was asked for, by whom, of which graph."""

    graph: Graph
    said: Said
    names: Mapping[str, str]
    """The parts of the path that a route leaves open."""
    actor: str | None
    accept: str
    cancel: Cancellation
    records: Any = None
    """The body of a load, as a file."""
    key: str | None = None
    """The idempotency key."""


class Work(Protocol):
    """A handler. It runs in a worker and may block."""

    def __call__(self, call: Call[Any]) -> Answer | Stream:
        """Do what was asked for."""
        ...


def branch_named(name: str | None) -> str:
    """The branch a request names, trimmed, so that blanks cannot dodge a rule. Raises BadRequest."""
    return show_branch(normalize_branch("main" if name is None else name))


def reads_target(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of a read that names a branch, or nothing for main."""
    del names
    return (Question(Action.READ, branch_named(said.branch)),)


def exports_target(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of an export."""
    del names
    return (Question(Action.EXPORT, branch_named(said.branch)),)


def reads_main(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of what belongs to no branch."""
    del said, names
    return (Question(Action.READ, "main"),)


def changes_branch(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of a write."""
    del names
    return (Question(Action.CHANGE, branch_named(said.branch)),)


def loads_branch(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The questions of a load: with a base it may make its branch."""
    (change,) = changes_branch(said, names)
    if said.base is None:
        return (change,)
    return (change, Question(Action.BRANCH_CREATE, branch_named(said.base), change.branch))
