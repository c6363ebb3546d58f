"""Which declaration a finding is about, told from where it stands."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace

from omnigraph.language.diagnostics import Diagnostic
from omnigraph.language.schema_tree import (
    CheckNode,
    Declaration,
    Member,
    PropertyNode,
    RangeNode,
    SchemaTree,
)


def with_subjects(diagnostics: Iterable[Diagnostic], tree: SchemaTree) -> tuple[Diagnostic, ...]:
    """The findings with the type and, inside a member about one property, the property they stand in."""
    starts = [declaration.span.start for declaration in tree.declarations]
    return tuple(_with_subject(found, tree.declarations, starts) for found in diagnostics)


def _with_subject(
    found: Diagnostic, declarations: Sequence[Declaration], starts: Sequence[int]
) -> Diagnostic:
    at = bisect_right(starts, found.span.start) - 1
    if at < 0 or found.span.start >= declarations[at].span.end:
        return found
    declaration = declarations[at]
    return replace(
        found,
        type_name=declaration.name.text,
        property_name=_property_at(declaration.members, found.span.start),
    )


def _property_at(members: Sequence[Member], offset: int) -> str | None:
    index = bisect_right(members, offset, key=lambda member: member.span.start) - 1
    if index < 0 or offset >= members[index].span.end:
        return None
    match members[index]:
        case PropertyNode(name=name) | RangeNode(property=name) | CheckNode(property=name):
            return name.text
        case _:
            return None
