"""Stable identities: numbers of types, properties and tables that survive renames and are never reused."""

from collections.abc import Mapping
from dataclasses import field, replace

from omnigraph.catalog.codes import Code
from omnigraph.catalog.draft import DraftSchema, DraftType, Findings
from omnigraph.catalog.schema import (
    Catalog,
    Constraint,
    EdgeType,
    Interface,
    NodeType,
    Property,
    TypeKind,
)
from omnigraph.core.late_dataclass import dataclass
from omnigraph.language.diagnostics import Severity
from omnigraph.language.schema_tree import Name

AcceptedType = Interface | NodeType | EdgeType


@dataclass(slots=True)
class _Numbering:
    """Which accepted declaration each desired one continues, and the numbers handed out."""

    next_id: int
    types: dict[tuple[TypeKind, str], int] = field(default_factory=dict[tuple[TypeKind, str], int])
    properties: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    incarnations: dict[int, int] = field(default_factory=dict[int, int])

    def take(self) -> int:
        number = self.next_id
        self.next_id += 1
        return number


def number(draft: DraftSchema, accepted: Catalog | None, findings: Findings, *, source_hash: str) -> Catalog:
    """The catalog of a checked draft.

    Without `accepted` all numbers are new and rename hints are inert. With it, an exact name match keeps the
    number, a rename hint takes over the number of the old name, and everything else gets numbers that were
    never used. Hints that cannot be followed are reported; the catalog is then not to be used.
    """
    numbering = _Numbering(1 if accepted is None else accepted.next_id)
    kept: dict[tuple[TypeKind, str], AcceptedType] = {}
    if accepted is not None:
        for kind in TypeKind:
            wanted = {t.name: t for t in draft.types() if t.kind is kind}
            kept |= {(kind, new): old for new, old in _match_types(wanted, accepted, kind, findings).items()}
    for declared in draft.types():
        old = kept.get((declared.kind, declared.name))
        numbering.types[declared.kind, declared.name] = numbering.take() if old is None else old.type_id
    _number_properties(draft, kept, numbering, findings, initial=accepted is None)
    for declared in _by_type_number(draft, numbering):
        if declared.kind is not TypeKind.INTERFACE:
            old = kept.get((declared.kind, declared.name))
            type_id = numbering.types[declared.kind, declared.name]
            if isinstance(old, NodeType | EdgeType):
                numbering.incarnations[type_id] = old.incarnation_id
            else:
                numbering.incarnations[type_id] = numbering.take()
    return _catalog(draft, numbering, source_hash)


def _by_type_number(draft: DraftSchema, numbering: _Numbering) -> list[DraftType]:
    return sorted(draft.types(), key=lambda t: numbering.types[t.kind, t.name])


def _accepted_of(accepted: Catalog, kind: TypeKind) -> Mapping[str, AcceptedType]:
    match kind:
        case TypeKind.INTERFACE:
            return accepted.interfaces
        case TypeKind.NODE:
            return accepted.nodes
        case TypeKind.EDGE:
            return accepted.edges


def _match_types(
    wanted: Mapping[str, DraftType], accepted: Catalog, kind: TypeKind, findings: Findings
) -> dict[str, AcceptedType]:
    """Desired name to the accepted type it continues."""
    known = _accepted_of(accepted, kind)
    matched = {name: known[name] for name in wanted if name in known}
    claimed = {name: name for name in matched}
    for name, declared in sorted(wanted.items()):
        hint = declared.rename_from
        if hint is None:
            continue
        label = f"{kind.value} '{name}'"
        if name in known:
            _report_ignored(
                label, hint, old_exists=hint.text in known and hint.text != name, findings=findings
            )
        elif hint.text not in known:
            elsewhere = [k for k in TypeKind if hint.text in _accepted_of(accepted, k)]
            code = Code.RENAME_OTHER_OWNER if elsewhere else Code.RENAME_UNKNOWN
            missing = f"the accepted schema has no such {kind.value} type"
            message = f"{label} cannot be renamed from '{hint.text}': {missing}"
            findings.report(code, hint.span, message, near=(hint.text, known))
        elif hint.text in claimed:
            _report_claimed(label, hint, claimed[hint.text], findings)
        else:
            matched[name] = known[hint.text]
            claimed[hint.text] = name
    return matched


def _report_ignored(label: str, hint: Name, *, old_exists: bool, findings: Findings) -> None:
    if old_exists:
        message = (
            f'{label} already exists, so @rename_from("{hint.text}") is ignored; two names cannot be swapped'
        )
        findings.warn(Code.RENAME_IGNORED, hint.span, message)
    else:
        message = f'{label} already exists, so @rename_from("{hint.text}") has nothing left to do'
        findings.report(Code.RENAME_STALE, hint.span, message, severity=Severity.INFO)


def _report_claimed(label: str, hint: Name, owner: str, findings: Findings) -> None:
    message = f"{label} cannot be renamed from '{hint.text}': that name is continued by '{owner}'"
    findings.report(Code.RENAME_CLAIMED, hint.span, message)


