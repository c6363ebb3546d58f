"""One call of a route as its handler sees it, and what a handler may be told to ask first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from omnigraph.core.ids import normalize_branch, show_branch
from omnigraph.core.limits import SERVER_READ_ROWS_MAX
from omnigraph.core.permission import Action, Question
from omnigraph.server.stored import NO_QUERIES, StoredQueries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from omnigraph.api.graph import Graph
    from omnigraph.core.cancel import Cancellation
    from omnigraph.core.permission import Decision
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
    headers: Mapping[str, str]
    """Of the request, by lower-case name."""
    cancel: Cancellation
    decided: Callable[[Question], Decision]
    """The answer to a question that comes up on the way. A refusal is one of a part of the work."""
    records: Any = None
    """The body of a load, as a file."""
    key: str | None = None
    """The idempotency key."""
    rows_max: int = SERVER_READ_ROWS_MAX
    """How many rows a read may give."""
    stored: StoredQueries = NO_QUERIES
    """The stored queries of the graph."""

    @property
    def accept(self) -> str:
        """The kinds of answers the caller understands."""
        return self.headers.get("accept", "")


class Work(Protocol):
    """A handler. It runs in a worker and may block."""

    def __call__(self, call: Call[Any]) -> Answer | Stream:
        """Do what was asked for."""
        ...


def branch_named(name: str | None) -> str:
    """The branch a request names, trimmed, so that blanks cannot dodge a rule. Raises BadRequest."""
    return show_branch(normalize_branch("main" if name is None else name))


class At(str):
    """A reference instead of a branch: a commit, a tag or a branch. What it names is looked up before the
    question is asked, and a refusal looks like a reference that names nothing.
    """

    __slots__ = ()


class IfMissing(str):
    """A target branch that is made only where it is missing; there is no question where it exists."""

    __slots__ = ()


EVERY_BRANCH: Final = "*"
"""Instead of a branch: the question is asked about each of them. No branch can be named like this."""


def _state(said: Any) -> str:
    return branch_named(said.branch) if said.at is None else At(said.at)


def reads_state(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of a read that names a branch, or a commit or tag, or nothing for main."""
    del names
    return (Question(Action.READ, _state(said)),)


def reads_state_or_all(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of a read that names a state, or nothing for all branches."""
    if said.branch is None and said.at is None:
        return reads_every_branch(said, names)
    return reads_state(said, names)


def reads_every_branch(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of a read of all branches."""
    del said, names
    return (Question(Action.READ, EVERY_BRANCH),)


def reads_branch(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of a read of a branch itself."""
    del names
    return (Question(Action.READ, branch_named(said.branch)),)


def reads_at(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of a read of what `at` names."""
    del names
    return (Question(Action.READ, At(said.at)),)


def reads_commit(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question about a commit in the path."""
    del said
    return (Question(Action.READ, At(names["commit"])),)


def reads_both(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The questions of a comparison."""
    del names
    return (Question(Action.READ, At(said.old)), Question(Action.READ, At(said.new)))


def exports_state(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of an export."""
    del names
    return (Question(Action.EXPORT, _state(said)),)


def exports_branch(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of an export of a branch itself."""
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


def invokes(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of a call by name. What the query itself asks for comes after it."""
    del said
    return (Question(Action.INVOKE_QUERY, query=names["name"]),)


def loads_branch(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The questions of a load: with a base it makes its branch where it is missing."""
    (change,) = changes_branch(said, names)
    if said.base is None or change.branch is None:
        return (change,)
    return (change, Question(Action.BRANCH_CREATE, branch_named(said.base), IfMissing(change.branch)))


def takes_back(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The questions of a revert."""
    return (*changes_branch(said, names), Question(Action.READ, At(said.commit)))


def restores(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The questions of a restore."""
    return (*changes_branch(said, names), Question(Action.READ, At(said.to)))


def names_commit(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The questions of a new tag. Tags belong to the whole graph, as main does."""
    del names
    return (Question(Action.CHANGE, "main"), Question(Action.READ, At(said.at)))


def changes_main(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of a write that belongs to no other branch."""
    del said, names
    return (Question(Action.CHANGE, "main"),)


def makes_branch(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of a new branch."""
    del names
    return (Question(Action.BRANCH_CREATE, branch_named(said.base), branch_named(said.name)),)


def deletes_branch(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of a deletion."""
    del said
    return (Question(Action.BRANCH_DELETE, None, branch_named(names["branch"])),)


def merges(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of a merge."""
    del names
    return (Question(Action.BRANCH_MERGE, branch_named(said.source), branch_named(said.target)),)


def previews(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The questions of a look at a merge."""
    del names
    sides = (said.source, said.target)
    return tuple(Question(Action.READ, branch_named(each)) for each in sides)


def applies_schema(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of a schema change."""
    del said, names
    return (Question(Action.SCHEMA_APPLY, None, "main"),)


def keeps_up(said: Any, names: Mapping[str, str]) -> tuple[Question, ...]:
    """The question of upkeep."""
    del said, names
    return (Question(Action.ADMIN),)
