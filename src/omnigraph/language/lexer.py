"""One lexer for `.pg` and `.gq`: text to tokens in linear time, comments kept aside, several errors per run.

The token alphabet is the union of the two languages; the parsers say which token may stand where. The schema
parser joins adjacent NAME, TYPE, INTEGER and `-` tokens (`touches`): `3d-print` is one enum value.
"""

import re
from enum import Enum
from typing import Final

import msgspec

from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import (
    DIAGNOSTICS_REPORTED_MAX,
    SOURCE_BYTES_MAX,
    SOURCE_NESTING_MAX,
    SOURCE_TOKENS_MAX,
)
from omnigraph.language.diagnostics import Diagnostic, diagnose
from omnigraph.language.source import Source, Span


class Kind(Enum):
    """What a token is."""

    NAME = "a name"
    """Starts with a lower-case letter or `_`; keywords are names recognised by position."""
    TYPE = "a type name"
    """Starts with an upper-case letter."""
    VARIABLE = "a variable"
    """`$` and a name; the text includes the `$`."""
    INTEGER = "an integer"
    DECIMAL = "a decimal number"
    STRING = "a string"
    """The text includes the quotes and is still escaped: see `string_value`."""
    PUNCT = "a symbol"
    END = "the end of the file"


class Token(msgspec.Struct, frozen=True, gc=False):
    """A piece of source text. Keywords and symbols are compared by `text`."""

    kind: Kind
    text: str
    start: int
    end: int

    @property
    def span(self) -> Span:
        """Where the token stands."""
        return Span(self.start, self.end)


class Comment(msgspec.Struct, frozen=True, gc=False):
    """A comment with its markers; a line comment's text ends before the line break."""

    text: str
    start: int
    end: int

    @property
    def is_line(self) -> bool:
        """Whether it runs to the end of its line."""
        return self.text.startswith("//")


@dataclass(frozen=True, slots=True)
class Lexed:
    """The tokens of a text, always closed by one END token, and what could not be read."""

    source: Source
    tokens: list[Token]
    comments: list[Comment]
    diagnostics: list[Diagnostic]