def _number_properties(
    draft: DraftSchema,
    kept: Mapping[tuple[TypeKind, str], AcceptedType],
    numbering: _Numbering,
    findings: Findings,
    *,
    initial: bool,
) -> None:
    for declared in _by_type_number(draft, numbering):
        type_id = numbering.types[declared.kind, declared.name]
        old = kept.get((declared.kind, declared.name))
        matched: Mapping[str, Property] = {}
        if old is not None:
            matched = _match_properties(declared, old, findings)
        elif not initial:
            _refuse_hints(declared, findings)
        for name in sorted(declared.properties):
            continued = matched.get(name)
            number_ = numbering.take() if continued is None else continued.property_id
            numbering.properties[type_id, name] = number_


def _match_properties(declared: DraftType, old: AcceptedType, findings: Findings) -> dict[str, Property]:
    known = old.by_name
    matched = {name: known[name] for name in declared.properties if name in known}
    claimed = {name: name for name in matched}
    for name, prop in sorted(declared.properties.items()):
        hint = prop.rename_from
        if hint is None:
            continue
        label = f"property '{declared.name}.{name}'"
        if name in known:
            _report_ignored(
                label, hint, old_exists=hint.text in known and hint.text != name, findings=findings
            )
        elif hint.text not in known:
            if prop.prop.inherited_from:  # the hint of the interface is meant for nodes that had the old name
                continue
            message = f"{label} cannot be renamed from '{hint.text}': '{old.name}' has no such property"
            findings.report(Code.RENAME_UNKNOWN, hint.span, message, near=(hint.text, known))
        elif hint.text in claimed:
            _report_claimed(label, hint, f"{declared.name}.{claimed[hint.text]}", findings)
        else:
            matched[name] = known[hint.text]
            claimed[hint.text] = name
    return matched


def _refuse_hints(declared: DraftType, findings: Findings) -> None:
    """A new type has no past, so a hint on one of its own properties points into another type."""
    for name, prop in sorted(declared.properties.items()):
        # An injected property carries the hint of its interface, which is meant for the nodes that exist.
        if prop.rename_from is not None and not prop.prop.inherited_from:
            message = f"property '{declared.name}.{name}' cannot be renamed from a property of another type"
            findings.report(Code.RENAME_OTHER_OWNER, prop.rename_from.span, message)


def _catalog(draft: DraftSchema, numbering: _Numbering, source_hash: str) -> Catalog:
    interfaces = {n: _interface(draft.interfaces[n], numbering) for n in sorted(draft.interfaces)}
    nodes = {n: _node(draft.nodes[n], numbering) for n in sorted(draft.nodes)}
    edges = {n: _edge(draft.edges[n], numbering) for n in sorted(draft.edges)}
    return Catalog(nodes, edges, interfaces, next_id=numbering.next_id, source_hash=source_hash)


def _properties(declared: DraftType, numbering: _Numbering) -> tuple[Property, ...]:
    type_id = numbering.types[declared.kind, declared.name]
    return tuple(
        replace(declared.properties[name].prop, property_id=numbering.properties[type_id, name])
        for name in sorted(declared.properties)
    )


def _constraints(declared: DraftType) -> tuple[Constraint, ...]:
    return tuple(sorted((d.constraint for d in declared.constraints), key=constraint_order))


def constraint_order(constraint: Constraint) -> tuple[str, ...]:
    """The canonical order of the constraints of a type."""
    extra = ""
    if constraint.range is not None:
        extra = f"{constraint.range.minimum}..{constraint.range.maximum}"
    elif constraint.check is not None:
        extra = constraint.check.pattern
    return (constraint.kind.value, "\0".join(constraint.properties), constraint.form.value, extra)


def _interface(declared: DraftType, numbering: _Numbering) -> Interface:
    return Interface(
        name=declared.name,
        type_id=numbering.types[declared.kind, declared.name],
        properties=_properties(declared, numbering),
        constraints=_constraints(declared),
    )


def _node(declared: DraftType, numbering: _Numbering) -> NodeType:
    type_id = numbering.types[declared.kind, declared.name]
    return NodeType(
        name=declared.name,
        type_id=type_id,
        properties=_properties(declared, numbering),
        incarnation_id=numbering.incarnations[type_id],
        constraints=_constraints(declared),
        description=declared.description,
        instruction=declared.instruction,
        merges_whole=declared.merges_whole,
        annotations=declared.annotations,
        interfaces=tuple(sorted({name.text for name in declared.implements})),
    )


def _edge(declared: DraftType, numbering: _Numbering) -> EdgeType:
    type_id = numbering.types[declared.kind, declared.name]
    return EdgeType(
        name=declared.name,
        type_id=type_id,
        properties=_properties(declared, numbering),
        incarnation_id=numbering.incarnations[type_id],
        constraints=_constraints(declared),
        description=declared.description,
        instruction=declared.instruction,
        merges_whole=declared.merges_whole,
        annotations=declared.annotations,
        source="" if declared.source is None else declared.source.text,
        target="" if declared.target is None else declared.target.text,
        card_min=declared.card_min,
        card_max=declared.card_max,
    )
