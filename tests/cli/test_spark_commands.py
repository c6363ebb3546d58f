"""Commands that start a JVM."""

from pathlib import Path

import pytest

from cli.conftest import Run

pytestmark = pytest.mark.spark

SCHEMA = "node Person { handle: String @key  name: String }\nedge Knows: Person -> Person\n"


def test_the_doctor_starts_spark_and_says_so(run: Run) -> None:
    report = run("spark", "doctor", "--json").json
    assert report["ok"] is True
    assert report["to_fix"] == []
    assert report["first_job_seconds"] > 0


def test_load_runs_on_spark_unless_told_otherwise_and_nothing_of_spark_is_heard(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "schema.pg").write_text(SCHEMA)
    (tmp_path / "people.jsonl").write_text(
        '{"type":"Person","data":{"handle":"ada","name":"Ada"}}\n{"edge":"Knows","from":"ada","to":"ada"}\n'
    )
    run("init", "--schema", "schema.pg", "g.omni")
    ran = run("load", "--data", "people.jsonl", "--mode", "append", "--store", "g.omni", "--json")
    assert ran.err == "load -> g.omni (direct, local)\n"
    assert (ran.json["engine"], ran.json["total_entities"]) == ("spark", 2)
    again = run("load", "--data", "people.jsonl", "--mode", "append", "--store", "g.omni", "--json", rc=3)
    assert again.out == ""
    assert again.error["kind"] == "key_conflict"
    assert again.error["key_conflict"]["entity_id"] == "ada"
