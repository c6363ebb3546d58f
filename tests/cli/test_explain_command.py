"""explain through the command: text, JSON, targets, statuses."""

from pathlib import Path

import pytest

import omnigraph as og
from cli.conftest import Run
from omnigraph.core.settings import Settings

SCHEMA = (
    "node Doc { slug: String @key  body: String @index  vec: Vector(2)? @index }\nedge Cites: Doc -> Doc\n"
)
QUERIES = """query near($v: Vector(2)) {
  match { $d: Doc  search($d.body, "tide") } return { $d.slug } order { nearest($d.vec, $v) } limit 2
}
query cited($s: String) { match { $d: Doc { slug: $s } $d cites $x } return { $x.slug } }
"""
SEED = """query seed() {
  insert Doc { slug: "a", body: "tide and reef", vec: [1.0, 0.0] }
  insert Doc { slug: "b", body: "tide", vec: [0.0, 1.0] }
  insert Doc { slug: "c", body: "moss" }
  insert Cites { from: "a", to: "b" }
}"""
STORE = ("--store", "docs.omni")
VECTOR = ("-p", "v=[1,0]")


@pytest.fixture
def first_commit(tmp_path: Path) -> str:
    """A graph beside its queries, indexes built; the commit before the indexes."""
    (tmp_path / "docs.gq").write_text(QUERIES)
    settings = Settings(durability="os", vector_probes=1)  # an index of vectors is built where it is used
    with og.init(tmp_path / "docs.omni", schema=SCHEMA, settings=settings) as graph:
        graph.mutate(SEED)
        seeded = graph.commits.head().id
        graph.ensure_indices()
    return seeded


def test_the_plan_is_printed_without_running_it(here: Run, first_commit: str) -> None:
    lines = here("explain", "near", "--query", "docs.gq", *VECTOR, *STORE).out.splitlines()
    assert lines[0].startswith("query near at ")
    assert [line.split()[0] for line in lines if line.startswith("  ") and not line.startswith("   ")] == [
        "scan",
        "filter",
        "rank",
        "project",
        "limit",
    ]
    assert "  rank nearest($d.vec, $v)  [about 1 row]" in lines
    assert any("exact answer; coverage Indexed (vec_vec)" in line for line in lines)
    assert not any("ms" in line for line in lines)


def test_analyze_tells_rows_reads_and_coverage_as_json(here: Run, first_commit: str) -> None:
    answer = here("explain", "near", "--query", "docs.gq", *VECTOR, *STORE, "--analyze", "--json").json
    assert answer["query_name"] == "near"
    by_name = {each["operator"]: each for each in answer["operators"]}
    assert by_name["filter"]["actual_rows"] == 2
    assert by_name["filter"]["coverage"] == {"state": "Indexed", "index": "body_fts"}
    assert by_name["filter"]["exact"] is True
    assert by_name["rank"]["coverage"] == {"state": "Indexed", "index": "vec_vec"}
    assert by_name["limit"]["actual_rows"] == 2
    measured = answer["analyze"]
    assert measured["rows"] == 2
    assert measured["bytes"] > 0
    assert measured["requests"] > 0
    assert measured["storage_calls"]["scan"] >= 1
    assert sum(each.get("bytes", 0) for each in answer["operators"]) <= measured["bytes"]


def test_an_older_commit_has_its_own_coverage(here: Run, first_commit: str) -> None:
    found = here(
        "explain", "near", "--query", "docs.gq", *VECTOR, *STORE, "--snapshot", first_commit, "--json"
    )
    rank = next(each for each in found.json["operators"] if each["operator"] == "rank")
    assert rank["coverage"] == {"state": "NotNeeded", "reason": "exact search"}


def test_text_of_an_analyzed_plan_ends_with_the_run(here: Run, first_commit: str) -> None:
    out = here("explain", "cited", "--query", "docs.gq", "-p", "s=a", *STORE, "--analyze").out
    assert "expand $d -Cites-> $x" in out
    assert out.splitlines()[-1].startswith("  1 row in ")


def test_what_cannot_be_explained(here: Run, first_commit: str) -> None:
    both = here("explain", "near", "--query", "docs.gq", *STORE, "--branch", "main", "--snapshot", "x", rc=2)
    assert "exclude each other" in both.err
    missing = here("explain", "near", "--query", "docs.gq", *STORE, "--json", rc=None)
    assert missing.rc != 0
    assert missing.error["kind"] == "missing_parameter"
    mutation = here("explain", "-e", SEED, *STORE, "--json", rc=None)
    assert mutation.error["kind"] == "wrong_query_kind"
