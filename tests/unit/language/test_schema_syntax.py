"""The parser on input that nobody should send: typed findings in bounded time and memory."""

import time
import tracemalloc

import pytest

from omnigraph.catalog.build import check_schema, compile_schema
from omnigraph.core.errors import SchemaRuleError, SchemaSyntaxError
from omnigraph.core.limits import DIAGNOSTICS_REPORTED_MAX
from omnigraph.language.diagnostics import render
from omnigraph.language.format_schema import format_schema
from omnigraph.language.schema_syntax import parse_schema


def findings_of(text: str | bytes) -> list:
    catalog, findings = check_schema(text, file="bad.pg")
    assert catalog is None
    assert all(render(found) for found in findings)
    return findings


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'node A { n: String @description("\xff") }', "not UTF-8"),
        (b"\x00", "NUL"),
        (b"node A { n: Str\x00ing }", "NUL"),
        (b'node A { n: String @description("open }', "never closed"),
        (b"/* open", "never closed"),
        (b"node A {" + b"[" * 10_000, "nested deeper"),
        (b"{" * 10_000, "nested deeper"),
        (b"node A { _rowid: I32 }", "taken by the system"),
        ("node Å {}".encode(), "unexpected character"),
        (b"node A { n: \xe2\x80\x9cString\xe2\x80\x9d }", "unexpected character"),
        (b"node A", "expected '{'"),
        (b"node", "expected the name"),
        (b"@", "expected 'interface', 'node' or 'edge'"),
    ],
)
def test_bad_input_is_a_finding(data, message):
    assert any(message in found.message for found in findings_of(data))


@pytest.mark.slow
def test_fifty_megabytes_end_in_a_finding_in_bounded_time():
    text = "node A { n: I32 }\n" * (50 * 1024 * 1024 // 18)
    started = time.process_time()
    findings = findings_of(text)
    assert time.process_time() - started < 60
    assert "at most" in findings[0].message or "more than" in findings[0].message


@pytest.mark.slow
def test_fifty_megabytes_of_one_token_are_read_without_copies():
    text = 'node A { n: String @description("' + "x" * (50 * 1024 * 1024) + '") }'
    tracemalloc.start()
    catalog, _ = check_schema(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert catalog is not None
    assert peak < 8 * len(text)


@pytest.mark.parametrize(
    "text",
    [
        "node A { " + "x: " * 50_000,
        "@" * 100_000,
        "node A { a: I32 " + "@x " * 50_000 + "}",
        "node A { a: enum(" + ",".join(f"v{n}" for n in range(50_000)) + ") }",
        "node A { a: I32 @range(a, 0.." + "9" * 1_000_000 + ") }",
        "node A { v: Vector(" + "9" * 1_000_000 + ") }",
        "node A { n: I32 @default(" + "9" * 1_000_000 + ") }",
        "node A {} edge E: A -> A @card(" + "9" * 1_000_000 + "..)",
        'node A { s: String @check(s, "' + "(" * 100_000 + '") }',
        'node A { s: String @check(s, "((a{1,900}){1,900}){1,900}") }',
        "node A { x: I32 @key(" + "x," * 50_000 + "x) }",
        "node A implements " + ",".join(["B"] * 50_000) + " {}",
        "// " + "x" * 1_000_000,
        '"' * 99_999,
    ],
    ids=lambda text: text[:40],
)
@pytest.mark.slow
def test_hostile_shapes_take_seconds_at_most(text):
    started = time.process_time()
    check_schema(text)
    format_schema(text)
    assert time.process_time() - started < 20


def test_findings_are_capped():
    findings = findings_of("node A { " + "x: Nope " * 10_000 + "}")
    assert len(findings) <= DIAGNOSTICS_REPORTED_MAX + 1


def test_a_text_without_errors_has_a_whole_tree():
    parsed = parse_schema("node A { x: I32 } edge E: A -> A")
    assert parsed.diagnostics == ()
    assert [d.name.text for d in parsed.tree.declarations] == ["A", "E"]


def test_what_was_understood_is_kept_beside_the_errors():
    parsed = parse_schema("node A { x: I32 } nod B {} node C { y: Strin z: Bool }")
    assert [d.name.text for d in parsed.tree.declarations] == ["A", "C"]
    assert len(parsed.diagnostics) == 2


def test_the_error_carries_place_code_candidates_and_all_findings():
    with pytest.raises(SchemaSyntaxError) as caught:
        compile_schema("node A {\n  x: Strin\n  y: Bol\n}", file="a.pg")
    error = caught.value
    assert (error.kind, error.http_status, error.exit_status) == ("schema_syntax", 400, 1)
    assert len(error.diagnostics) == 2
    detail = error.to_dict()
    assert detail["source_error"]["line"] == 2
    assert detail["source_error"]["file"] == "a.pg"
    assert detail["source_error"]["lint_code"] == "P000"
    assert detail["candidates"] == ["String"]


def test_the_class_is_that_of_the_earliest_stage():
    with pytest.raises(SchemaRuleError) as caught:
        compile_schema("node A {} edge E: A -> B  node C { id: I32 }")
    assert type(caught.value) is SchemaRuleError
    assert caught.value.to_dict()["kind"] == "schema_invalid"


def test_a_finding_names_the_type_and_property_it_stands_in():
    findings = findings_of("node A { x: I32? @key  @range(x, 9..1)  @unique(nope) }\nedge E: A -> Gone")
    subjects = [(found.code, found.type_name, found.property_name) for found in findings]
    assert subjects == [("P107", "A", "x"), ("P110", "A", "x"), ("P112", "A", None), ("P203", "E", None)]


@pytest.mark.slow
def test_two_thousand_types_are_checked_in_one_run():
    parts = [
        f'node Type{n} @description("number {n}") {{\n'
        f"  code: String @key\n  size: I64? @index\n  mood: enum(calm, rough, {n}) @default(calm)\n"
        f"  body: String\n  vec: Vector(8)? @embed(body)\n  @range(size, 0..{n})\n  @unique(size, mood)\n}}\n"
        f"edge Link{n}: Type{n} -> Type{(n * 7) % 1_000} @card(0..3) {{ weight: F64? }}\n"
        for n in range(1_000)
    ]
    text = "".join(parts)
    started = time.process_time()
    catalog, findings = check_schema(text)
    formatted = format_schema(text)
    assert time.process_time() - started < 10
    assert catalog is not None
    assert findings == []
    assert len(catalog.table_keys()) == 2_000
    assert formatted is not None


@pytest.mark.slow
def test_two_thousand_unknown_names_are_reported_in_bounded_time():
    text = "".join(f"node Type{n} {{}} edge Link{n}: Typ{n} -> Tpye{n}\n" for n in range(1_000))
    started = time.process_time()
    findings = findings_of(text)
    assert time.process_time() - started < 20
    assert findings
