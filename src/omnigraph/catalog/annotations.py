"""What the annotations of a type or a property say."""

from dataclasses import field
from typing import Final

from omnigraph.catalog.codes import Code
from omnigraph.catalog.draft import Findings
from omnigraph.catalog.schema import Annotation, ConstraintKind, Embedding, TypeKind
from omnigraph.catalog.texts import TEXT_ANALYSES
from omnigraph.core.late_dataclass import dataclass
from omnigraph.language.schema_tree import AnnotationNode, Literal, LiteralKind, Name
from omnigraph.language.source import Span

_FLAGS: Final = {
    kind.value: kind for kind in (ConstraintKind.KEY, ConstraintKind.UNIQUE, ConstraintKind.INDEX)
}
_NEED_ARGUMENTS: Final = ("range", "check", "card")
KNOWN_ANNOTATIONS: Final = (
    *_FLAGS,
    *_NEED_ARGUMENTS,
    "embed",
    "default",
    "rename_from",
    "description",
    "instruction",
    "merge",
)
MERGE_WAYS: Final = ("property", "entity")
"""What `@merge` may say of a type: conflicts by property, which is the default, or of whole entities."""


@dataclass(slots=True)
class ReadAnnotations:
    """The recognised annotations of one declaration, and the rest as metadata."""

    flags: list[ConstraintKind] = field(default_factory=list[ConstraintKind])
    embed: Embedding | None = None
    embed_span: Span | None = None
    default: Literal | None = None
    text: Name | None = None
    rename_from: Name | None = None
    description: str | None = None
    instruction: str | None = None
    merges_whole: bool = False
    custom: list[Annotation] = field(default_factory=list[Annotation])


def read_type_annotations(
    nodes: tuple[AnnotationNode, ...], label: str, findings: Findings
) -> ReadAnnotations:
    """The annotations in the header of a node or edge type."""
    read = ReadAnnotations()
    seen: set[str] = set()
    for node in nodes:
        name = node.name.text
        if name in _FLAGS or name == "embed":
            message = f"{label}: @{name} belongs to a property or, with parentheses, in the body"
            findings.report(Code.MISPLACED_ANNOTATION, node.span, message)
        elif name == "merge":
            _merge(node, label, read, seen, findings)
        elif not _metadata(node, label, read, seen, findings):
            if name == "default" or name in _NEED_ARGUMENTS:
                findings.warn(
                    Code.ANNOTATION_WITHOUT_EFFECT, node.span, f"{label}: @{name} has no effect on a type"
                )
            _keep(node, label, read, findings, report_unknown=name not in KNOWN_ANNOTATIONS)
    return read


def read_property_annotations(
    nodes: tuple[AnnotationNode, ...], owner: TypeKind, label: str, findings: Findings
) -> ReadAnnotations:
    """The annotations of a property of a node, edge or interface."""
    read = ReadAnnotations()
    seen: set[str] = set()
    for node in nodes:
        name = node.name.text
        if name in _FLAGS:
            _flag(node, owner, label, read, findings)
        elif name == "embed":
            _embed(node, owner, label, read, findings)
        elif name == "default":
            _default(node, label, read, findings)
        elif name in {"instruction", "merge"}:
            message = f"{label}: @{name} belongs to a type, not to a property"
            findings.report(Code.MISPLACED_ANNOTATION, node.span, message)
        elif not _metadata(node, label, read, seen, findings):
            if name in _NEED_ARGUMENTS:
                message = f"{label}: @{name} without its arguments has no effect"
                findings.warn(Code.ANNOTATION_WITHOUT_EFFECT, node.span, message)
            _keep(node, label, read, findings, report_unknown=name not in KNOWN_ANNOTATIONS)
    return read


def _flag(
    node: AnnotationNode, owner: TypeKind, label: str, read: ReadAnnotations, findings: Findings
) -> None:
    flag = _FLAGS[node.name.text]
    if flag in read.flags:
        findings.report(Code.REPEATED_ANNOTATION, node.span, f"{label}: @{flag.value} is written twice")
    elif owner is TypeKind.EDGE and flag is ConstraintKind.KEY:
        findings.report(Code.NOT_ON_EDGE, node.span, f"{label}: an edge type has no key")
    else:
        read.flags.append(flag)
        for keyword, literal in node.keywords:
            _text(keyword, literal, label, read, findings)


