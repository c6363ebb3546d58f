"""lint, fmt and schema plan through the installed command."""

from pathlib import Path

import pytest

from cli.conftest import Run

HARBOR = """node Ship { imo: String @key   name: String   tonnage: I32?   papers: Blob? }
node Port { code: String @key  city: String }
edge CallsAt: Ship -> Port { berth: String? }
edge SisterOf: Ship -> Ship
"""
QUERIES = """query ship_by_imo($imo: String) { match { $s: Ship { imo: $imo } } return { $s.name, $s.tonnage } }
query add_ship($imo: String, $name: String) { insert Ship { imo: $imo, name: $name } }
"""
WRONG = "query q() { match { $s: Ship } return { $s.tonage } }\nquery r() { match { $p: Prot } return { $p.code } }\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "harbor.pg").write_text(HARBOR)
    (tmp_path / "harbor.gq").write_text(QUERIES)
    (tmp_path / "wrong.gq").write_text(WRONG)
    return tmp_path


def test_lint_of_sound_files(run: Run, files: Path) -> None:
    ran = run("lint", "--query", "harbor.gq", "--schema", "harbor.pg", "--json")
    report = ran.json
    assert ran.err == ""
    assert report["status"] == "ok"
    assert report["schema_source"] == {"kind": "file", "path": "harbor.pg"}
    assert report["query_path"] == "harbor.gq"
    assert (report["queries_processed"], report["errors"]) == (2, 0)
    assert [(one["name"], one["kind"], one["status"]) for one in report["results"]] == [
        ("ship_by_imo", "read", "ok"),
        ("add_ship", "mutation", "ok"),
    ]


def test_lint_reports_every_error_with_its_place_and_the_near_name(here: Run, files: Path) -> None:
    ran = here("lint", "--query", "wrong.gq", "--schema", "harbor.pg", rc=1)
    assert "wrong.gq:1:44" in ran.out
    assert "did you mean 'tonnage'?" in ran.out
    assert "wrong.gq:2:25" in ran.out
    assert "did you mean 'Port'?" in ran.out
    assert "2 errors" in ran.out.splitlines()[-1]


def test_lint_errors_as_json(here: Run, files: Path) -> None:
    report = here("lint", "--query", "wrong.gq", "--schema", "harbor.pg", "--json", rc=1).json
    assert report["status"] == "error"
    assert report["errors"] == 2
    assert all(one["status"] == "error" and "operation" not in one for one in report["results"])


def test_lint_of_a_directory_and_of_several_files(here: Run, files: Path) -> None:
    (files / "more").mkdir()
    (files / "more" / "a.gq").write_text(QUERIES)
    (files / "more" / "b.gq").write_text(WRONG)
    report = here(
        "lint", "--query", "more", "--query", "harbor.gq", "--schema", "harbor.pg", "--json", rc=1
    ).json
    assert report["query_paths"] == ["more/a.gq", "more/b.gq", "harbor.gq"]
    assert [one["file"] for one in report["results"]] == [
        name for name in report["query_paths"] for _ in range(2)
    ]
    assert report["queries_processed"] == 6
    (files / "empty").mkdir()
    assert "empty" in here("lint", "--query", "empty", "--schema", "harbor.pg", rc=2).err


def test_lint_of_a_schema_alone(here: Run, files: Path) -> None:
    assert here("lint", "--schema", "harbor.pg").out == "0 errors, 0 warnings\n"
    (files / "bad.pg").write_text("node A { x: Strin }\nnode B { y: I32, z: I32 }\n")
    ran = here("lint", "--schema", "bad.pg", rc=1)
    assert "bad.pg:1:13" in ran.out


def test_lint_from_stdin(here: Run, files: Path) -> None:
    ran = here("lint", "--query", "-", "--schema", "harbor.pg", stdin=WRONG, rc=1)
    assert "<stdin>:1:44" in ran.out


def test_lint_counts_warnings_against_the_allowance(here: Run, files: Path) -> None:
    (files / "typo.pg").write_text("node A { x: String @unqiue }\n")
    assert here("lint", "--schema", "typo.pg", "--json").json["warnings"] == 1
    here("lint", "--schema", "typo.pg", "--max-warnings", "1")
    here("lint", "--schema", "typo.pg", "--max-warnings", "0", rc=1)


