"""Compares the accepted schema with a desired one and classes every difference."""

from collections.abc import Iterator, Mapping, Sequence

from omnigraph.catalog.build import resolve_schema, schema_error
from omnigraph.catalog.codes import ADD_REQUIRED_PROPERTY, CHANGE_PROPERTY_TYPE
from omnigraph.catalog.ir import default_json
from omnigraph.catalog.plan import (
    AddConstraint,
    AddProperty,
    AddType,
    AllowNull,
    ChangeCardinality,
    DropMode,
    DropProperty,
    DropType,
    ExtendEnum,
    NarrowEnum,
    RemoveConstraint,
    RenameProperty,
    RenameType,
    RequireProperty,
    SchemaPlan,
    SchemaStep,
    UnsupportedChange,
    UpdatePropertyMetadata,
    UpdateTypeMetadata,
    WidenProperty,
    constraint_text,
)
from omnigraph.catalog.schema import (
    Catalog,
    Constraint,
    ConstraintForm,
    EdgeType,
    Interface,
    NodeType,
    Property,
    TypeKind,
)
from omnigraph.catalog.types import INTEGER_BOUNDS, PropertyType
from omnigraph.core.errors import MigrationUnsupported

AnyType = Interface | NodeType | EdgeType
_ConstraintIdentity = tuple[object, ...]


def plan_schema(
    accepted: Catalog,
    desired_text: str | bytes,
    *,
    allow_data_loss: bool = False,
    file: str | None = None,
    fills: Mapping[str, str] | None = None,
) -> SchemaPlan:
    """The steps from `accepted` to the schema of `desired_text`. Pure.

    An unsupported change is a step of the plan. Raises the schema error when the desired text is invalid or
    its rename hints contradict the accepted schema. With `allow_data_loss` all drops are hard. `fills` are
    the expressions that give added properties their values, by `Type.property`; `MigrationUnsupported` when
    the plan adds no such property.
    """
    resolved = resolve_schema(desired_text, file=file, accepted=accepted)
    if resolved.catalog is None:
        raise schema_error(resolved.diagnostics, errors_total=resolved.errors_total)
    mode = DropMode.HARD if allow_data_loss else DropMode.SOFT
    fills = fills or {}
    steps = tuple(diff_catalogs(accepted, resolved.catalog, mode, fills))
    added = {f"{step.type_name}.{step.property_name}" for step in steps if isinstance(step, AddProperty)}
    for label in sorted(set(fills) - added):
        raise MigrationUnsupported(
            f"the change does not add '{label}', so nothing can be filled",
            hint="values of a property that exists are changed by a mutation",
        )
    return SchemaPlan(steps, resolved.catalog, resolved.diagnostics)


def require_supported(plan: SchemaPlan) -> None:
    """Raises MigrationUnsupported with the first refusal of the plan."""
    refusal = plan.first_refusal
    if refusal is not None:
        details = {"source_error": {"lint_code": refusal.code}} if refusal.code else None
        raise MigrationUnsupported(
            refusal.message,
            details=details,
            hint="add a nullable property, fill it, then tighten; or export, edit and load",
        )


def diff_catalogs(
    accepted: Catalog, desired: Catalog, mode: DropMode, fills: Mapping[str, str]
) -> Iterator[SchemaStep]:
    """The steps in order: interfaces, nodes, edges; each in name order of the desired schema, drops last.

    The identities of `desired` continue those of `accepted`.
    """
    for kind, old_group, new_group in (
        (TypeKind.INTERFACE, accepted.interfaces, desired.interfaces),
        (TypeKind.NODE, accepted.nodes, desired.nodes),
        (TypeKind.EDGE, accepted.edges, desired.edges),
    ):
        old_by_id: Mapping[int, AnyType] = {t.type_id: t for t in old_group.values()}
        kept: set[int] = set()
        for name in sorted(new_group):
            new = new_group[name]
            old = old_by_id.get(new.type_id)
            if old is None:
                yield AddType(kind, name)
            else:
                kept.add(old.type_id)
                yield from _TypeDiff(kind, old, new, accepted, desired, mode, fills).steps()
        for name in sorted(old_group):
            if old_group[name].type_id not in kept:
                yield _dropped_type(kind, name, mode)


def _dropped_type(kind: TypeKind, name: str, mode: DropMode) -> SchemaStep:
    if kind is TypeKind.INTERFACE:
        return UnsupportedChange(kind, name, f"interface '{name}' cannot be removed or renamed")
    return DropType(kind, name, mode)