def _text(keyword: Name, literal: Literal, label: str, read: ReadAnnotations, findings: Findings) -> None:
    """How the text of an indexed property becomes words."""
    if keyword.text != "text":
        message = f"{label}: @index has no argument '{keyword.text}'"
        findings.report(Code.BAD_INDEX, keyword.span, message, near=(keyword.text, ("text",)))
    elif literal.value not in TEXT_ANALYSES:
        message = f"{label}: '{literal.value}' is no way to make words of a text"
        hint = "plain, folded or the name of a language, such as english"
        findings.report(Code.BAD_INDEX, literal.span, message, near=(literal.value, TEXT_ANALYSES), hint=hint)
    else:
        read.text = Name(literal.value, literal.span)


def _embed(
    node: AnnotationNode, owner: TypeKind, label: str, read: ReadAnnotations, findings: Findings
) -> None:
    if owner is TypeKind.EDGE:
        findings.report(Code.NOT_ON_EDGE, node.span, f"{label}: @embed is not allowed on an edge")
        return
    if read.embed is not None:
        findings.report(Code.REPEATED_ANNOTATION, node.span, f"{label}: @embed is written twice")
        return
    value = node.value
    if value is None or value.kind not in {LiteralKind.NAME, LiteralKind.STRING} or not value.value:
        message = f"{label}: @embed names the String property the vector comes from, as in @embed(title)"
        findings.report(Code.BAD_EMBED, node.span, message)
        return
    model: str | None = None
    for keyword, literal in node.keywords:
        if keyword.text != "model":
            message = f"{label}: @embed has no argument '{keyword.text}'"
            findings.report(Code.BAD_EMBED, keyword.span, message, hint="the only keyword of @embed is model")
        elif model is not None or literal.kind is not LiteralKind.STRING or not literal.value:
            findings.report(Code.BAD_EMBED, literal.span, f"{label}: model takes one non-empty string, once")
        else:
            model = literal.value
    read.embed = Embedding(value.value, model)
    read.embed_span = node.span


def _default(node: AnnotationNode, label: str, read: ReadAnnotations, findings: Findings) -> None:
    if read.default is not None:
        findings.report(Code.REPEATED_ANNOTATION, node.span, f"{label}: @default is written twice")
    elif node.value is None or node.keywords:
        findings.report(
            Code.BAD_DEFAULT, node.span, f"{label}: @default takes exactly one value, as in @default(5)"
        )
    else:
        read.default = node.value


def _metadata(
    node: AnnotationNode, label: str, read: ReadAnnotations, seen: set[str], findings: Findings
) -> bool:
    """Reads `@rename_from`, `@description` and `@instruction`; false when the annotation is another one."""
    name = node.name.text
    if name not in {"rename_from", "description", "instruction"}:
        return False
    if name in seen:
        findings.report(Code.REPEATED_ANNOTATION, node.span, f"{label}: @{name} is written twice")
        return True
    seen.add(name)
    value = node.value
    accepted = {LiteralKind.STRING, LiteralKind.NAME} if name == "rename_from" else {LiteralKind.STRING}
    if value is None or node.keywords or value.kind not in accepted or not value.value:
        what = "the old name" if name == "rename_from" else "one non-empty string"
        findings.report(Code.BAD_ANNOTATION, node.span, f"{label}: @{name} takes {what} and nothing else")
        return True
    if name == "rename_from":
        read.rename_from = Name(value.value, value.span)
    elif name == "description":
        read.description = value.value
    else:
        read.instruction = value.value
    return True


def _merge(
    node: AnnotationNode, label: str, read: ReadAnnotations, seen: set[str], findings: Findings
) -> None:
    if "merge" in seen:
        findings.report(Code.REPEATED_ANNOTATION, node.span, f"{label}: @merge is written twice")
        return
    seen.add("merge")
    value = node.value
    if value is None or node.keywords or value.value not in MERGE_WAYS:
        message = f"{label}: @merge takes property, which is the default, or entity"
        findings.report(Code.BAD_ANNOTATION, node.span, message)
    elif value.value == "entity":
        read.merges_whole = True


def _keep(
    node: AnnotationNode, label: str, read: ReadAnnotations, findings: Findings, *, report_unknown: bool
) -> None:
    name = node.name.text
    if report_unknown:
        findings.warn(
            Code.UNKNOWN_ANNOTATION,
            node.span,
            f"{label}: @{name} is not known and has no effect",
            near=(name, KNOWN_ANNOTATIONS),
        )
    value = None if node.value is None else node.value.value
    keywords = tuple(sorted((keyword.text, literal.value) for keyword, literal in node.keywords))
    read.custom.append(Annotation(name, value, keywords))
