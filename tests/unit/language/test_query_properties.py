"""Properties of the query parser and formatter over generated texts."""

from pathlib import Path

import lark
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omnigraph.catalog.build import compile_schema
from omnigraph.language.diagnostics import render
from omnigraph.language.format_query import format_queries
from omnigraph.language.lexer import lex
from omnigraph.language.query_syntax import parse_queries
from omnigraph.language.source import Source
from omnigraph.planning.lint import lint_sources
from unit.language.query_programs import damaged, programs, soups, spelled

ORACLE = lark.Lark(
    Path(__file__).with_name("query_grammar.lark").read_text(encoding="utf-8"), parser="earley", lexer="basic"
)
CATALOG = compile_schema(
    "node Person { a: String @key b: I32? name_1: [String]? camelCase: Vector(3)? } node T1 { _x: Date? }"
    " edge A: Person -> Person { b: F64? } edge B: Person -> T1"
)

# The machine is shared: no example has a deadline.
unhurried = settings(deadline=None, max_examples=150)


def oracle_accepts(text):
    try:
        ORACLE.parse(text)
    except lark.exceptions.UnexpectedInput:
        return False
    return True


def comments_of(text):
    return sorted(comment.text.rstrip() for comment in lex(Source(text)).comments)


@unhurried
@given(st.one_of(st.text(max_size=200), soups, damaged(), spelled()))
@pytest.mark.slow
def test_any_text_gives_a_tree_or_diagnostics(text):
    parsed = parse_queries(text)
    for found in parsed.diagnostics:
        assert found.code == "Q000"
        assert render(found)
    report = lint_sources([Source(text)], CATALOG)
    assert (report.status == "error") == any(found.severity == "error" for found in report.diagnostics())
    assert bool(parsed.diagnostics) == any(finding.code == "Q000" for finding in report.findings)
    report.to_dict()


@pytest.mark.slow  # the next one parses them as well
@unhurried
@given(spelled())
def test_generated_programs_are_accepted(text):
    assert parse_queries(text).diagnostics == ()


@unhurried
@given(spelled())
@example("query q() { match { $a: T // x\n { b: 1 } } return { $a } }")
@example('query q() /* a */ @description("d") /* b\n */ { /* c */ delete T where a = 1 // d\n } // e')
@example("query q() { insert T { a: 1 /* x */ , /* y */ b: 2 } }")
@pytest.mark.slow
def test_formatting_is_idempotent_and_keeps_tree_and_comments(text):
    formatted = format_queries(text)
    assert isinstance(formatted, str)
    assert format_queries(formatted) == formatted
    assert parse_queries(formatted).queries == parse_queries(text).queries
    assert comments_of(formatted) == comments_of(text)


@settings(deadline=None, max_examples=80)
@given(programs(most=2))
@pytest.mark.slow
def test_the_oracle_accepts_generated_programs(tokens):
    assert oracle_accepts(" ".join(tokens))


@settings(deadline=None, max_examples=200)
@given(damaged())
@pytest.mark.slow
def test_parser_and_oracle_agree_on_damaged_programs(text):
    assert parse_queries(text).ok == oracle_accepts(text), [
        render(d) for d in parse_queries(text).diagnostics
    ]
