"""The reference page of the query language says what the code does."""

import re
from pathlib import Path

from omnigraph.catalog.build import compile_schema
from omnigraph.core.limits import SOURCE_BYTES_MAX, SOURCE_NESTING_MAX, SOURCE_TOKENS_MAX
from omnigraph.language.format_query import format_queries
from omnigraph.language.query_tree import Function
from omnigraph.language.source import Source
from omnigraph.planning.lint import lint_sources

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "query-language.md").read_text(encoding="utf-8")
SOURCES = [
    *(ROOT / "src" / "omnigraph" / "planning").glob("*.py"),
    *(ROOT / "src" / "omnigraph" / "language").glob("*query*.py"),
]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_query_of_the_page_compiles_and_is_in_canonical_form():
    (schema,) = blocks("pg")
    catalog = compile_schema(schema)
    assert len(blocks("gq")) >= 5
    for text in blocks("gq"):
        report = lint_sources([Source(text)], catalog)
        assert report.status == "ok", report.to_dict()
        assert format_queries(text) == text


def test_every_code_is_listed_and_exists():
    listed = set(re.findall(r"^\| `([A-Z0-9]+)` \|", PAGE.split("## Codes of findings")[1], re.MULTILINE))
    text = "".join(source.read_text(encoding="utf-8") for source in SOURCES)
    used = set(re.findall(r'"(T\d+|Q\d{3}|L\d{3}|D2|KEY)"', text))
    assert listed == used


def test_every_function_is_described():
    for function in Function:
        assert re.search(rf"`{function}[(`]|\"{function}\"", PAGE), function


def test_the_limits_are_the_limits():
    assert f"{SOURCE_BYTES_MAX // 2**20} MiB" in PAGE
    assert SOURCE_TOKENS_MAX == 2_000_000
    assert f"nest at most {SOURCE_NESTING_MAX} deep" in PAGE
