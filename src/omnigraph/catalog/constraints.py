"""Constraints over properties: reading them from a body, checking them against the finished properties."""

from decimal import Decimal
from typing import Final, assert_never

from omnigraph.catalog.codes import Code
from omnigraph.catalog.draft import DraftConstraint, DraftProperty, DraftType, Findings
from omnigraph.catalog.schema import (
    CheckRule,
    Constraint,
    ConstraintForm,
    ConstraintKind,
    RangeRule,
    TypeKind,
)
from omnigraph.language.schema_tree import CheckNode, ConstraintNode, GroupConstraintNode, RangeNode
from omnigraph.language.source import Span

_BOUND_DIGITS_MAX: Final = 400  # the largest finite F64 has 309 digits before the point
_ENDPOINTS: Final = frozenset({"src", "dst"})


def body_constraint(node: ConstraintNode, owner: DraftType, findings: Findings) -> DraftConstraint | None:
    """The constraint a body member declares; None when it is malformed or not legal on this kind of type."""
    match node:
        case GroupConstraintNode():
            kind = ConstraintKind(node.word)
            if owner.kind is TypeKind.EDGE and kind is ConstraintKind.KEY:
                findings.report(Code.NOT_ON_EDGE, node.span, f"{owner.name}: an edge type has no key")
                return None
            properties = tuple(sorted({name.text for name in node.properties}))
            return DraftConstraint(Constraint(kind, properties, ConstraintForm.BODY), node.span)
        case RangeNode() | CheckNode():
            word = "range" if isinstance(node, RangeNode) else "check"
            if owner.kind is TypeKind.EDGE:
                findings.report(
                    Code.NOT_ON_EDGE, node.span, f"{owner.name}: @{word} is not allowed on an edge"
                )
                return None
            return (
                _range(node, owner, findings)
                if isinstance(node, RangeNode)
                else _check(node, owner, findings)
            )
        case _:
            assert_never(node)


def _range(node: RangeNode, owner: DraftType, findings: Findings) -> DraftConstraint | None:
    name = node.property.text
    label = f"{owner.name}.{name}"
    if max(len(node.lower or ""), len(node.upper or "")) > _BOUND_DIGITS_MAX:
        message = f"{label}: a bound of @range has at most {_BOUND_DIGITS_MAX} digits"
        findings.report(Code.BAD_RANGE, node.span, message)
        return None
    low = None if node.lower is None else Decimal(node.lower)
    high = None if node.upper is None else Decimal(node.upper)
    if low is not None and high is not None and low > high:
        message = f"{label}: the lower bound of @range is above the upper bound, so no value fits"
        findings.report(Code.BAD_RANGE, node.span, message)
        return None
    constraint = Constraint(
        ConstraintKind.RANGE, (name,), ConstraintForm.BODY, range=RangeRule(name, low, high)
    )
    return DraftConstraint(constraint, node.span)


def _check(node: CheckNode, owner: DraftType, findings: Findings) -> DraftConstraint | None:
    name = node.property.text
    pattern = node.pattern.value
    problem = pattern_problem(pattern)
    if problem is not None:
        message = f"{owner.name}.{name}: the pattern of @check is not valid: {problem}"
        hint = "patterns follow RE2: no look-around, no back-references"
        findings.report(Code.BAD_CHECK, node.pattern.span, message, hint=hint)
        return None
    constraint = Constraint(
        ConstraintKind.CHECK, (name,), ConstraintForm.BODY, check=CheckRule(name, pattern)
    )
    return DraftConstraint(constraint, node.span)


def pattern_problem(pattern: str) -> str | None:
    """What RE2 says against a pattern; None when Arrow can search for it."""
    import pyarrow as pa  # noqa: PLC0415 - only a schema with @check needs it
    import pyarrow.compute as pc  # noqa: PLC0415

    try:
        pc.match_substring_regex(pa.array([""], pa.string()), pattern=pattern)
    except pa.ArrowInvalid as error:
        return str(error).removeprefix("Invalid regular expression: ")
    return None