def test_lint_without_anything_to_check(here: Run) -> None:
    assert "hint: " in here("lint", rc=2).err


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00",
        b"node A { x: String \x00 }",
        b'node A { x: String @description("never closed }',
        b"{" * 10_000,
    ],
    ids=["not-utf8", "nul", "open-string", "nested"],
)
@pytest.mark.parametrize("suffix", ["pg", "gq"])
def test_bad_input_is_a_diagnostic(here: Run, files: Path, content: bytes, suffix: str) -> None:
    (files / f"bad.{suffix}").write_bytes(content)
    arguments = ["--schema", "bad.pg"] if suffix == "pg" else ["--schema", "harbor.pg", "--query", "bad.gq"]
    ran = here("lint", *arguments, "--json", rc=1)
    assert ran.json["status"] == "error"
    assert ran.json["findings"][0]["source_error"]["file"] == f"bad.{suffix}"
    assert here("fmt", f"bad.{suffix}", rc=1).err.splitlines()[-1].startswith("error: ")
    assert (files / f"bad.{suffix}").read_bytes() == content


@pytest.mark.slow
def test_a_missing_file_is_an_io_error(run: Run, files: Path) -> None:
    ran = run("lint", "--schema", "nowhere.pg", "--json", rc=1)
    assert ran.out == ""
    assert ran.error["kind"] == "io"
    assert run("lint", "--schema", "nowhere.pg", rc=1).err.startswith("error: 'nowhere.pg' cannot be read")


MESSY = "// first\nnode   A{x:String   y :I32?}\n"


@pytest.mark.slow
def test_fmt_in_place_is_idempotent_and_keeps_comments(run: Run, files: Path) -> None:
    (files / "messy.pg").write_text(MESSY)
    (files / "messy.pg").chmod(0o640)
    assert run("fmt", "messy.pg", "harbor.gq").out.startswith("formatted messy.pg\n")
    once = (files / "messy.pg").read_text()
    assert "// first" in once
    assert once != MESSY
    assert (files / "messy.pg").stat().st_mode & 0o777 == 0o640
    assert run("fmt", "messy.pg").out == ""
    assert (files / "messy.pg").read_text() == once
    assert sorted(path.name for path in files.iterdir()) == ["harbor.gq", "harbor.pg", "messy.pg", "wrong.gq"]


def test_fmt_check_changes_nothing(here: Run, files: Path) -> None:
    (files / "messy.pg").write_text(MESSY)
    assert here("fmt", "--check", "messy.pg", rc=1).out == "would change messy.pg\n"
    assert (files / "messy.pg").read_text() == MESSY
    assert here("fmt", "--check", "--json", "messy.pg", rc=1).json == {
        "files": 1,
        "changed": ["messy.pg"],
        "written": False,
    }


@pytest.mark.slow
def test_fmt_of_stdin_tells_the_languages_apart(run: Run, files: Path) -> None:
    schema = run("fmt", "-", stdin=MESSY).out
    assert schema.startswith("// first\nnode A {\n")
    query = run("fmt", "-", stdin="query  q( ){match{$s:Ship}return{$s.name}}").out
    assert query.startswith("query q() {\n")
    assert run("fmt", "-", stdin=schema).out == schema
    run("fmt", "--check", "-", stdin=schema)
    run("fmt", "--check", "-", stdin=MESSY, rc=1)


def test_fmt_goes_on_after_a_file_that_does_not_parse(here: Run, files: Path) -> None:
    (files / "messy.pg").write_text(MESSY)
    (files / "broken.gq").write_text("query q( {")
    ran = here("fmt", "broken.gq", "messy.pg", rc=1)
    assert ran.out == "formatted messy.pg\n"
    assert "broken.gq:1:" in ran.err
    assert (files / "broken.gq").read_text() == "query q( {"


@pytest.mark.slow
def test_fmt_of_another_kind_of_file_asks_for_the_language(here: Run, files: Path) -> None:
    (files / "notes.txt").write_text(MESSY)
    assert "--language" in here("fmt", "notes.txt", rc=2).err
    here("fmt", "--language", "pg", "notes.txt")
    here("fmt", "--language", "sql", "notes.txt", rc=2)


