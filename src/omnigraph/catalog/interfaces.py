"""Interfaces: what a node takes from the interfaces it implements."""

from dataclasses import replace

from omnigraph.catalog.codes import Code
from omnigraph.catalog.declare import inject
from omnigraph.catalog.draft import DraftProperty, DraftSchema, DraftType, Findings


def apply_interfaces(draft: DraftSchema, findings: Findings) -> None:
    """Injects into every node the interface properties it does not declare, and compares those it does."""
    for node in draft.nodes.values():
        names = _implemented(node, draft, findings)
        for name, contributors in _contributions(names, draft).items():
            own = node.properties.get(name)
            if own is None:
                _inject(node, name, contributors, draft, findings)
            else:
                _compare(node, own, contributors, draft, findings)


def _implemented(node: DraftType, draft: DraftSchema, findings: Findings) -> list[str]:
    known: set[str] = set()
    for name in node.implements:
        if name.text in draft.interfaces:
            known.add(name.text)
        else:
            message = f"node '{node.name}' implements unknown interface '{name.text}'"
            near = (name.text, draft.interfaces)
            findings.report(Code.UNKNOWN_INTERFACE, name.span, message, near=near)
    return sorted(known)


def _contributions(names: list[str], draft: DraftSchema) -> dict[str, list[str]]:
    """Property name to the interfaces that demand it, both in ascending order."""
    found: dict[str, list[str]] = {}
    for interface in names:
        for name in draft.interfaces[interface].properties:
            found.setdefault(name, []).append(interface)
    return {name: found[name] for name in sorted(found)}


def _inject(
    node: DraftType, name: str, contributors: list[str], draft: DraftSchema, findings: Findings
) -> None:
    offered = [draft.interfaces[interface].properties[name] for interface in contributors]
    first = offered[0]
    for interface, other in zip(contributors[1:], offered[1:], strict=True):
        if _terms(other) != _terms(first):
            both = f"'{contributors[0]}' and '{interface}'"
            message = f"node '{node.name}': interfaces {both} declare '{name}' differently"
            findings.report(Code.INTERFACES_DIFFER, node.span, message)
    node.properties[name] = inject(first, tuple(contributors))


def _terms(prop: DraftProperty) -> tuple[object, ...]:
    """What two contributors must agree on: everything but the place and the rename hint."""
    return replace(prop.prop, inherited_from=()), sorted(prop.flags)


def _compare(
    node: DraftType, own: DraftProperty, contributors: list[str], draft: DraftSchema, findings: Findings
) -> None:
    for interface in contributors:
        wanted = draft.interfaces[interface].properties[own.prop.name].prop
        if (wanted.type, wanted.nullable) != (own.prop.type, own.prop.nullable):
            found = f"{node.name}.{own.prop.name} is {own.prop.type_text}"
            message = f"{found}, interface '{interface}' demands {wanted.type_text}"
            findings.report(Code.INTERFACE_TYPE_DIFFERS, own.span, message)


def check_embeds(node: DraftType, findings: Findings) -> None:
    """Reports `@embed` sources that are not another String property of the finished node."""
    for declared in node.properties.values():
        embed = declared.prop.embed
        if embed is None:
            continue
        label = f"{node.name}.{declared.prop.name}"
        span = declared.embed_span or declared.span
        source = node.properties.get(embed.source)
        if source is None or embed.source == declared.prop.name:
            message = f"{label}: @embed names unknown property '{embed.source}'"
            if embed.source == declared.prop.name:
                message = f"{label}: @embed names the vector itself as its source"
            strings = [n for n, p in node.properties.items() if p.prop.type.is_free_text]
            findings.report(Code.BAD_EMBED, span, message, near=(embed.source, strings))
        elif not source.prop.type.is_free_text:
            message = f"{label}: @embed source '{embed.source}' is not a String property"
            findings.report(Code.BAD_EMBED, span, message)
