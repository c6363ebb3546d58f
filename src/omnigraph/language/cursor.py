"""Walking a token list: what every hand-written parser of the house stands on."""

from omnigraph.language.diagnostics import Diagnostic, diagnose
from omnigraph.language.lexer import Kind, Lexed, Token
from omnigraph.language.source import Span


class Unparsable(Exception):  # noqa: N818 - a signal between parser methods, never shown to a user
    """A rule of the grammar does not hold at a place; carries the diagnostic."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


class Cursor:
    """A position in a token list that always ends in an END token."""

    def __init__(self, lexed: Lexed) -> None:
        self.source = lexed.source
        self.tokens = lexed.tokens
        self.index = 0

    @property
    def token(self) -> Token:
        """The next token."""
        return self.tokens[self.index]

    @property
    def previous(self) -> Token:
        """The token just taken."""
        return self.tokens[self.index - 1]

    def peek(self, ahead: int) -> Token:
        """A token further on; END when there is none."""
        at = self.index + ahead
        return self.tokens[at] if at < len(self.tokens) else self.tokens[-1]

    def advance(self) -> Token:
        """Take the next token; END is never passed."""
        token = self.tokens[self.index]
        if token.kind is not Kind.END:
            self.index += 1
        return token

    def at(self, text: str) -> bool:
        """Whether the next token is this symbol or this word."""
        token = self.tokens[self.index]
        return token.text == text and (token.kind is Kind.PUNCT or token.kind is Kind.NAME)

    def at_kind(self, kind: Kind) -> bool:
        """Whether the next token is of this kind."""
        return self.tokens[self.index].kind is kind

    def ahead_is(self, ahead: int, text: str) -> bool:
        """Whether a token further on is this symbol or word."""
        token = self.peek(ahead)
        return token.text == text and (token.kind is Kind.PUNCT or token.kind is Kind.NAME)

    def take(self, text: str) -> bool:
        """Take the next token if it is this symbol or word."""
        if self.at(text):
            self.index += 1
            return True
        return False

    def expect(self, text: str, context: str, *, hint: str | None = None) -> Token:
        """Take this symbol or word, or refuse: "expected '{' after …, found …"."""
        if self.at(text):
            self.index += 1
            return self.tokens[self.index - 1]
        raise self.expected(f"'{text}' {context}", hint=hint)

    def expect_kind(self, kind: Kind, what: str, *, hint: str | None = None) -> Token:
        """Take a token of this kind, or refuse naming what stands here in the language's words."""
        token = self.tokens[self.index]
        if token.kind is kind:
            self.index += 1
            return token
        raise self.expected(what, hint=hint)

    def expected(self, what: str, *, hint: str | None = None) -> Unparsable:
        """The refusal at the next token."""
        found = describe(self.token)
        return self.refuse(self.token.span, f"expected {what}, found {found}", hint=hint)

    def refuse(
        self, span: Span, message: str, *, hint: str | None = None, candidates: tuple[str, ...] = ()
    ) -> Unparsable:
        """A refusal about a place."""
        return Unparsable(diagnose(self.source, span, message, hint=hint, candidates=candidates))


def describe(token: Token) -> str:
    """A token in a sentence."""
    if token.kind is Kind.END:
        return "the end of the file"
    text = token.text if len(token.text) <= 40 else token.text[:40] + "…"
    if token.kind is Kind.STRING:
        return f"the string {' '.join(text.split())}"
    return f"'{text}'"