@pytest.mark.slow
def test_schema_plan_between_two_files(run: Run, files: Path) -> None:
    (files / "next.pg").write_text(HARBOR.replace("tonnage: I32?", "tonnage: I32?  flag: String?"))
    ran = run("schema", "plan", "--from", "harbor.pg", "--schema", "next.pg")
    assert ran.out == "+ Ship.flag: String?\n1 step, supported\n"
    report = run("schema", "plan", "--from", "harbor.pg", "--schema", "next.pg", "--json").json
    assert report["supported"] is True
    assert report["step_count"] == 1
    assert report["steps"][0]["kind"] == "add_property"
    assert report["steps"][0]["class"] == "supported"
    run("schema", "plan", "--from", "harbor.pg", "--schema", "next.pg", "--exit-code", rc=10)
    run("schema", "plan", "--from", "harbor.pg", "--schema", "harbor.pg", "--exit-code", rc=0)


@pytest.mark.slow
def test_an_unsupported_plan_is_a_plan_and_not_a_failure(here: Run, files: Path) -> None:
    (files / "next.pg").write_text(HARBOR.replace("CallsAt: Ship -> Port", "CallsAt: Port -> Ship"))
    ran = here("schema", "plan", "--from", "harbor.pg", "--schema", "next.pg")
    assert ran.out.splitlines()[0].startswith("! ")
    assert "not supported" in ran.out.splitlines()[-1]
    report = here("schema", "plan", "--from", "harbor.pg", "--schema", "next.pg", "--json").json
    assert report["supported"] is False
    assert report["steps"][0]["kind"] == "unsupported_change"
    here("schema", "plan", "--from", "harbor.pg", "--schema", "next.pg", "--exit-code", rc=1)


def test_drops_are_soft_unless_data_loss_is_allowed(here: Run, files: Path) -> None:
    (files / "next.pg").write_text(HARBOR.replace("   tonnage: I32?", ""))
    arguments = ["schema", "plan", "--from", "harbor.pg", "--schema", "next.pg"]
    assert here(*arguments).out.startswith("- Ship.tonnage (soft)\n")
    assert here(*arguments, "--allow-data-loss").out.startswith("- Ship.tonnage (hard)\n")


def test_a_plan_over_a_broken_schema_is_a_schema_error(here: Run, files: Path) -> None:
    (files / "broken.pg").write_text("node {")
    ran = here("schema", "plan", "--from", "harbor.pg", "--schema", "broken.pg", "--json", rc=1)
    assert ran.out == ""
    assert ran.error["kind"] == "schema_syntax"
    assert ran.error["source_error"]["line"] == 1
    text = here("schema", "plan", "--from", "harbor.pg", "--schema", "broken.pg", rc=1)
    assert "broken.pg:1:" in text.err
    assert text.err.splitlines()[-1].startswith(("error: ", "hint: "))


def test_a_mistake_in_a_query_is_told_once(here: Run, files: Path) -> None:
    """With its place and its hint; the last line counts."""
    here("init", "twice.omni", "--schema", "harbor.pg")
    wrong = "query q() { match { $s: Ship  $s.nothing = 1  $s.tonnage = null } return { $s } }"
    told = here("query", "-e", wrong, "--store", "twice.omni", rc=1).err
    assert told.count("has no property 'nothing'") == 1
    assert told.count("nothing compares with null") == 1
    assert told.count("hint: ") == 1
    assert told.splitlines()[-1] == "error: the query has 2 errors"
    one = here("query", "-e", wrong.replace("$s.nothing = 1", ""), "--store", "twice.omni", rc=1).err
    assert one.count("hint: ") == 1
    assert one.splitlines()[-1] == "error: the query has 1 error"
    (files / "broken.pg").write_text("node Ship { imo: Strin @key }")
    schema = here("init", "other.omni", "--schema", "broken.pg", rc=1).err
    assert schema.count("found 'Strin'") == 1
    assert schema.splitlines()[-1] == "error: the schema has 1 error"
