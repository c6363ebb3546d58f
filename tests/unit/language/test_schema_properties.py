"""Properties of the schema parser and formatter over generated texts."""

from pathlib import Path

import lark
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omnigraph.catalog.build import check_schema
from omnigraph.language.diagnostics import Severity, render
from omnigraph.language.format_schema import format_schema
from omnigraph.language.lexer import lex
from omnigraph.language.schema_syntax import parse_schema
from omnigraph.language.source import Source
from unit.language.schema_programs import damaged, schemas, soups

ORACLE = lark.Lark(
    Path(__file__).with_name("schema_grammar.lark").read_text(encoding="utf-8"),
    parser="earley",
    lexer="dynamic",
)


# The machine is shared and the first pattern loads Arrow: no example has a deadline.
unhurried = settings(deadline=None, max_examples=100)


def oracle_accepts(text: str) -> bool:
    if "\0" in text:  # refused before there are tokens, also inside comments
        return False
    try:
        ORACLE.parse(text)
    except lark.exceptions.UnexpectedInput:
        return False
    return True


def comments_of(text: str) -> list[str]:
    return [comment.text.rstrip() for comment in lex(Source(text)).comments]


@pytest.mark.slow
@unhurried
@given(st.one_of(st.text(max_size=200), soups, damaged()))
def test_any_text_gives_a_tree_or_diagnostics(text):
    parsed = parse_schema(text)
    says_something = len(lex(parsed.source).tokens) > 1
    assert parsed.diagnostics or bool(parsed.tree.declarations) == says_something
    catalog, findings = check_schema(text)
    assert (catalog is None) == any(d.severity is Severity.ERROR for d in findings)
    for found in findings:
        assert 0 <= found.span.start < found.span.end or found.span.end == found.span.start
        assert found.code
        assert render(found)


@unhurried
@given(st.binary(max_size=80))
def test_any_bytes_give_a_catalog_or_diagnostics(data):
    catalog, findings = check_schema(data)
    assert catalog is not None or findings


@unhurried
@given(schemas)
@pytest.mark.slow
def test_generated_programs_are_accepted(text):
    assert parse_schema(text).diagnostics == ()


@unhurried
@given(schemas)
@example("node A {} // a\n\n// b\nnode B { /* c */ }")
@example("edge E: A -> B /* x\n*/ // y\n{ a: I32 }")
@pytest.mark.slow
def test_formatting_is_idempotent_and_keeps_tree_and_comments(text):
    formatted = format_schema(text)
    assert isinstance(formatted, str)
    assert format_schema(formatted) == formatted
    assert parse_schema(formatted).tree == parse_schema(text).tree
    assert sorted(comments_of(formatted)) == sorted(comments_of(text))


@unhurried
@given(st.one_of(schemas, damaged()))
@example("node A @card {}")
@example("node A { a: I32 @card(1) @range }")
@example("node A { a: I32 @range(a, - 5..) }")
@example("node A { a: I32b: I32 }")
@example("node A { k: enum(a -b) }")
@example("nodeA {}")
@pytest.mark.slow
def test_the_parser_and_the_written_grammar_accept_the_same(text):
    assert (parse_schema(text).diagnostics == ()) == oracle_accepts(text)
