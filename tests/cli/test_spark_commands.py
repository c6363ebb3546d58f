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
    assert ran.err == "load -> g.omni (direct, local store; engine spark)\n"
    assert (ran.json["engine"], ran.json["total_entities"]) == ("spark", 2)
    again = run("load", "--data", "people.jsonl", "--mode", "append", "--store", "g.omni", "--json", rc=3)
    assert again.out == ""
    assert again.error["kind"] == "key_conflict"
    assert again.error["key_conflict"]["entity_id"] == "ada"


SILENT = {"OMNIGRAPH_SPARK_MASTER": "spark://127.0.0.1:9"}
"""Nobody listens there."""


def test_the_doctor_says_in_a_line_that_no_master_answers(run: Run) -> None:
    ran = run("spark", "doctor", env=SILENT, rc=1)
    assert ran.err == ""
    (line,) = [line for line in ran.out.splitlines() if line.startswith("to fix")]
    assert "no Spark master answers at 'spark://127.0.0.1:9'" in line
    assert "--spark-master" in line
    assert ran.out.endswith("a load on Spark cannot run\n")


def test_a_load_names_the_master_that_does_not_answer(run: Run, tmp_path: Path) -> None:
    (tmp_path / "schema.pg").write_text(SCHEMA)
    (tmp_path / "people.jsonl").write_text('{"type":"Person","data":{"handle":"ada","name":"Ada"}}\n')
    run("init", "--schema", "schema.pg", "g.omni")
    source = ("--data", "people.jsonl", "--mode", "append", "--store", "g.omni")
    ran = run("load", *source, "--json", env=SILENT, rc=None)
    assert ran.error["kind"] == "io"
    assert "spark://127.0.0.1:9" in ran.error["error"]
    assert ran.error["hint"]