# Possessive quantifiers: an unterminated string fails without backtracking, so the scan stays linear.
_MASTER: Final = re.compile(
    r"""[ \t\r\n]*+(?:
      ([a-z_][A-Za-z0-9_]*+)
    | ([A-Z][A-Za-z0-9_]*+)
    | (\$[a-z_][A-Za-z0-9_]*+)
    | ([0-9]++\.[0-9]++)
    | ([0-9]++)
    | ("[^"\\]*+(?:\\.[^"\\]*+)*+")
    | (->|\.\.|<=|>=|!=|/(?![/*])|[{}()\[\]:,.<>=?@*|+-])
    | (//[^\n]*+)
    | (/\*[^*]*+(?:\*(?!/)[^*]*+)*+\*/)
    | (\Z)
    | ([^ \t\r\nA-Za-z0-9_$"/!{}()\[\]:,.<>=?@*|+-]++|.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_KINDS: Final = (
    Kind.END,
    Kind.NAME,
    Kind.TYPE,
    Kind.VARIABLE,
    Kind.DECIMAL,
    Kind.INTEGER,
    Kind.STRING,
    Kind.PUNCT,
)
_STRING, _PUNCT, _LINE_COMMENT, _BLOCK_COMMENT, _END = 6, 7, 8, 9, 10
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_REQUIRED: Final = re.compile(r"[A-Za-z0-9_)\]]!\s*(?:[@,)}\]]|[a-z_]\w*\s*:|$)", re.MULTILINE)
"""The mark of other languages behind a type that is required."""
_ESCAPES: Final = {'"': '"', "\\": "\\", "n": "\n", "r": "\r", "t": "\t"}


def string_value(text: str) -> str:
    """The characters a STRING token stands for."""
    body = text[1:-1]
    if "\\" not in body:
        return body
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[1]), body)


def quote(value: str) -> str:
    """The STRING token text of a value: `string_value(quote(value)) == value`."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + '"'


def touches(left: Token, right: Token) -> bool:
    """Whether nothing stands between two tokens."""
    return left.end == right.start


def decode(data: bytes, file: str | None = None) -> Source | Diagnostic:
    """The text of a file's bytes, or one diagnostic when they are too many or not UTF-8.

    A byte order mark at the start is dropped. Cost: nothing is decoded beyond the size limit.
    """
    if len(data) > SOURCE_BYTES_MAX:
        return _too_large(Source("", file), len(data))
    try:
        return Source(data.decode("utf-8-sig"), file)
    except UnicodeDecodeError as error:
        # What came before the bad byte is sound, so the place can be shown in the text the author knows.
        source = Source(data[: error.start].decode("utf-8", errors="replace"), file)
        end = len(source.text)
        return diagnose(
            source, Span(end, end), f"byte {error.start} is not UTF-8 text", hint="save the file as UTF-8"
        )


def lex(source: Source) -> Lexed:
    """Tokens, comments and diagnostics of a text of either language. Never raises.

    Cost: linear in the text, bounded by SOURCE_BYTES_MAX and SOURCE_TOKENS_MAX. After an unterminated string
    or comment, and after DIAGNOSTICS_REPORTED_MAX findings, the rest of the text is not read.
    """
    refused = _refuse(source)
    if refused is not None:
        end = len(source.text)
        return Lexed(source, [Token(Kind.END, "", end, end)], [], [refused])
    return _scan(source)


def _refuse(source: Source) -> Diagnostic | None:
    """The finding about a text that is not scanned at all."""
    text = source.text
    if len(text) > SOURCE_BYTES_MAX:
        return _too_large(Source("", source.file), len(text))
    if not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            return diagnose(source, Span(error.start, error.start + 1), "a lone surrogate is not text")
        if size > SOURCE_BYTES_MAX:
            return _too_large(Source("", source.file), size)
    nul = text.find("\0")
    if nul >= 0:
        return diagnose(source, Span(nul, nul + 1), "a NUL byte is not text")
    return None


def _too_large(source: Source, size: int) -> Diagnostic:
    message = f"the source has {size} bytes, at most {SOURCE_BYTES_MAX} are read"
    return diagnose(source, Span(0, 0), message, hint="split it into several files")


def _scan(source: Source) -> Lexed:
    text = source.text
    tokens: list[Token] = []
    comments: list[Comment] = []
    diagnostics: list[Diagnostic] = []
    append = tokens.append
    depth = 0
    start_at = 1 if text.startswith("\ufeff") else 0
    end_at = len(text)
    for match in _MASTER.finditer(text, start_at):
        group = match.lastindex or _END
        start, end = match.span(group)
        if group <= _PUNCT:
            value = match[group]
            append(Token(_KINDS[group], value, start, end))
            if group == _PUNCT:
                if value in "{([":
                    depth += 1
                    if depth > SOURCE_NESTING_MAX:
                        message = f"brackets are nested deeper than {SOURCE_NESTING_MAX}"
                        diagnostics.append(diagnose(source, Span(start, end), message))
                        end_at = start
                        break
                elif value in "})]":
                    depth = max(0, depth - 1)
            elif group == _STRING and "\\" in value:
                diagnostics += _bad_escapes(source, value, start)
            if len(tokens) >= SOURCE_TOKENS_MAX:
                message = f"the source has more than {SOURCE_TOKENS_MAX} words and symbols"
                hint = "split it into several files"
                diagnostics.append(diagnose(source, Span(start, end), message, hint=hint))
                break
        elif group == _END:
            break
        elif group in {_LINE_COMMENT, _BLOCK_COMMENT}:
            comments.append(Comment(match[group].rstrip("\r"), start, end))
        elif _is_open_ended(text, start):
            what, width = ("string", 1) if text[start] == '"' else ("comment", 2)
            diagnostics.append(diagnose(source, Span(start, start + width), f"this {what} is never closed"))
            break
        else:
            diagnostics.append(_unexpected(source, match[group], Span(start, end)))
        if len(diagnostics) >= DIAGNOSTICS_REPORTED_MAX:
            break
    append(Token(Kind.END, "", end_at, end_at))
    return Lexed(source, tokens, comments, diagnostics)


def _is_open_ended(text: str, start: int) -> bool:
    return text[start] == '"' or text.startswith("/*", start)


def _bad_escapes(source: Source, literal: str, start: int) -> list[Diagnostic]:
    found: list[Diagnostic] = []
    for match in _ESCAPE.finditer(literal, 1, len(literal) - 1):
        if match[1] not in _ESCAPES:
            message = f"'\\{match[1]}' is not an escape; strings know \\\" \\\\ \\n \\r \\t"
            found.append(diagnose(source, Span(start + match.start(), start + match.end()), message))
            if len(found) >= DIAGNOSTICS_REPORTED_MAX:
                break
    return found


def _unexpected(source: Source, text: str, span: Span) -> Diagnostic:
    hint = None
    if text.startswith("#"):
        hint = "comments start with //"
    elif text.startswith("'"):
        hint = 'strings are written in double quotes: "..."'
    elif text == "!":
        hint = "'not equal' is written !="
        if _REQUIRED.match(source.text, max(span.start - 1, 0)):
            hint = "a type is required unless it is marked with ?: leave the ! out"
    elif text[0] in "%^":
        hint = "numbers are computed with + - * /"
    shown = text if len(text) <= 20 else text[:20] + "…"
    if not shown.isprintable():
        shown = " ".join(f"U+{ord(char):04X}" for char in text[:5])
    return diagnose(source, span, f"unexpected character '{shown}'", hint=hint)