class _TypeDiff:
    """The steps of one type that exists on both sides."""

    def __init__(
        self,
        kind: TypeKind,
        old: AnyType,
        new: AnyType,
        accepted: Catalog,
        desired: Catalog,
        mode: DropMode,
        fills: Mapping[str, str],
    ) -> None:
        self._kind = kind
        self._old = old
        self._new = new
        self._accepted = accepted
        self._desired = desired
        self._mode = mode
        self._fills = fills
        self._old_by_id = {p.property_id: p for p in old.properties}
        self._new_by_id = {p.property_id: p for p in new.properties}
        self._removed = added_constraints(new, old)
        self._added = added_constraints(old, new)

    def steps(self) -> Iterator[SchemaStep]:
        old, new = self._old, self._new
        if old.name != new.name:
            yield RenameType(self._kind, old.name, new.name)
        yield from self._structure()
        yield from self._type_metadata()
        for prop in new.properties:
            before = self._old_by_id.get(prop.property_id)
            if before is None:
                yield from self._added_property(prop)
            else:
                yield from self._kept_property(before, prop)
            yield from self._constraint_steps(prop.name, ConstraintForm.PROPERTY)
            if before is not None:
                yield from self._property_facts(before, prop)
        for prop in old.properties:
            if prop.property_id not in self._new_by_id:
                yield from self._dropped_property(prop)
        yield from self._constraint_steps(None, ConstraintForm.BODY)

    def _refuse(self, entity: str, reason: str, code: str | None = None) -> UnsupportedChange:
        return UnsupportedChange(self._kind, entity, reason, code)

    # The type itself

    def _structure(self) -> Iterator[SchemaStep]:
        old, new = self._old, self._new
        if isinstance(old, NodeType) and isinstance(new, NodeType) and old.interfaces != new.interfaces:
            yield self._refuse(new.name, f"the interfaces that '{new.name}' implements cannot be changed")
        if isinstance(old, EdgeType) and isinstance(new, EdgeType):
            if self._endpoints(old, self._accepted) != self._endpoints(new, self._desired):
                yield self._refuse(new.name, f"the endpoints of '{new.name}' cannot be changed")
            if (old.card_min, old.card_max) != (new.card_min, new.card_max):
                yield _changed_cardinality(old, new)
        if (
            not isinstance(old, Interface)
            and not isinstance(new, Interface)
            and old.annotations != new.annotations
        ):
            yield self._refuse(new.name, f"the custom annotations of '{new.name}' cannot be changed")

    @staticmethod
    def _endpoints(edge: EdgeType, catalog: Catalog) -> tuple[int, int]:
        return catalog.nodes[edge.source].type_id, catalog.nodes[edge.target].type_id

    def _type_metadata(self) -> Iterator[SchemaStep]:
        old, new = self._old, self._new
        if isinstance(old, Interface) or isinstance(new, Interface):
            return
        changed: dict[str, str | None] = {}
        if old.description != new.description:
            changed["description"] = new.description
        if old.instruction != new.instruction:
            changed["instruction"] = new.instruction
        if old.merges_whole != new.merges_whole:
            changed["merge"] = "entity" if new.merges_whole else None
        if changed:
            yield UpdateTypeMetadata(self._kind, new.name, changed)

    # Properties

    def _added_property(self, prop: Property) -> Iterator[SchemaStep]:
        label = f"{self._new.name}.{prop.name}"
        fill = self._fills.get(label)
        if self._kind is TypeKind.INTERFACE:
            yield AddProperty(self._kind, self._new.name, prop.name, prop.type_text)
            return
        if prop.required and prop.default is None and fill is None:
            reason = f"the required property '{label}' cannot be added without a default or a fill"
            yield self._refuse(label, reason, ADD_REQUIRED_PROPERTY)
            return
        backfill = prop.default if prop.required and fill is None else None
        yield AddProperty(self._kind, self._new.name, prop.name, prop.type_text, backfill, fill)

    def _kept_property(self, old: Property, new: Property) -> Iterator[SchemaStep]:
        label = f"{self._new.name}.{new.name}"
        if old.name != new.name:
            yield RenameProperty(self._kind, self._new.name, old.name, new.name)
        yield from self._type_steps(old, new)
        if self._embed(old, self._old) != self._embed(new, self._new):
            yield self._refuse(label, f"@embed of '{label}' cannot be changed")

    def _type_steps(self, old: Property, new: Property) -> Iterator[SchemaStep]:
        kind, owner = self._kind, self._new.name
        before, after = old.type.enum_values, new.type.enum_values
        if before is not None and after is not None:
            added, removed = _missing_from(before, after), _missing_from(after, before)
            if removed:
                yield NarrowEnum(kind, owner, new.name, removed, added or None)
            elif added:
                yield ExtendEnum(kind, owner, new.name, added)
        elif is_widening(old.type, new.type):
            yield WidenProperty(kind, owner, new.name, old.type.text(), new.type.text())
        elif old.type != new.type:
            label = f"{owner}.{new.name}"
            reason = f"the type of '{label}' cannot be changed from {old.type_text} to {new.type_text}"
            yield self._refuse(label, reason, CHANGE_PROPERTY_TYPE)
            return
        if old.nullable and not new.nullable:
            yield RequireProperty(kind, owner, new.name)
        elif new.nullable and not old.nullable:
            yield AllowNull(kind, owner, new.name)

    @staticmethod
    def _embed(prop: Property, owner: AnyType) -> tuple[object, str | None] | None:
        """The binding by the identity of its source, so that a renamed source is the same binding."""
        if prop.embed is None:
            return None
        source = owner.get(prop.embed.source)
        return (prop.embed.source if source is None else source.property_id), prop.embed.model

    def _property_facts(self, old: Property, new: Property) -> Iterator[SchemaStep]:
        label = f"{self._new.name}.{new.name}"
        if bool(old.inherited_from) != bool(new.inherited_from):
            reason = f"'{label}' cannot change between declared by the type and given by an interface"
            yield self._refuse(label, reason)
        if old.annotations != new.annotations:
            yield self._refuse(label, f"the custom annotations of '{label}' cannot be changed")
        changed: dict[str, object] = {}
        if old.description != new.description:
            changed["description"] = new.description
        if old.default != new.default:
            changed["default"] = None if new.default is None else default_json(new.default.value)
        if old.text != new.text:
            changed["text"] = new.text
        if changed:
            yield UpdatePropertyMetadata(self._kind, self._new.name, new.name, changed)

    def _dropped_property(self, prop: Property) -> Iterator[SchemaStep]:
        for constraint in self._removed:
            if constraint.form is ConstraintForm.PROPERTY and prop.name in constraint.properties:
                yield self._removal(constraint)
        yield DropProperty(self._kind, self._new.name, prop.name, self._mode)

    # Constraints

    def _removal(self, constraint: Constraint) -> RemoveConstraint:
        return RemoveConstraint(self._kind, self._new.name, constraint)

    def _constraint_steps(self, name: str | None, form: ConstraintForm) -> Iterator[SchemaStep]:
        """The changes of one property's plain constraints, or of the body when `name` is None."""
        new_names = self._new_names()
        for constraint in self._removed:
            if constraint.form is form and (name is None or new_names.get(constraint.properties[0]) == name):
                moved = self._moved(constraint, self._added, new_names)
                yield self._removal(constraint) if moved is None else self._move(moved)
        for constraint in self._added:
            if constraint.form is form and (name is None or constraint.properties[0] == name):
                yield from self._addition(constraint, new_names)

    def _new_names(self) -> Mapping[str, str]:
        """Old property name to its name in the desired schema; dropped properties are missing."""
        return {
            p.name: self._new_by_id[p.property_id].name
            for p in self._old.properties
            if p.property_id in self._new_by_id
        }

    def _addition(self, constraint: Constraint, new_names: Mapping[str, str]) -> Iterator[SchemaStep]:
        for removed in self._removed:
            if self._moved(removed, [constraint], new_names) is not None:
                return  # reported where it was removed
        yield AddConstraint(self._kind, self._new.name, constraint)

    @staticmethod
    def _moved(
        removed: Constraint, added: Sequence[Constraint], new_names: Mapping[str, str]
    ) -> Constraint | None:
        """The added constraint that is the removed one in the other form."""
        members = tuple(sorted(new_names.get(name, name) for name in removed.properties))
        for constraint in added:
            same = constraint.kind is removed.kind and constraint.properties == members
            if same and constraint.form is not removed.form:
                return constraint
        return None

    def _move(self, constraint: Constraint) -> UnsupportedChange:
        reason = f"{constraint_text(constraint)} of '{self._new.name}' cannot move between property and body"
        return self._refuse(_entity(self._new.name, constraint), reason)


