"""The reference page of the schema language agrees with the code."""

import re
from pathlib import Path

import pytest

from omnigraph.catalog.build import check_schema
from omnigraph.catalog.codes import CODE_MEANINGS, LINT_CODES
from omnigraph.catalog.declare import RESERVED_EVERYWHERE, RESERVED_ON_EDGES
from omnigraph.core import limits
from omnigraph.language.format_schema import format_schema

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "schema-language.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```pg ?(\S*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("code", "text"), BLOCKS)
def test_schema_blocks_do_what_the_page_says(code, text):
    catalog, findings = check_schema(text)
    assert [found.code for found in findings] == ([code] if code else [])
    assert (catalog is None) == bool(code)
    assert format_schema(text) == text, "examples are in canonical form"


def test_the_page_has_examples_of_both_kinds():
    assert {bool(code) for code, _ in BLOCKS} == {True, False}


def test_every_finding_code_is_listed_with_its_meaning():
    listed = dict(re.findall(r"^\| `(P\d{3})` \| (.*) \|$", PAGE, re.MULTILINE))
    assert listed == {code.value: meaning for code, meaning in CODE_MEANINGS.items()}


def test_every_planner_code_is_listed_with_tier_and_meaning():
    listed = re.findall(r"^\| `(OG-\w\w-\d{3})` \| (\w+) \| (.*?)( \(reserved\))? \|$", PAGE, re.MULTILINE)
    expected = [
        (c.code, c.tier.value, c.meaning, "" if c.emitted else " (reserved)") for c in LINT_CODES.values()
    ]
    assert listed == expected


def test_reserved_names_and_limits_are_told():
    for name in RESERVED_EVERYWHERE | RESERVED_ON_EDGES:
        assert f"`{name}`" in PAGE
    assert limits.SOURCE_BYTES_MAX == 64 * limits.MIB
    assert limits.SOURCE_TOKENS_MAX == 2_000_000
    assert limits.SOURCE_NESTING_MAX == 100
    assert limits.DIAGNOSTICS_REPORTED_MAX == 100
