"""Diagnostics of both languages: a code, a place, a sentence and, when a near name exists, the fix."""

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Any

from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import CANDIDATES_MAX
from omnigraph.language.source import Source, Span

SNIPPET_CHARS_MAX = 200
NEAR_RATIO_MIN = 0.65
"""The share of common letters that makes names near: `zap` is near `zip`, `name` is not near `tonage`."""


class Severity(StrEnum):
    """How bad a finding is. Only an error stops a run."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding about one source text.

    `code` is the stable part (`T6`, `Q000`, `OG-...`, or `""` for the rules without a code); the sentence may
    change. Lines and columns count from 1. `snippet` is the line of the start, cut when it is very long.
    """

    code: str
    severity: Severity
    message: str
    span: Span
    file: str | None
    line: int
    column: int
    end_line: int
    end_column: int
    snippet: str
    candidates: tuple[str, ...] = ()
    hint: str | None = None
    type_name: str | None = None
    property_name: str | None = None

    @property
    def suggestion(self) -> str | None:
        """The nearest known name, when there is one."""
        return self.candidates[0] if self.candidates else None

    def source_error(self) -> dict[str, Any]:
        """The `source_error` detail object of an error about this place."""
        detail: dict[str, Any] = {} if self.file is None else {"file": self.file}
        detail |= {
            "line": self.line,
            "column": self.column,
            "end_line": self.end_line,
            "end_column": self.end_column,
        }
        if self.code:
            detail["lint_code"] = self.code
        detail["snippet"] = self.snippet
        return detail

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: severity, code, sentence, place and candidates."""
        form: dict[str, Any] = {"severity": self.severity.value}
        if self.code:
            form["code"] = self.code
        form["message"] = self.message
        if self.hint is not None:
            form["hint"] = self.hint
        form["source_error"] = self.source_error()
        if self.candidates:
            form["candidates"] = list(self.candidates)
        if self.type_name is not None:
            form["type_name"] = self.type_name
        if self.property_name is not None:
            form["property"] = self.property_name
        return form


def diagnose(
    source: Source,
    span: Span,
    message: str,
    *,
    code: str = "",
    severity: Severity = Severity.ERROR,
    candidates: Sequence[str] = (),
    hint: str | None = None,
    type_name: str | None = None,
    property_name: str | None = None,
) -> Diagnostic:
    """A diagnostic about `span` of `source`, with line, column and snippet filled in."""
    start = source.position(span.start)
    end = source.position(max(span.start, span.end))
    return Diagnostic(
        code=code,
        severity=severity,
        message=message,
        span=span,
        file=source.file,
        line=start.line,
        column=start.column,
        end_line=end.line,
        end_column=end.column,
        snippet=_snippet(source.line_text(start.line), start.column),
        candidates=tuple(candidates[:CANDIDATES_MAX]),
        hint=hint,
        type_name=type_name,
        property_name=property_name,
    )


def _snippet(line: str, column: int) -> str:
    """The line itself, or for a very long one its start up to a little after the column."""
    if len(line) <= SNIPPET_CHARS_MAX:
        return line
    return line[:SNIPPET_CHARS_MAX] if column <= SNIPPET_CHARS_MAX // 2 else ""


def headline(diagnostic: Diagnostic) -> str:
    """`T6  people.gq:3:14  sentence`: the first line of a rendered diagnostic."""
    place = f"{diagnostic.file or '<text>'}:{diagnostic.line}:{diagnostic.column}"
    return "  ".join(part for part in (diagnostic.code, place, sentence(diagnostic)) if part)


def sentence(diagnostic: Diagnostic) -> str:
    """The message with the nearest name appended as a question."""
    if diagnostic.suggestion is None:
        return diagnostic.message
    return f"{diagnostic.message}; did you mean '{diagnostic.suggestion}'?"


def render(diagnostic: Diagnostic) -> str:
    """The diagnostic for people: headline, the source line with a caret under the place, and the hint."""
    lines = [headline(diagnostic)]
    if diagnostic.snippet.strip() and diagnostic.column <= len(diagnostic.snippet) + 1:
        # Tabs are kept in the indent so that the caret stands under its character at any tab width.
        before = diagnostic.snippet[: diagnostic.column - 1]
        indent = "".join("\t" if char == "\t" else " " for char in before)
        same_line = diagnostic.end_line == diagnostic.line
        last = diagnostic.end_column - 1 if same_line else len(diagnostic.snippet)
        width = max(1, min(last, len(diagnostic.snippet)) - len(before))
        lines += [f"    {_printable(diagnostic.snippet)}", f"    {indent}{'^' * width}"]
    if diagnostic.hint is not None:
        lines.append(f"    hint: {diagnostic.hint}")
    return "\n".join(lines)


def _printable(text: str) -> str:
    """Text that cannot disturb a terminal: control characters other than tab become U+FFFD."""
    return "".join(char if char == "\t" or char.isprintable() else "\ufffd" for char in text)


def near_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Up to three known names a reader may have meant, nearest first.

    Cost: linear in the number of known names; the expensive ratio is computed only where letters allow it.
    """
    wanted = name.lower()
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)
    scored: list[tuple[float, str]] = []
    for candidate in known:
        if candidate == name:
            continue
        matcher.set_seq1(candidate.lower())
        if matcher.real_quick_ratio() >= NEAR_RATIO_MIN and matcher.quick_ratio() >= NEAR_RATIO_MIN:
            ratio = matcher.ratio()
            if ratio >= NEAR_RATIO_MIN:
                scored.append((-ratio, candidate))
    scored.sort()
    return tuple(candidate for _, candidate in scored[:CANDIDATES_MAX])


def in_source_order(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The findings by position; those of one place keep the order in which they were made."""
    return tuple(sorted(diagnostics, key=lambda found: found.span.start))


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Whether any finding is an error."""
    return any(found.severity is Severity.ERROR for found in diagnostics)
