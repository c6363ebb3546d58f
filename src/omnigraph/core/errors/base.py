"""The root of the error tree and its families.

OmnigraphError
 ├─ RequestError        asked wrongly        (QueryError, SchemaError, LoadError, ConstraintError)
 ├─ NotFoundError       not there
 ├─ ConflictError       somebody else, or already there
 ├─ PermissionDenied    not allowed
 ├─ LimitError          too much
 ├─ InterruptedWrite    something stopped half-way  (RecoveryRequired, ...)
 └─ StorageError, EnvironmentFault, InternalError
"""

from collections.abc import Mapping
from typing import Any, Self

from omnigraph.core.errors.kinds import FACTS, KindFacts, Retry


class OmnigraphError(Exception):
    """Every failure a caller can see. Decide on `kind`, never on the text.

    Concrete classes fix `kind`; the root class takes any kind, also one only a newer server knows.
    """

    kind: str = "internal"

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        hint: str | None = None,
        retry: Retry | str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint
        self.retry = Retry(retry) if retry is not None else self.facts.retry
        self.details: dict[str, Any] = dict(details or {})

    @property
    def facts(self) -> KindFacts:
        """The row of the kind table; the row of `internal` for an unknown kind."""
        return FACTS.get(self.kind) or FACTS["internal"]

    @property
    def http_status(self) -> int | None:
        """The HTTP status, or None when this failure is local to the client."""
        return self.facts.http_status

    @property
    def code(self) -> str | None:
        """The coarse code that goes with the HTTP status."""
        return self.facts.code

    @property
    def exit_status(self) -> int:
        """The exit status of the command line."""
        return self.facts.exit_status

    @property
    def effect_free(self) -> bool:
        """Whether it is certain that nothing happened."""
        return self.facts.effect_free

    def in_parameter_set(self, number: int) -> Self:
        """The same failure of a call with many parameter sets, naming the one it is about, counted from 1."""
        self.message = f"parameter set {number}: {self.message}"
        self.args = (self.message, *self.args[1:])
        self.details["parameter_set"] = number
        return self

    def to_dict(self) -> dict[str, Any]:
        """The object used by HTTP bodies, by `--json` on stderr and by Python callers alike."""
        body: dict[str, Any] = {"error": self.message}
        if self.code is not None:
            body["code"] = self.code
        body["kind"] = self.kind
        if self.hint is not None:
            body["hint"] = self.hint
        body["retry"] = str(self.retry)
        body.update(self.details)
        return body

    def __str__(self) -> str:
        """The message, and below it what to do next. Messages that quote a failure take `said` of it."""
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors take facts, not messages; a failure raised in a worker process travels as its state.
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


def _rebuild(cls: type[OmnigraphError], args: tuple[Any, ...], state: dict[str, Any]) -> OmnigraphError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class KnownError(OmnigraphError):
    """An error whose class fixes its kind. Subclasses set `kind`."""

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        retry: Retry | str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(type(self).kind, message, hint=hint, retry=retry, details=details)


def said(error: BaseException) -> str:
    """What a failure says, without the advice of our own errors."""
    return error.message if isinstance(error, OmnigraphError) else str(error)


class RequestError(KnownError):
    """The request itself is wrong; sending it again cannot help."""

    kind = "bad_request"


class NotFoundError(KnownError):
    """A named thing does not exist, or the caller may not know that it does."""

    kind = "entity_not_found"


class ConflictError(KnownError):
    """The request collides with existing state or with a concurrent change."""

    kind = "commit_conflict"


class PermissionDenied(KnownError):
    """The caller is not allowed to do this."""

    kind = "forbidden"


class LimitError(KnownError):
    """A stated ceiling, a busy resource or a time limit."""

    kind = "resource_limit"


class InterruptedWrite(KnownError):
    """A write stopped half-way, now or earlier; recovery or a look at the state comes first."""

    kind = "recovery_required"


class EnvironmentFault(KnownError):
    """Something outside the graph failed: files, network, a provider."""

    kind = "io"


class StorageError(EnvironmentFault):
    """The object store or the table storage failed."""

    kind = "storage_unknown"


class InternalError(KnownError):
    """Our fault. Nothing a caller did explains it."""

    kind = "internal"


def placed(message: str, file: str | None, line: int | None) -> str:
    """A message that begins with the place in an input it is about, where that is known."""
    if line is None:
        return message if file is None else f"{file}: {message}"
    return f"line {line}: {message}" if file is None else f"{file}:{line}: {message}"


def with_candidates(details: Mapping[str, Any] | None, candidates: tuple[str, ...]) -> dict[str, Any]:
    """`details` with at most three near names under `candidates`."""
    merged = dict(details or {})
    if candidates:
        merged["candidates"] = list(candidates[:3])
    return merged
