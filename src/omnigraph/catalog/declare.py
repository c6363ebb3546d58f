"""From the tree to declared types: the rules that one declaration can break by itself."""

from dataclasses import replace
from typing import Final, assert_never

from omnigraph.catalog.annotations import ReadAnnotations, read_property_annotations, read_type_annotations
from omnigraph.catalog.codes import Code
from omnigraph.catalog.constraints import body_constraint
from omnigraph.catalog.defaults import DefaultMismatchError, default_value
from omnigraph.catalog.draft import DraftProperty, DraftSchema, DraftType, Findings
from omnigraph.catalog.schema import Default, Property, TypeKind
from omnigraph.catalog.texts import PLAIN
from omnigraph.catalog.types import VECTOR_DIM_MAX, PropertyType, ScalarKind
from omnigraph.language.schema_tree import (
    CardinalityNode,
    EdgeTypeNode,
    EnumExpr,
    InterfaceNode,
    ListExpr,
    Member,
    NodeTypeNode,
    PropertyNode,
    ScalarExpr,
    SchemaTree,
    TypeExpr,
    VectorExpr,
)

RESERVED_EVERYWHERE: Final = frozenset(
    {"id", "_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"}
)
RESERVED_ON_EDGES: Final = frozenset({"src", "dst", "from", "to"})
_CARD_MAX: Final = 2**32 - 1


def declare(tree: SchemaTree, findings: Findings) -> DraftSchema:
    """The types of the tree. What breaks a rule is reported and repaired or left out; checking goes on."""
    draft = DraftSchema({}, {}, {})
    folded: dict[str, str] = {}
    for node in tree.declarations:
        match node:
            case InterfaceNode():
                _add(draft.interfaces, _interface(node, findings), findings)
            case NodeTypeNode():
                _add(draft.nodes, _node_type(node, findings), findings)
            case EdgeTypeNode():
                name = node.name.text
                other = folded.setdefault(name.lower(), name)
                if other != name:
                    message = f"edge names '{other}' and '{name}' differ only by case"
                    findings.report(Code.EDGE_CASE_COLLISION, node.name.span, message)
                _add(draft.edges, _edge_type(node, findings), findings)
            case _:
                assert_never(node)
    for edge in draft.edges.values():
        _check_endpoints(edge, draft, findings)
    return draft


def _add(group: dict[str, DraftType], declared: DraftType, findings: Findings) -> None:
    if declared.name in group:
        message = f"{declared.kind.value} type '{declared.name}' is declared twice"
        if declared.kind is TypeKind.INTERFACE:
            message = f"interface '{declared.name}' is declared twice"
        findings.report(Code.DUPLICATE_TYPE, declared.span, message)
    else:
        group[declared.name] = declared


def _check_endpoints(edge: DraftType, draft: DraftSchema, findings: Findings) -> None:
    for end in (edge.source, edge.target):
        if end is not None and end.text not in draft.nodes:
            message = f"edge '{edge.name}' names unknown node type '{end.text}'"
            hint = "an interface cannot be an endpoint" if end.text in draft.interfaces else None
            near = (end.text, draft.nodes)
            findings.report(Code.UNKNOWN_ENDPOINT, end.span, message, near=near, hint=hint)


def _interface(node: InterfaceNode, findings: Findings) -> DraftType:
    declared = DraftType(TypeKind.INTERFACE, node.name.text, node.name.span)
    _members(declared, node.members, findings)
    return declared


def _node_type(node: NodeTypeNode, findings: Findings) -> DraftType:
    read = read_type_annotations(node.annotations, node.name.text, findings)
    declared = DraftType(TypeKind.NODE, node.name.text, node.name.span, implements=node.implements)
    _members(declared, node.members, findings)
    return _with_metadata(declared, read)


def _edge_type(node: EdgeTypeNode, findings: Findings) -> DraftType:
    read = read_type_annotations(node.annotations, node.name.text, findings)
    declared = DraftType(
        TypeKind.EDGE, node.name.text, node.name.span, source=node.source, target=node.target
    )
    if node.cardinality is not None:
        declared.card_min, declared.card_max = _cardinality(node.cardinality, declared.name, findings)
    _members(declared, node.members, findings)
    return _with_metadata(declared, read)


def _with_metadata(declared: DraftType, read: ReadAnnotations) -> DraftType:
    declared.description = read.description
    declared.instruction = read.instruction
    declared.merges_whole = read.merges_whole
    declared.annotations = tuple(sorted(read.custom, key=lambda a: (a.name, a.value or "", a.keywords)))
    declared.rename_from = read.rename_from
    return declared


