"""Asking wrongly: the request, its sources or its data break a rule."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from omnigraph.core.errors.base import RequestError, placed, with_candidates
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import VIOLATIONS_REPORTED_MAX


@dataclass(frozen=True, slots=True)
class SourceError:
    """Where in a query, schema, policy or data file the failure lies. Lines and columns count from 1."""

    line: int
    column: int
    file: str | None = None
    end_line: int | None = None
    end_column: int | None = None
    lint_code: str | None = None
    snippet: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The `source_error` detail object, without absent members."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class UsageError(RequestError):
    """Wrong flags or arguments of a command."""

    kind = "usage"


class BadRequest(RequestError):
    """Malformed or meaningless request."""

    kind = "bad_request"


class AmbiguousTarget(RequestError):
    """Two answers to the question which graph or which snapshot is meant."""

    kind = "ambiguous_target"


TargetConflict = AmbiguousTarget


class NotRemote(RequestError, AttributeError):
    """A graph behind a server does not have this; one that is opened by its storage has."""

    kind = "not_remote"


class UnsupportedMediaType(RequestError):
    """The content type of the body is not accepted here."""

    kind = "unsupported_media_type"


class MethodNotAllowed(RequestError):
    """The route exists, the HTTP method does not."""

    kind = "method_not_allowed"


class ChangeCursorRejected(RequestError):
    """A change cursor is damaged or was made for other filters, another branch or another graph."""

    kind = "change_cursor_rejected"


class SourceFailure(RequestError):
    """A failure in a source text. `diagnostics` holds every finding of the run, in source order."""

    def __init__(
        self,
        message: str,
        *,
        source_error: SourceError | None = None,
        candidates: Sequence[str] = (),
        diagnostics: Sequence[Any] = (),
        hint: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        merged = with_candidates(details, tuple(candidates))
        if source_error is not None:
            merged["source_error"] = source_error.to_dict()
        super().__init__(message, hint=hint, details=merged)
        self.source_error = source_error
        self.candidates = tuple(candidates)
        self.diagnostics: tuple[Any, ...] = tuple(diagnostics)

    def name_file(self, file: str) -> None:
        """Say which file the text is from, when whoever compiled it was not told."""
        if self.source_error is None or self.source_error.file is not None:
            return
        self.source_error = replace(self.source_error, file=file)
        self.details["source_error"] = self.source_error.to_dict()
        self.diagnostics = tuple(replace(each, file=file) for each in self.diagnostics)


class QueryError(SourceFailure):
    """A query text or its use is wrong."""

    kind = "query_execution"


class QuerySyntaxError(QueryError):
    """The query source does not parse."""

    kind = "query_syntax"


class QueryTypeError(QueryError):
    """The query parses and breaks a type rule; the T-code is `source_error.lint_code`."""

    kind = "query_type"


class QueryNotSelected(QueryError):
    """Several queries in one source and none named, or the named one is not in it."""

    kind = "query_not_selected"


class AmbiguousQuery(QueryNotSelected):
    """Several queries in one source and none named."""


class WrongQueryKind(QueryError):
    """A mutation given to a read entry point, or the reverse."""

    kind = "wrong_query_kind"


class MutationShapeError(QueryError):
    """One query inserts or updates and deletes as well (D2)."""

    kind = "mixed_mutation"


class QueryRuntimeError(QueryError):
    """Overflow, division or another failure while rows are computed."""

    kind = "query_execution"


class SumOverflow(QueryRuntimeError):
    """The sum of a group of integers does not fit I64."""

    def __init__(self, argument: str) -> None:
        super().__init__(
            f"the sum of {argument} does not fit I64",
            hint="sum over fewer rows or smaller groups; avg does not overflow",
            details={"argument": argument},
        )
        self.argument = argument


class NegativeWeight(QueryRuntimeError):
    """A path is weighed by a property that is negative on some edge."""

    def __init__(self, edge: str, prop: str, least: float) -> None:
        super().__init__(
            f"a path is weighed by {edge}.{prop}, and that is {least:g} on one of the edges",
            hint="weigh by a property that is never negative; @range in the schema keeps it so",
            details={"type_name": edge, "property_name": prop, "least": least},
        )
        self.edge, self.property, self.least = edge, prop, least


class ParamError(QueryError):
    """A parameter is missing, unknown or of the wrong type."""

    kind = "parameter_type"

    def __init__(
        self,
        message: str,
        *,
        parameter: str,
        candidates: Sequence[str] = (),
        hint: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, candidates=candidates, hint=hint, details=details)
        self.parameter = parameter


class MissingParameter(ParamError):
    """A required parameter has no value."""

    kind = "missing_parameter"

    def __init__(self, parameter: str, *, message: str | None = None, hint: str | None = None) -> None:
        super().__init__(
            message or f"parameter '${parameter}' is required and has no value",
            parameter=parameter,
            hint=hint or f"pass a value for '{parameter}'",
        )


class UnknownParameter(ParamError):
    """A value was passed for a name the query does not declare."""

    kind = "unknown_parameter"

    def __init__(self, parameter: str, *, candidates: Sequence[str] = (), hint: str | None = None) -> None:
        if hint is None and candidates:
            hint = f"did you mean '{candidates[0]}'?"
        super().__init__(
            f"the query declares no parameter '${parameter}'",
            parameter=parameter,
            candidates=candidates,
            hint=hint,
        )


class ParameterTypeError(ParamError):
    """A parameter value does not fit the declared type. The value itself is not repeated."""

    kind = "parameter_type"

    def __init__(self, parameter: str, *, expected: str, reason: str | None = None) -> None:
        text = f"parameter '${parameter}' expects {expected}"
        super().__init__(f"{text}: {reason}" if reason else text, parameter=parameter)
        self.expected = expected


class SchemaError(SourceFailure):
    """A schema text or a schema change is wrong."""

    kind = "schema_invalid"


class SchemaSyntaxError(SchemaError):
    """The schema source does not parse."""

    kind = "schema_syntax"


class SchemaRuleError(SchemaError):
    """The schema parses and breaks a rule."""

    kind = "schema_invalid"


class SchemaCatalogError(SchemaRuleError):
    """Types of the schema contradict each other."""


class SchemaIdentityError(SchemaRuleError):
    """Stable identities contradict the names (renames, reuse)."""


class MigrationUnsupported(SchemaError):
    """The planner refuses a schema change; codes are in the diagnostics."""

    kind = "unsupported_migration"


class DataLossNotAllowed(SchemaError):
    """A hard drop without consent."""

    kind = "data_loss_not_allowed"


class LoadError(RequestError):
    """The input of a load is wrong."""

    kind = "load_record"


class LoadFormatError(LoadError):
    """One record is malformed, names an unknown type or member, or holds a value that does not fit."""

    kind = "load_record"

    def __init__(
        self,
        *,
        line: int | None,
        message: str,
        file: str | None = None,
        column: int | None = None,
        candidates: Sequence[str] = (),
        hint: str | None = None,
    ) -> None:
        details = with_candidates(None, tuple(candidates))
        if line is not None:
            details["source_error"] = SourceError(line=line, column=column or 1, file=file).to_dict()
        super().__init__(placed(message, file, line), hint=hint, details=details)
        self.line = line
        self.file = file
        self.reason = message


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: required, unique, range, check, enum, cardinality, endpoint, type or key."""

    rule: str
    entity_kind: str
    type_name: str
    entity_id: str | None = None
    property: str | None = None
    message: str = ""
    line: int | None = None
    file: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The `constraint` detail object, without absent members."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class ConstraintError(RequestError):
    """Data breaks a rule of the schema."""

    kind = "constraint_violation"


