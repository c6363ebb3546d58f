"""The compiled schema as a stored contract, its hashes, and what importing the catalog costs."""

import json
import pickle
import subprocess
import sys

import pytest

from omnigraph.catalog.build import compile_schema
from omnigraph.catalog.codes import CODE_MEANINGS, LINT_CODES, Code
from omnigraph.catalog.diff import plan_schema, require_supported
from omnigraph.catalog.ir import IR_FORMAT, from_json, schema_hash, shape_hash, to_json
from omnigraph.catalog.schema import Catalog
from omnigraph.core.errors import FormatTooNew, MigrationUnsupported, SchemaDrift, SchemaIdentityError

FULL = """
interface Coded { code: String @key @description("the code") }
node Place @description("d") @instruction("i") @mine(1, k="v") implements Coded {
  q: I32? @default(5) @wibble(a)
  at: DateTime @default("2024-01-01T10:00:00.250+02:00")
  on: Date @default("2024-01-01")
  f: F32 @default(0.1)
  u: U64 @default(18446744073709551615)
  yes: Bool @default(true)
  text: String @default("a \\"b\\"") @index(text: french)
  vec: Vector(3)? @embed(text, model="m")
  mood: enum(b, a) @default(b)
  days: [Date]?
  raw: Blob?
  @range(q, -1.50..007)
  @range(f, ..0.5)
  @check(text, "^a.*\\\\d?$")
  @unique(q, mood)
  @index(q, f)
}
edge Near: Place -> Place @card(0..3) @description("e") @merge(entity) { w: F64? @index  @unique(src, dst) }
edge Far: Place -> Place
"""


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return compile_schema(FULL)


def test_the_stored_form_reads_back_equal(catalog):
    stored = to_json(catalog)
    read = from_json(stored)
    assert read == catalog
    assert read.source_hash == catalog.source_hash
    assert to_json(read) == stored
    assert read.nodes["Place"].arrow_schema == catalog.nodes["Place"].arrow_schema
    assert json.loads(stored)["format"] == IR_FORMAT


def test_a_catalog_pickles(catalog):
    assert catalog.nodes["Place"].arrow_schema is not None
    copy = pickle.loads(pickle.dumps(catalog))
    assert copy == catalog
    assert copy.edge("near") is copy.edges["Near"]


@pytest.mark.parametrize(
    "edited",
    [
        "// a comment\n" + FULL,
        FULL.replace("\n", "\n\n"),
        FULL.replace("enum(b, a)", "enum(a, b)"),
        FULL.replace("@unique(q, mood)", "@unique(mood, q)"),
        FULL.replace("-1.50..007", "-1.5..7"),
        FULL.replace("q: I32?", 'q: I32? @rename_from("old")'),
        FULL.replace("edge Far: Place -> Place\n", "").replace(
            "node Place", "edge Far: Place -> Place\nnode Place"
        ),
    ],
)
def test_what_does_not_change_the_schema_does_not_change_its_hashes(catalog, edited):
    other = compile_schema(edited)
    assert other.source_hash != catalog.source_hash
    assert schema_hash(other) == schema_hash(catalog)
    assert shape_hash(other) == shape_hash(catalog)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0..3", "0..4"),
        ("@default(5)", "@default(6)"),
        ("@wibble(a)", "@wibble(b)"),
        ('@description("e")', '@description("f")'),
        ("@index  @unique", "@unique"),
        ("q: I32?", "q: I64?"),
        ("q: I32?", "q: I32"),
        ('model="m"', 'model="n"'),
        ("..0.5", "..0.6"),
        ("enum(b, a)", "enum(b, a, c)"),
    ],
)
def test_what_changes_the_schema_changes_its_hashes(catalog, old, new):
    other = compile_schema(FULL.replace(old, new))
    assert shape_hash(other) != shape_hash(catalog)
    assert schema_hash(other) != schema_hash(catalog)


def test_history_is_in_the_content_hash_and_not_in_the_shape():
    first = compile_schema("node A {} node B {}")
    dropped = plan_schema(first, "node A {}").desired
    again = plan_schema(dropped, "node A {} node B {}").desired
    assert shape_hash(again) == shape_hash(first)
    assert schema_hash(again) != schema_hash(first)


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"format": "1"}',
        '{"format": 0}',
        '{"format": 1, "nodes": [1]}',
        "[" * 100_000,
    ],
)
def test_a_stored_form_that_cannot_be_read_is_drift(stored):
    with pytest.raises(SchemaDrift):
        from_json(stored)


def test_a_newer_format_is_refused_by_number():
    with pytest.raises(FormatTooNew, match=str(IR_FORMAT + 1)):
        from_json(json.dumps({"format": IR_FORMAT + 1}))


def test_lookups(catalog):
    assert catalog.table_keys() == ("edge:Far", "edge:Near", "node:Place")
    assert catalog.type_of("edge:Near") is catalog.edge("NEAR")
    assert catalog.node("place") is None
    assert catalog.node("Place") is catalog.type_of("node:Place")
    assert [e.name for e in catalog.edges_of("Place")] == ["Far", "Near"]
    with pytest.raises(KeyError):
        catalog.type_of("node:Nope")


def test_an_unsupported_plan_is_raised_with_its_code():
    accepted = compile_schema("node A {}")
    plan = plan_schema(accepted, "node A { n: I32 }")
    assert plan.supported is False
    with pytest.raises(MigrationUnsupported, match=r"\[OG-MF-103\]") as caught:
        require_supported(plan)
    assert caught.value.kind == "unsupported_migration"
    require_supported(plan_schema(accepted, "node A { n: I32? }"))


def test_an_identity_error_is_no_plan():
    with pytest.raises(SchemaIdentityError):
        plan_schema(compile_schema("node A {}"), 'node B @rename_from("Nope") {}')


def test_every_code_has_a_meaning():
    assert set(CODE_MEANINGS) == set(Code)
    assert {code for code, entry in LINT_CODES.items() if entry.emitted} == {
        "OG-MF-103",
        "OG-MF-104",
        "OG-MF-106",
    }


@pytest.mark.slow
def test_linting_without_patterns_loads_neither_arrow_nor_numpy():
    program = (
        "import sys\n"
        "from omnigraph.catalog.build import check_schema\n"
        "from omnigraph.catalog.diff import plan_schema\n"
        "from omnigraph.language.format_schema import format_schema\n"
        "catalog, found = check_schema('node A { n: I32 @key @range(n, 0..9) } edge E: A -> A')\n"
        "plan_schema(catalog, 'node A { n: I32 @key }')\n"
        "print(sorted({'pyarrow', 'numpy', 'lance', 'pandas'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
