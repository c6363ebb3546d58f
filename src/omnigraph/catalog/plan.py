"""A schema plan: the steps that turn the accepted schema into the desired one, each classed."""

from dataclasses import field, fields
from enum import StrEnum
from typing import Any, ClassVar, cast

from omnigraph.catalog.ir import default_json
from omnigraph.catalog.schema import Catalog, Constraint, ConstraintKind, Default, TypeKind
from omnigraph.core.late_dataclass import dataclass
from omnigraph.language.diagnostics import Diagnostic


class StepClass(StrEnum):
    """What a step asks of the user: nothing, rows that keep a rule, a look at what is lost, another plan."""

    SUPPORTED = "supported"
    VALIDATED = "validated"
    DESTRUCTIVE = "destructive"
    REFUSED = "refused"


class StepWork(StrEnum):
    """What a step does to a table that has rows."""

    METADATA = "metadata"
    COLUMN = "column"
    """The values of one column are written; no other column is."""
    CHECK = "check"
    """Every row is read, and one that breaks the new rule refuses the plan."""


class DropMode(StrEnum):
    """Soft keeps the past readable; hard reclaims it right after the publish."""

    SOFT = "soft"
    HARD = "hard"


@dataclass(frozen=True, slots=True)
class Step:
    """One change. `kind` is its stable name; `additive` steps may be applied beside live branches."""

    kind: ClassVar[str]
    step_class: ClassVar[StepClass] = StepClass.SUPPORTED
    additive: ClassVar[bool] = False

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: `kind`, then the fields of the step; what is absent is left out."""
        form: dict[str, Any] = {"kind": self.kind}
        for member in fields(self):
            value = getattr(self, member.name)
            if value is not None:
                form[member.name] = _plain(value)
        return form


def _plain(value: Any) -> Any:
    match value:
        case StrEnum():
            return value.value
        case Constraint():
            return constraint_text(value)
        case Default():
            return default_json(value.value)
        case tuple():
            return list(cast("tuple[Any, ...]", value))
        case _:
            return value


def constraint_text(constraint: Constraint) -> str:
    """A constraint as a body writes it, whatever its form was."""
    members = ", ".join(constraint.properties)
    if constraint.range is not None:
        low, high = constraint.range.minimum, constraint.range.maximum
        members += f", {'' if low is None else low}..{'' if high is None else high}"
    if constraint.check is not None:
        members += f', "{constraint.check.pattern}"'
    return f"@{constraint.kind.value}({members})"


@dataclass(frozen=True, slots=True)
class AddType(Step):
    """A new declaration: an empty table, or nothing for an interface."""

    kind = "add_type"
    additive = True
    type_kind: TypeKind
    name: str


@dataclass(frozen=True, slots=True)
class RenameType(Step):
    """A declared rename: the same data and history under a new name."""

    kind = "rename_type"
    type_kind: TypeKind
    from_: str
    to: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"kind": self.kind, "type_kind": self.type_kind.value, "from": self.from_, "to": self.to}


@dataclass(frozen=True, slots=True)
class AddProperty(Step):
    """A new property. Existing rows get null, `backfill` when it is required and has a default, or what
    `fill` gives, an expression over the row.
    """

    kind = "add_property"
    type_kind: TypeKind
    type_name: str
    property_name: str
    property_type: str
    backfill: Default | None = None
    fill: str | None = None


@dataclass(frozen=True, slots=True)
class RenameProperty(Step):
    """A declared rename of a property: the same values under a new column name."""

    kind = "rename_property"
    type_kind: TypeKind
    type_name: str
    from_: str
    to: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "kind": self.kind,
            "type_kind": self.type_kind.value,
            "type_name": self.type_name,
            "from": self.from_,
            "to": self.to,
        }


@dataclass(frozen=True, slots=True)
class AddConstraint(Step):
    """A new rule that every row must keep; an `@index` is metadata only, the index is built later."""

    kind = "add_constraint"
    type_kind: TypeKind
    type_name: str
    constraint: Constraint


@dataclass(frozen=True, slots=True)
class RemoveConstraint(Step):
    """A rule that holds no longer: metadata only. Without a key the ids of the rows stay as they are."""

    kind = "remove_constraint"
    type_kind: TypeKind
    type_name: str
    constraint: Constraint


@dataclass(frozen=True, slots=True)
class RequireProperty(Step):
    """A nullable property that becomes required: no row may be without a value."""

    kind = "require_property"
    step_class = StepClass.VALIDATED
    type_kind: TypeKind
    type_name: str
    property_name: str


@dataclass(frozen=True, slots=True)
class AllowNull(Step):
    """A required property that becomes nullable: metadata only."""

    kind = "allow_null"
    additive = True
    type_kind: TypeKind
    type_name: str
    property_name: str


@dataclass(frozen=True, slots=True)
class WidenProperty(Step):
    """An integer of a type that holds every value it had."""

    kind = "widen_property"
    type_kind: TypeKind
    type_name: str
    property_name: str
    from_: str
    to: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "kind": self.kind,
            "type_kind": self.type_kind.value,
            "type_name": self.type_name,
            "property_name": self.property_name,
            "from": self.from_,
            "to": self.to,
        }


@dataclass(frozen=True, slots=True)
class NarrowEnum(Step):
    """An enum that lost values: no row may have one of them."""

    kind = "narrow_enum"
    step_class = StepClass.VALIDATED
    type_kind: TypeKind
    type_name: str
    property_name: str
    removed_values: tuple[str, ...]
    added_values: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ChangeCardinality(Step):
    """Other bounds of the number of edges that one source may have."""

    kind = "change_cardinality"
    type_kind: TypeKind
    name: str
    from_: str
    to: str
    narrows: bool
    """Whether a source may break the new bounds that kept the old ones."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "kind": self.kind,
            "type_kind": self.type_kind.value,
            "name": self.name,
            "from": self.from_,
            "to": self.to,
        }