def _cardinality(node: CardinalityNode, edge: str, findings: Findings) -> tuple[int, int | None]:
    lower = _bounded(node.lower, _CARD_MAX)
    upper = None if node.upper is None else _bounded(node.upper, _CARD_MAX)
    if lower is None or (node.upper is not None and upper is None):
        message = f"edge '{edge}': a bound of @card is at most {_CARD_MAX}"
        findings.report(Code.BAD_CARDINALITY, node.span, message)
        return 0, None
    if upper is not None and lower > upper:
        message = f"edge '{edge}': the lower bound {lower} of @card is above the upper bound {upper}"
        findings.report(Code.BAD_CARDINALITY, node.span, message)
        return 0, None
    return lower, upper


def _bounded(digits: str, maximum: int) -> int | None:
    """The number, or None when it is larger than `maximum`. Any number of digits may be written."""
    significant = digits.lstrip("0") or "0"
    if len(significant) > len(str(maximum)):
        return None
    value = int(significant)
    return value if value <= maximum else None


def _members(declared: DraftType, members: tuple[Member, ...], findings: Findings) -> None:
    for member in members:
        if isinstance(member, PropertyNode):
            if member.name.text in declared.properties:
                message = f"property '{declared.name}.{member.name.text}' is declared twice"
                findings.report(Code.DUPLICATE_PROPERTY, member.name.span, message)
            else:
                declared.properties[member.name.text] = _property(member, declared, findings)
        else:
            constraint = body_constraint(member, declared, findings)
            if constraint is not None:
                declared.constraints.append(constraint)


def _property(node: PropertyNode, owner: DraftType, findings: Findings) -> DraftProperty:
    name = node.name.text
    label = f"{owner.name}.{name}"
    if name in RESERVED_EVERYWHERE or (owner.kind is TypeKind.EDGE and name in RESERVED_ON_EDGES):
        findings.report(
            Code.RESERVED_NAME, node.name.span, f"{label}: the name '{name}' is taken by the system"
        )
    type_ = _property_type(node.type, label, findings)
    read = read_property_annotations(node.annotations, owner.kind, label, findings)
    if read.embed is not None and not type_.is_vector:
        findings.report(
            Code.BAD_EMBED, read.embed_span or node.span, f"{label}: @embed needs a Vector property"
        )
        read.embed = None
    prop = Property(
        name=name,
        property_id=0,
        type=type_,
        nullable=node.type.nullable,
        default=_default(read, type_, label, findings),
        embed=read.embed,
        description=read.description,
        annotations=tuple(sorted(read.custom, key=lambda a: (a.name, a.value or "", a.keywords))),
        text=_text(read, type_, label, findings),
    )
    return DraftProperty(prop, node.span, tuple(read.flags), read.rename_from, read.embed_span)


def _text(read: ReadAnnotations, type_: PropertyType, label: str, findings: Findings) -> str:
    if read.text is None:
        return PLAIN
    if not type_.is_free_text:
        shown = "enum" if type_.is_enum else type_.text()
        message = f"{label}: @index(text: {read.text.text}) needs one String, the property is {shown}"
        findings.report(Code.BAD_INDEX, read.text.span, message)
        return PLAIN
    return read.text.text


def _default(read: ReadAnnotations, type_: PropertyType, label: str, findings: Findings) -> Default | None:
    if read.default is None:
        return None
    try:
        return default_value(read.default, type_)
    except DefaultMismatchError as error:
        message = f"{label}: the value of @default does not fit: {error}"
        findings.report(Code.BAD_DEFAULT, read.default.span, message)
        return None


def _property_type(node: TypeExpr, label: str, findings: Findings) -> PropertyType:
    base = node.base
    match base:
        case ScalarExpr():
            return PropertyType(ScalarKind(base.name))
        case ListExpr():
            kind = ScalarKind(base.name)
            if kind is ScalarKind.BLOB:
                findings.report(Code.BAD_LIST, node.span, f"{label}: a list cannot hold Blob values")
                kind = ScalarKind.STRING
            return PropertyType(kind, is_list=True)
        case VectorExpr():
            dim = _bounded(base.digits, VECTOR_DIM_MAX)
            if not dim:
                message = f"{label}: the dimension of a vector lies between 1 and {VECTOR_DIM_MAX}"
                findings.report(Code.BAD_VECTOR, node.span, message)
            return PropertyType(ScalarKind.F32, vector_dim=dim or 1)
        case EnumExpr():
            return _enum_type(base, label, findings)
        case _:
            assert_never(base)


def _enum_type(node: EnumExpr, label: str, findings: Findings) -> PropertyType:
    seen: set[str] = set()
    for value in node.values:
        if value.text in seen:
            message = f"{label}: the enum value '{value.text}' is listed twice"
            findings.report(Code.BAD_ENUM, value.span, message)
        seen.add(value.text)
    return PropertyType(ScalarKind.STRING, enum_values=tuple(sorted(seen)))


def inject(declared: DraftProperty, interfaces: tuple[str, ...]) -> DraftProperty:
    """The interface's property as a property of a node that does not declare it."""
    return replace(declared, prop=replace(declared.prop, inherited_from=interfaces))
