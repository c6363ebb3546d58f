"""Who may do what: the verbs, the answer to a question, and what the rooms below ask."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, Protocol

from omnigraph.core.late_dataclass import dataclass


class Action(StrEnum):
    """The verbs of a policy."""

    READ = "read"
    EXPORT = "export"
    CHANGE = "change"
    SCHEMA_APPLY = "schema_apply"
    BRANCH_CREATE = "branch_create"
    BRANCH_DELETE = "branch_delete"
    BRANCH_MERGE = "branch_merge"
    INVOKE_QUERY = "invoke_query"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody wants to do. Who it is, is asked separately: one who knows what is wanted cannot say
    who wants it.
    """

    action: Action
    branch: str | None = None
    target: str | None = None
    query: str | None = None
    """The stored query that is invoked."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one question. `rule` is the first by name of the rules that allowed it."""

    allowed: bool
    rule: str | None
    message: str


class Policy(Protocol):
    """Decides about one graph. Thread-safe, without I/O."""

    @property
    def tells_actors_apart(self) -> bool:
        """Whether the answer may depend on who asks."""
        ...

    def decide(self, actor: str | None, question: Question) -> Decision:
        """Whether this actor may do this. Raises PolicyEvaluationFailed."""
        ...


def refusal_text(actor: str, question: Question) -> str:
    """What a refused actor reads: their own question, and nothing about anybody else."""
    where = "" if question.branch is None else f" on branch '{question.branch}'"
    into = "" if question.target is None else f" with target branch '{question.target}'"
    return f"'{actor}' may not {question.action}{where}{into}"


class Everyone:
    """A policy without a bundle: the same for every actor, known or not."""

    tells_actors_apart = False

    def __init__(self, actions: Iterable[Action]) -> None:
        self._actions: Final = frozenset(actions)

    def decide(self, actor: str | None, question: Question) -> Decision:
        """Whether the action is one of those that everybody may do."""
        allowed = question.action in self._actions
        return Decision(allowed, None, "" if allowed else refusal_text(actor or "anonymous", question))


READERS: Final = Everyone((Action.READ, Action.EXPORT, Action.INVOKE_QUERY))
"""Everybody may look, nobody may change anything."""
WRITERS: Final = Everyone(Action)
"""Everybody may do everything."""
