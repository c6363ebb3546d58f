"""Trees and the limits of the query parser. What is refused, and in which words, is pinned in tests/cases/query."""

import time

import pytest

from omnigraph.catalog.build import compile_schema
from omnigraph.core.limits import DIAGNOSTICS_REPORTED_MAX, SOURCE_TOKENS_MAX
from omnigraph.language import query_tree as tree
from omnigraph.language.format_query import format_queries
from omnigraph.language.query_syntax import parse_queries
from omnigraph.language.source import Source
from omnigraph.planning.lint import lint_sources


def only(text):
    parsed = parse_queries(text)
    assert parsed.ok, [found.message for found in parsed.diagnostics]
    (query,) = parsed.queries
    return query


def test_spans_cover_what_was_written():
    text = (
        "query q($n: String) {\n  match { $p: Person { name: $n } $p.age > 3 }\n  return { $p.age as a }\n}"
    )
    query = only(text)

    def at(span):
        return text[span.start : span.end]

    assert at(query.span) == text
    assert at(query.head) == "query q($n: String)"
    body = query.body
    assert isinstance(body, tree.ReadBody)
    binding, filter_ = body.clauses
    assert at(binding.span) == "$p: Person { name: $n }"
    assert at(binding.braces) == "{ name: $n }"
    assert at(filter_.span) == "$p.age > 3"
    assert at(filter_.left.property_span) == "age"
    assert at(body.return_span) == "return { $p.age as a }"
    assert at(body.projections[0].span) == "$p.age as a"


def test_precedence_of_conditions():
    body = only("query q() { delete T where not a = 1 and b = 2 or c = 3 and not (d = 4 or e = 5) }").body
    assert isinstance(body, tree.MutationBody)

    def equal(name, value):
        return tree.Comparison(name, tree.Operator.EQ, tree.Literal(tree.LiteralKind.INTEGER, value))

    assert body.statements[0].where == tree.AnyOf(
        (
            tree.AllOf((tree.NoneOf(equal("a", 1)), equal("b", 2))),
            tree.AllOf((equal("c", 3), tree.NoneOf(tree.AnyOf((equal("d", 4), equal("e", 5)))))),
        )
    )


def test_words_of_conditions_are_legal_property_names():
    body = only(
        'query q() { delete T where not = 1 and not is null or not not is not null and contains contains "x" and not and = 2 }'
    ).body
    parts = [type(part).__name__ for part in body.statements[0].where.parts]
    assert parts == ["AllOf", "AllOf"]


def test_a_chain_of_a_thousand_tests_is_flat():
    text = "query q() { delete T where " + " and ".join(f"a = {n}" for n in range(1_000)) + " }"
    assert len(only(text).body.statements[0].where.parts) == 1_000
    assert format_queries(text).count(" and ") == 999


def test_deep_nesting_ends_in_a_diagnostic():
    for opening in ("query q() { match { " + "not { " * 10_000, "query q() { delete T where " + "(" * 10_000):
        (found,) = parse_queries(opening).diagnostics
        assert "nested deeper" in found.message
    (found,) = parse_queries("query q() { delete T where " + "not " * 10_000 + "a = 1 }").diagnostics
    assert "'not' in a row" in found.message
    (found,) = parse_queries("query q() { match { " + "[" * 10_000).diagnostics
    assert "nested deeper" in found.message


def test_bad_bytes_are_diagnosed():
    for text, words in (
        ("query q() { \0 }", "NUL"),
        ('query q() { match { $a: T { b: "x } }', "never closed"),
        ("query q() { /* }", "never closed"),
        ("query q() { match { $a: T } return { $a } } ;", "unexpected character"),
    ):
        (found,) = parse_queries(text).diagnostics
        assert words in found.message
        assert found.code == "Q000"


@pytest.mark.slow
def test_a_large_file_of_words_is_refused_within_bounds():
    parsed = parse_queries("query " * (SOURCE_TOKENS_MAX + 5))
    (found,) = parsed.diagnostics
    assert "words and symbols" in found.message


def test_errors_are_bounded():
    parsed = parse_queries("query a() { x }\n" * 1_000)
    assert len(parsed.diagnostics) == DIAGNOSTICS_REPORTED_MAX
    assert [found.line for found in parsed.diagnostics] == list(range(1, DIAGNOSTICS_REPORTED_MAX + 1))


def test_reading_goes_on_at_the_next_query():
    parsed = parse_queries("query a() { match } query b() { delete T where a = 1 } nonsense query c() { x }")
    assert [query.name for query in parsed.queries] == ["b"]
    assert len(parsed.diagnostics) == 3


@pytest.mark.slow
def test_five_thousand_queries_and_two_thousand_types_lint_in_one_run():
    schema = "".join(
        f"node N{n} {{ k: String @key v: I32? }} edge E{n}: N{n} -> N{n}\n" for n in range(2_000)
    )
    queries = "".join(
        f"query q{n}($k: String) {{ match {{ $a: N{n % 2_000} {{ k: $k }} $a e{n % 2_000} $b }} return {{ $b.v }} }}\n"
        for n in range(5_000)
    )
    start = time.process_time()
    report = lint_sources([Source(queries)], compile_schema(schema))
    assert (report.status, len(report.results), report.warnings) == ("ok", 5_000, 0)
    assert time.process_time() - start < 30


@pytest.mark.slow
def test_five_thousand_unknown_names_cost_no_more_than_known_ones():
    schema = "".join(f"node Person{n} {{ k: String @key }}\n" for n in range(2_000))
    queries = "".join(f"query q{n}() {{ match {{ $a: Persn{n} }} return {{ $a }} }}\n" for n in range(5_000))
    catalog = compile_schema(schema)
    start = time.process_time()
    report = lint_sources([Source(queries)], catalog)
    assert report.errors == 5_000
    assert report.results[0].errors[0].suggestion == "Person0"
    assert time.process_time() - start < 30
