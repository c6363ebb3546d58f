import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnigraph.core.limits import (
    DIAGNOSTICS_REPORTED_MAX,
    SOURCE_BYTES_MAX,
    SOURCE_NESTING_MAX,
    SOURCE_TOKENS_MAX,
)
from omnigraph.language.diagnostics import Diagnostic, Severity, near_names, render
from omnigraph.language.lexer import (
    Kind,
    decode,
    lex,
    quote,
    string_value,
)
from omnigraph.language.source import Source


def kinds_and_texts(text):
    lexed = lex(Source(text))
    assert not lexed.diagnostics
    return [(token.kind, token.text) for token in lexed.tokens]


def messages(text):
    return [(found.line, found.column, found.message) for found in lex(Source(text)).diagnostics]


def test_every_kind_of_token():
    assert kinds_and_texts('node Ab $x_1 12 1.5 "s" -> .. <= @key(..)') == [
        (Kind.NAME, "node"),
        (Kind.TYPE, "Ab"),
        (Kind.VARIABLE, "$x_1"),
        (Kind.INTEGER, "12"),
        (Kind.DECIMAL, "1.5"),
        (Kind.STRING, '"s"'),
        (Kind.PUNCT, "->"),
        (Kind.PUNCT, ".."),
        (Kind.PUNCT, "<="),
        (Kind.PUNCT, "@"),
        (Kind.NAME, "key"),
        (Kind.PUNCT, "("),
        (Kind.PUNCT, ".."),
        (Kind.PUNCT, ")"),
        (Kind.END, ""),
    ]


def test_a_range_is_not_a_decimal():
    assert [text for _, text in kinds_and_texts("0..150 1.5..2")] == ["0", "..", "150", "1.5", "..", "2", ""]


def test_comments_are_kept_with_their_places():
    lexed = lex(Source("a // one\r\n/* two\n * three */ b"))
    assert [(comment.text, comment.start, comment.is_line) for comment in lexed.comments] == [
        ("// one", 2, True),
        ("/* two\n * three */", 10, False),
    ]
    assert [token.text for token in lexed.tokens] == ["a", "b", ""]


def test_strings_span_lines_and_know_five_escapes():
    lexed = lex(Source('"a\\"\\\\\\n\\r\\t\nb"'))
    assert not lexed.diagnostics
    assert string_value(lexed.tokens[0].text) == 'a"\\\n\r\t\nb'


def test_a_wrong_escape_is_reported_at_its_place_and_the_rest_is_read():
    assert messages('"ab\\q" # "\\x"') == [
        (1, 4, "'\\q' is not an escape; strings know \\\" \\\\ \\n \\r \\t"),
        (1, 8, "unexpected character '#'"),
        (1, 11, "'\\x' is not an escape; strings know \\\" \\\\ \\n \\r \\t"),
    ]


def test_an_unterminated_string_and_comment():
    assert messages('a\n  "b') == [(2, 3, "this string is never closed")]
    assert messages("a /* b *") == [(1, 3, "this comment is never closed")]


def test_nul_and_surrogate_are_refused():
    assert messages('x\n"\0"') == [(2, 2, "a NUL byte is not text")]
    assert messages('"\ud800"') == [(1, 2, "a lone surrogate is not text")]


def test_bytes_that_are_not_utf8():
    found = decode(b"node A\n  \xff", "x.pg")
    assert isinstance(found, Diagnostic)
    assert (found.file, found.line, found.column, found.message) == ("x.pg", 2, 3, "byte 9 is not UTF-8 text")


def test_a_byte_order_mark_is_ignored():
    source = decode(b"\xef\xbb\xbfnode")
    assert isinstance(source, Source)
    assert source.text == "node"
    assert [token.text for token in lex(Source("\ufeffnode")).tokens] == ["node", ""]


@pytest.mark.slow
def test_a_source_over_the_size_limit_is_refused_unread():
    for text in ("a" * (SOURCE_BYTES_MAX + 1), "é" * (SOURCE_BYTES_MAX - 1)):
        lexed = lex(Source(text))
        assert [token.kind for token in lexed.tokens] == [Kind.END]
        assert "bytes, at most" in lexed.diagnostics[0].message
    assert isinstance(decode(b"x" * (SOURCE_BYTES_MAX + 1)), Diagnostic)


