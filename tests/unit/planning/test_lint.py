"""The JSON of a lint and of the errors a query can raise, as the command line and the service show them."""

import json

import pytest

from omnigraph.catalog.build import compile_schema
from omnigraph.core.errors import OmnigraphError
from omnigraph.language.diagnostics import render
from omnigraph.language.source import Source
from omnigraph.planning.compile import compile_query
from omnigraph.planning.lint import lint_sources
from omnigraph.planning.params import bind_params

CATALOG = compile_schema("node Ship { imo: String @key  tonnage: I32?  name: String? }")


def test_the_report_as_json():
    text = (
        "query heavy($t: I32) { match { $s: Ship $s.tonnage > $t } return { $s.imo } }\n"
        "query wrong() { match { $s: Ship } return { $s.tonage } }\n"
        "query rename($i: String, $n: String) { update Ship set { name: $n } where imo = $i }\n"
    )
    report = json.loads(json.dumps(lint_sources([Source(text, "harbor.gq")], CATALOG).to_dict()))
    assert (report["status"], report["queries_processed"]) == ("error", 3)
    assert (report["errors"], report["warnings"], report["infos"]) == (1, 1, 0)
    heavy, wrong, rename = report["results"]
    assert heavy == {
        "name": "heavy",
        "kind": "read",
        "status": "ok",
        "warnings": [],
        "operation": {
            "result": [{"name": "s.imo", "kind": "string", "nullable": False}],
            "reads": [{"kind": "node", "type_name": "Ship"}],
            "writes": [],
        },
    }
    assert "operation" not in wrong
    assert wrong["error"] == "T6: 'Ship' has no property 'tonage'; did you mean 'tonnage'?"
    assert wrong["diagnostics"] == [
        {
            "severity": "error",
            "code": "T6",
            "message": "'Ship' has no property 'tonage'",
            "source_error": {
                "file": "harbor.gq",
                "line": 2,
                "column": 48,
                "end_line": 2,
                "end_column": 54,
                "lint_code": "T6",
                "snippet": "query wrong() { match { $s: Ship } return { $s.tonage } }",
            },
            "candidates": ["tonnage"],
            "type_name": "Ship",
            "property": "tonage",
        }
    ]
    assert rename["kind"] == "mutation"
    assert report["findings"] == [
        {
            "severity": "warning",
            "code": "L201",
            "message": "no update query sets Ship.tonnage",
            "type_name": "Ship",
            "property": "tonnage",
            "query_names": ["rename"],
        }
    ]


def test_a_diagnostic_for_people():
    text = "query wrong() {\n  match { $s: Ship }\n  return { $s.tonage }\n}\n"
    (found,) = lint_sources([Source(text, "harbor.gq")], CATALOG).diagnostics()
    assert render(found) == (
        "T6  harbor.gq:3:15  'Ship' has no property 'tonage'; did you mean 'tonnage'?\n"
        "      return { $s.tonage }\n"
        "                  ^^^^^^"
    )


def test_a_text_that_does_not_parse_has_findings_and_no_results():
    report = lint_sources([Source("query a() { match { } return { 1 } }\nquery b() {")], CATALOG)
    assert report.results == ()
    assert [(finding.code, finding.diagnostic.line) for finding in report.findings] == [
        ("Q000", 1),
        ("Q000", 2),
    ]


def test_several_files_are_linted_together():
    one = Source("query a() { match { $s: Ship } return { $s } }", "one.gq")
    two = Source("query a() { match { $s: Ship } return { $s.name } }\nquery b() { oops }", "two.gq")
    three = Source("query a() { match { $s: Ship } return { $s.name } }", "three.gq")
    report = lint_sources([one, two, three], CATALOG)
    assert [result.file for result in report.results] == ["one.gq", "three.gq"]
    assert [finding.code for finding in report.findings] == ["Q000", "L202"]
    assert "in one.gq" in report.findings[1].message
    assert [found.file for found in report.diagnostics()] == ["three.gq", "two.gq"]


def failure(text, given=None):
    with pytest.raises(OmnigraphError) as raised:
        bind_params(compile_query(text, CATALOG), given)
    return raised.value.to_dict()


def test_errors_carry_their_place_and_near_names():
    unclosed = failure("query q() {\n  match { $s: Ship }\n  return { $s.imo }\n")
    assert unclosed["kind"] == "query_syntax"
    assert unclosed["source_error"]["line"] == 4
    unknown = failure("query q() { match { $s: Ship } return { $s.tonage } }")
    assert (unknown["kind"], unknown["candidates"]) == ("query_type", ["tonnage"])
    assert unknown["source_error"]["lint_code"] == "T6"
    heavy = "query q($imo: String) { match { $s: Ship { imo: $imo } } return { $s } }"
    assert failure(heavy)["kind"] == "missing_parameter"
    extra = failure(heavy, {"imo": "a", "imoo": "b"})
    assert (extra["kind"], extra["candidates"]) == ("unknown_parameter", ["imo"])
    assert failure(heavy, {"imo": 7})["kind"] == "parameter_type"
    mixed = failure('query q() { insert Ship { imo: "a" } delete Ship where imo = "b" }')
    assert mixed["kind"] == "mixed_mutation"
    assert mixed["retry"] == "never"
    key = failure('query q() { update Ship set { imo: "a" } where imo = "b" }')
    assert (key["kind"], key["constraint"]["rule"]) == ("constraint_violation", "key")
    assert failure("query a() { match { $s: Ship } return { $s } } " * 2)["kind"] == "query_not_selected"