@dataclass(frozen=True, slots=True)
class ExtendEnum(Step):
    """An enum that gained values and lost none: metadata only."""

    kind = "extend_enum"
    additive = True
    type_kind: TypeKind
    type_name: str
    property_name: str
    added_values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UpdateTypeMetadata(Step):
    """`@description` or `@instruction` of a type changed. `annotations` has the new values, or None."""

    kind = "update_type_metadata"
    additive = True
    type_kind: TypeKind
    name: str
    annotations: dict[str, str | None] = field(default_factory=dict[str, str | None])


@dataclass(frozen=True, slots=True)
class UpdatePropertyMetadata(Step):
    """`@description` or `@default` of a property changed. Stored rows keep their values."""

    kind = "update_property_metadata"
    additive = True
    type_kind: TypeKind
    type_name: str
    property_name: str
    annotations: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class DropProperty(Step):
    """A property that is gone: the table shows the column no longer."""

    kind = "drop_property"
    step_class = StepClass.DESTRUCTIVE
    type_kind: TypeKind
    type_name: str
    property_name: str
    mode: DropMode


@dataclass(frozen=True, slots=True)
class DropType(Step):
    """A node or edge type that is gone: its table leaves the current graph version."""

    kind = "drop_type"
    step_class = StepClass.DESTRUCTIVE
    type_kind: TypeKind
    name: str
    mode: DropMode


@dataclass(frozen=True, slots=True)
class UnsupportedChange(Step):
    """A change the planner refuses; the whole plan is then not supported."""

    kind = "unsupported_change"
    step_class = StepClass.REFUSED
    type_kind: TypeKind
    entity: str
    reason: str
    code: str | None = None

    @property
    def message(self) -> str:
        """The reason, prefixed by its code in brackets when it has one."""
        return self.reason if self.code is None else f"[{self.code}] {self.reason}"


SchemaStep = (
    AddType
    | RenameType
    | AddProperty
    | RenameProperty
    | AddConstraint
    | RemoveConstraint
    | RequireProperty
    | AllowNull
    | WidenProperty
    | NarrowEnum
    | ChangeCardinality
    | ExtendEnum
    | UpdateTypeMetadata
    | UpdatePropertyMetadata
    | DropProperty
    | DropType
    | UnsupportedChange
)


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    """The comparison of two schemas. `desired` continues the identities of the accepted schema.

    `diagnostics` are the warnings about the desired text, such as ignored rename hints.
    """

    steps: tuple[SchemaStep, ...]
    desired: Catalog
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def supported(self) -> bool:
        """Whether every step can be performed."""
        return all(step.step_class is not StepClass.REFUSED for step in self.steps)

    @property
    def is_empty(self) -> bool:
        """Whether nothing would change."""
        return not self.steps

    @property
    def is_additive(self) -> bool:
        """Whether the plan may be applied while branches live."""
        return self.is_additive_in_turn and not (self._grown & self._loosened)

    @property
    def is_additive_in_turn(self) -> bool:
        """Whether each step is additive by itself.

        A branch adopts a table by one commit, and that cannot both add a column and let another be null: of
        two, recovery would take the first for all of it.
        """
        return all(is_additive(step) for step in self.steps)

    @property
    def _grown(self) -> set[str]:
        return {step.type_name for step in self.steps if isinstance(step, AddProperty)}

    @property
    def _loosened(self) -> set[str]:
        return {step.type_name for step in self.steps if isinstance(step, AllowNull)}

    @property
    def first_refusal(self) -> UnsupportedChange | None:
        """The refusal an apply reports."""
        return next((step for step in self.steps if isinstance(step, UnsupportedChange)), None)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: `supported` and `steps`."""
        return {"supported": self.supported, "steps": [step.to_dict() for step in self.steps]}


def is_additive(step: SchemaStep) -> bool:
    """Whether a branch that has not adopted the step still reads right."""
    match step:
        case AddProperty():
            return step.property_type.endswith("?") and step.fill is None
        case AddConstraint():
            return step.constraint.kind is ConstraintKind.INDEX
        case RemoveConstraint():
            return step.constraint.kind is not ConstraintKind.KEY
        case ChangeCardinality():
            return not step.narrows
        case _:
            return step.additive


def class_of(step: SchemaStep) -> StepClass:
    """What the step asks of the user."""
    return StepClass.VALIDATED if work_of(step) is StepWork.CHECK else step.step_class


def work_of(step: SchemaStep) -> StepWork:
    """What the step does to a table with rows. An interface has none."""
    match step:
        case _ if step.type_kind is TypeKind.INTERFACE:
            return StepWork.METADATA
        case AddProperty() if step.backfill is not None or step.fill is not None:
            return StepWork.COLUMN
        case WidenProperty():
            return StepWork.COLUMN
        case RequireProperty() | NarrowEnum():
            return StepWork.CHECK
        case AddConstraint() if step.constraint.kind is not ConstraintKind.INDEX:
            return StepWork.CHECK
        case ChangeCardinality() if step.narrows:
            return StepWork.CHECK
        case _:
            return StepWork.METADATA