def apply_flags(declared: DraftType) -> None:
    """Adds the constraints written as plain annotations of properties, injected ones included."""
    for name in sorted(declared.properties):
        prop = declared.properties[name]
        for flag in prop.flags:
            constraint = Constraint(flag, (name,), ConstraintForm.PROPERTY)
            declared.constraints.append(DraftConstraint(constraint, prop.span))


def check_constraints(declared: DraftType, findings: Findings) -> None:
    """Reports constraints that the property set of the type does not carry, and drops repeated ones."""
    kept: dict[Constraint, DraftConstraint] = {}
    keys = 0
    for drafted in declared.constraints:
        constraint = drafted.constraint
        if constraint.kind is ConstraintKind.KEY:
            keys += 1
            if keys > 1:
                message = f"{declared.name}: a type has at most one key"
                hint = "a key over several properties is written once in the body: @key(a, b)"
                findings.report(Code.BAD_KEY, drafted.span, message, hint=hint)
                continue
        # Every member is looked at, so that one run names all that are wrong.
        fits = [_check_member(declared, drafted, name, findings) for name in constraint.properties]
        if all(fits):
            kept.setdefault(constraint, drafted)
    declared.constraints = list(kept.values())


def _check_member(declared: DraftType, drafted: DraftConstraint, name: str, findings: Findings) -> bool:
    kind = drafted.constraint.kind
    if declared.kind is TypeKind.EDGE and name in _ENDPOINTS and kind is ConstraintKind.UNIQUE:
        return True
    prop = declared.properties.get(name)
    if prop is None:
        _report_unknown(declared, name, drafted.span, kind, findings)
        return False
    problem = _problem(prop, drafted.constraint)
    if problem is None:
        return True
    # A property that came from an interface was already reported there.
    if not prop.prop.inherited_from or drafted.constraint.form is ConstraintForm.BODY:
        code, message = problem
        findings.report(code, drafted.span, f"{declared.name}.{name}: {message}")
    return False


def _report_unknown(
    declared: DraftType, name: str, span: Span, kind: ConstraintKind, findings: Findings
) -> None:
    message = f"{declared.name}: @{kind.value} names unknown property '{name}'"
    hint = None
    known = list(declared.properties)
    if declared.kind is TypeKind.EDGE:
        if name in _ENDPOINTS:
            hint = "src and dst of an edge are always indexed"
        if kind is ConstraintKind.UNIQUE:
            known += sorted(_ENDPOINTS)
    findings.report(Code.UNKNOWN_PROPERTY, span, message, near=(name, known), hint=hint)


def _problem(prop: DraftProperty, constraint: Constraint) -> tuple[Code, str] | None:
    """Why a property cannot carry a constraint; None when it can."""
    type_ = prop.prop.type
    shown = type_.text() if not type_.is_enum else "enum"
    match constraint.kind:
        case ConstraintKind.KEY:
            if prop.prop.nullable:
                return Code.BAD_KEY, "a key property cannot be nullable"
            if not type_.has_canonical_text:
                return Code.BAD_KEY, f"a {shown} property cannot be a key"
        case ConstraintKind.UNIQUE:
            if not type_.has_canonical_text:
                return Code.BAD_UNIQUE, f"a {shown} property cannot be unique"
        case ConstraintKind.INDEX:
            if type_.is_blob:
                return Code.BAD_INDEX, "a Blob property cannot be indexed"
            if type_.is_list and constraint.form is ConstraintForm.PROPERTY:
                return Code.BAD_INDEX, f"a {shown} property cannot be indexed"
        case ConstraintKind.RANGE:
            if not type_.is_numeric:
                return Code.BAD_RANGE, f"@range needs one number, the property is {shown}"
        case ConstraintKind.CHECK:
            if not type_.is_string:
                return Code.BAD_CHECK, f"@check needs one String, the property is {shown}"
        case _:
            assert_never(constraint.kind)
    return None
