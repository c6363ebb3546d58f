"""What requests may say. One class for the body or the parameters of each route; nothing else is accepted."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """The base of all."""


Text = Annotated[str, Meta(min_length=1)]
Names = tuple[str, ...]


class Nothing(Body):
    """No parameters."""


class ReadTarget(Body):
    """The state a read sees: the head of a branch, or a commit, tag or branch `at`."""

    branch: str | None = None
    at: str | None = None


class QueryBody(ReadTarget, kw_only=True):
    """A query that reads."""

    query: Text
    name: str | None = None
    params: dict[str, Any] | None = None


class MutateBody(Body):
    """A query that writes."""

    query: Text
    name: str | None = None
    params: dict[str, Any] | None = None
    branch: str = "main"
    if_commit: str | None = None


class LoadParameters(Body):
    """How the records of a load are written."""

    branch: str = "main"
    base: str | None = msgspec.field(default=None, name="from")
    mode: Literal["append", "merge", "overwrite", "patch"] = "merge"
    if_commit: str | None = None


class ExportBody(ReadTarget):
    """What of a graph is exported."""

    type_names: Names | None = None