def _entity(type_name: str, constraint: Constraint) -> str:
    if len(constraint.properties) == 1:
        return f"{type_name}.{constraint.properties[0]}"
    return f"{type_name}.({', '.join(constraint.properties)})"


def added_constraints(old: AnyType, new: AnyType) -> list[Constraint]:
    """The constraints that only the second of two states of a type has."""
    known = {_identity(each, old.by_name) for each in old.constraints}
    return [each for each in new.constraints if _identity(each, new.by_name) not in known]


def _identity(constraint: Constraint, by_name: Mapping[str, Property]) -> _ConstraintIdentity:
    """What makes two constraints the same one; properties count by identity, `src` and `dst` by name."""
    members = frozenset(
        by_name[name].property_id if name in by_name else name for name in constraint.properties
    )
    bounds = None if constraint.range is None else (constraint.range.minimum, constraint.range.maximum)
    pattern = None if constraint.check is None else constraint.check.pattern
    return constraint.kind, constraint.form, members, bounds, pattern


def _missing_from(values: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(set(others) - set(values)))


def is_widening(old: PropertyType, new: PropertyType) -> bool:
    """Whether both are single integers and the new type holds every value of the old one."""
    if not (old.is_scalar and new.is_scalar and old.kind in INTEGER_BOUNDS and new.kind in INTEGER_BOUNDS):
        return False
    (low, high), (lowest, highest) = INTEGER_BOUNDS[old.kind], INTEGER_BOUNDS[new.kind]
    return old.kind is not new.kind and lowest <= low and high <= highest


def _changed_cardinality(old: EdgeType, new: EdgeType) -> ChangeCardinality:
    fewer = new.card_max is not None and (old.card_max is None or new.card_max < old.card_max)
    narrows = fewer or new.card_min > old.card_min
    return ChangeCardinality(TypeKind.EDGE, new.name, _bounds(old), _bounds(new), narrows)


def _bounds(edge: EdgeType) -> str:
    return f"{edge.card_min}..{'' if edge.card_max is None else edge.card_max}"
