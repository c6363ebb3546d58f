"""Declarations on their way to a catalog: checked values that still know where they were written."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import field

from omnigraph.catalog.codes import Code
from omnigraph.catalog.schema import Annotation, Constraint, ConstraintKind, Property, TypeKind
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import DIAGNOSTICS_REPORTED_MAX
from omnigraph.language.diagnostics import Diagnostic, Severity, diagnose, near_names
from omnigraph.language.schema_tree import Name
from omnigraph.language.source import Source, Span


@dataclass(slots=True)
class Findings:
    """Collects what the stages find about one text.

    At most DIAGNOSTICS_REPORTED_MAX findings of each severity are kept, so that a hostile text stays cheap;
    `totals` counts all of them.
    """

    source: Source
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])
    totals: Counter[Severity] = field(default_factory=Counter[Severity])

    def report(
        self,
        code: Code,
        span: Span,
        message: str,
        *,
        severity: Severity = Severity.ERROR,
        near: tuple[str, Iterable[str]] | None = None,
        hint: str | None = None,
    ) -> None:
        """Adds one finding. `near` is the unknown name and the known ones it may have been meant as."""
        self.totals[severity] += 1
        if self.totals[severity] > DIAGNOSTICS_REPORTED_MAX:
            return
        candidates = () if near is None else near_names(*near)
        found = diagnose(
            self.source, span, message, code=code.value, severity=severity, candidates=candidates, hint=hint
        )
        self.diagnostics.append(found)

    def warn(
        self, code: Code, span: Span, message: str, *, near: tuple[str, Iterable[str]] | None = None
    ) -> None:
        """Adds one warning."""
        self.report(code, span, message, severity=Severity.WARNING, near=near)


@dataclass(frozen=True, slots=True)
class DraftConstraint:
    """A constraint and where it was written. Its `properties` may name properties that do not exist."""

    constraint: Constraint
    span: Span


@dataclass(frozen=True, slots=True)
class DraftProperty:
    """A property without its identity. `flags` are the constraints written as plain annotations."""

    prop: Property
    span: Span
    flags: tuple[ConstraintKind, ...] = ()
    rename_from: Name | None = None
    embed_span: Span | None = None


@dataclass(slots=True)
class DraftType:
    """A declared type without identities. Once interfaces are applied, `properties` has injected ones too."""

    kind: TypeKind
    name: str
    span: Span
    properties: dict[str, DraftProperty] = field(default_factory=dict[str, DraftProperty])
    constraints: list[DraftConstraint] = field(default_factory=list[DraftConstraint])
    description: str | None = None
    instruction: str | None = None
    merges_whole: bool = False
    annotations: tuple[Annotation, ...] = ()
    rename_from: Name | None = None
    implements: tuple[Name, ...] = ()
    source: Name | None = None
    target: Name | None = None
    card_min: int = 0
    card_max: int | None = None


@dataclass(frozen=True, slots=True)
class DraftSchema:
    """All declared types, each namespace in source order."""

    interfaces: dict[str, DraftType]
    nodes: dict[str, DraftType]
    edges: dict[str, DraftType]

    def types(self) -> tuple[DraftType, ...]:
        """Interfaces, nodes, edges, each in ascending name order: the order of first numbering."""
        return tuple(
            group[name] for group in (self.interfaces, self.nodes, self.edges) for name in sorted(group)
        )