@pytest.mark.slow
def test_fifty_megabytes_of_words_stop_at_the_token_limit():
    lexed = lex(Source("a " * 25_000_000))
    assert len(lexed.tokens) == SOURCE_TOKENS_MAX + 1
    assert [found.message for found in lexed.diagnostics] == [
        f"the source has more than {SOURCE_TOKENS_MAX} words and symbols"
    ]


def test_fifty_megabytes_of_comment_are_read():
    assert not lex(Source("// x" + "x" * 50_000_000)).diagnostics


def test_deep_nesting_ends_in_one_diagnostic():
    lexed = lex(Source("[" * 10_000))
    assert [found.message for found in lexed.diagnostics] == [
        f"brackets are nested deeper than {SOURCE_NESTING_MAX}"
    ]


def test_findings_are_bounded():
    assert len(lex(Source("# " * 10_000)).diagnostics) == DIAGNOSTICS_REPORTED_MAX
    assert len(lex(Source('"' + "\\q" * 10_000 + '"')).diagnostics) == DIAGNOSTICS_REPORTED_MAX


def test_an_unterminated_string_costs_linear_time():
    source = Source('"' + "\\n a" * 800_000)
    start = time.process_time()
    assert [found.message for found in lex(source).diagnostics] == ["this string is never closed"]
    # A scan that starts over at every escape would need hours.
    assert time.process_time() - start < 5


@settings(deadline=None)
@given(st.text())
def test_tokens_and_comments_cover_what_was_read(text):
    lexed = lex(Source(text))
    assert lexed.tokens[-1].kind is Kind.END
    pieces = sorted([*lexed.tokens, *lexed.comments], key=lambda piece: piece.start)
    for piece in pieces:
        assert text[piece.start : piece.end].rstrip("\r") == piece.text
    if not lexed.diagnostics:
        at = 1 if text.startswith("\ufeff") else 0
        for piece in pieces:
            assert not text[at : piece.start].strip(" \t\r\n")
            at = piece.end
        assert at == len(text)
    for found in lexed.diagnostics:
        assert found.severity is Severity.ERROR
        assert render(found)


@pytest.mark.slow
@settings(deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_quoting_is_undone_by_reading(value):
    lexed = lex(Source(quote(value)))
    assert not lexed.diagnostics
    assert string_value(lexed.tokens[0].text) == value


@settings(deadline=None)
@given(st.binary())
def test_any_bytes_decode_or_are_diagnosed(data):
    assert isinstance(decode(data), Source | Diagnostic)


def test_rendering_puts_the_caret_under_the_place():
    found = lex(Source("ok\n\tab # c", "q.gq")).diagnostics[0]
    assert (
        render(found)
        == "q.gq:2:5  unexpected character '#'\n    \tab # c\n    \t   ^\n    hint: comments start with //"
    )
    assert found.to_dict() == {
        "severity": "error",
        "message": "unexpected character '#'",
        "hint": "comments start with //",
        "source_error": {
            "file": "q.gq",
            "line": 2,
            "column": 5,
            "end_line": 2,
            "end_column": 6,
            "snippet": "\tab # c",
        },
    }


def test_a_mark_of_required_types_is_told_from_not_equal():
    for text in (
        "node P { k: String! @key }",
        "query q($n: String!) {",
        "a: [I32]!, b",
        "a: String! b: I32",
        "k: Text!",
    ):
        (found,) = lex(Source(text)).diagnostics
        assert found.hint == "a type is required unless it is marked with ?: leave the ! out", text
    for text in ("$p.k ! 3", "$p.k !3", "$p.k! 3", "! $x", "!"):
        (found,) = lex(Source(text)).diagnostics
        assert found.hint == "'not equal' is written !=", text


def test_near_names():
    assert near_names("nmae", ["name", "age", "names"]) == ("name", "names")
    assert near_names("zzz", ["name"]) == ()