class ConstraintViolation(ConstraintError):
    """One or more broken rules; the first is the headline, `total` counts also those not listed."""

    kind = "constraint_violation"

    def __init__(
        self, *, violations: Sequence[Violation], total: int | None = None, hint: str | None = None
    ) -> None:
        if not violations:
            msg = "a constraint violation names at least one broken rule"
            raise ValueError(msg)
        self.violations = tuple(violations[:VIOLATIONS_REPORTED_MAX])
        self.total = max(total or 0, len(violations))
        first = self.violations[0]
        details: dict[str, Any] = {"constraint": first.to_dict()}
        if first.line is not None:
            details["source_error"] = SourceError(line=first.line, column=1, file=first.file).to_dict()
        if self.total > 1:
            details["constraints"] = [violation.to_dict() for violation in self.violations]
            details["constraints_total"] = self.total
        text = first.message or f"{first.entity_kind} type '{first.type_name}' breaks the rule '{first.rule}'"
        if self.total > 1:
            text = f"{text} (and {self.total - 1} more)"
        super().__init__(placed(text, first.file, first.line), hint=hint, details=details)

    @property
    def rule(self) -> str:
        """The rule of the headline violation."""
        return self.violations[0].rule


class KeyImmutable(ConstraintViolation):
    """An update assigns a key property."""

    def __init__(self, *, type_name: str, property_name: str, entity_id: str | None = None) -> None:
        super().__init__(
            violations=[
                Violation(
                    rule="key",
                    entity_kind="node",
                    type_name=type_name,
                    entity_id=entity_id,
                    property=property_name,
                    message=f"key property '{property_name}' of node type '{type_name}' cannot be updated",
                )
            ],
            hint="delete the entity and insert it under its new key",
        )


class PropertyValueError(ConstraintViolation):
    """A value does not fit the type of its property."""

    def __init__(
        self,
        *,
        entity_kind: str,
        type_name: str,
        property_name: str,
        message: str,
        entity_id: str | None = None,
        line: int | None = None,
    ) -> None:
        super().__init__(
            violations=[
                Violation(
                    rule="type",
                    entity_kind=entity_kind,
                    type_name=type_name,
                    entity_id=entity_id,
                    property=property_name,
                    message=message,
                    line=line,
                )
            ]
        )


class BlobPolicyError(RequestError):
    """An external blob URI lies outside the allowed bases."""

    kind = "external_blob_policy"
