"""What a newcomer gets wrong: every slip is answered by a sentence that helps, and by the right status."""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pytest

import omnigraph as og
from cli.conftest import COMMAND, Run, clean_environment
from omnigraph.cli.tables import display_width, kv_lines, table_lines
from omnigraph.core.settings import Settings
from omnigraph.engine.read.result import Rows

SCHEMA = """node Person { handle: String @key  name: String  age: I32? }
edge Knows: Person -> Person { since: Date? }
"""
QUERIES = "query one($handle: String) { match { $p: Person { handle: $handle } } return { $p.nmae } }\n"
STORE = ("--store", "g.omni")
ALL = ("query", "-e", "query q() { match { $p: Person } return { $p.handle } }", *STORE)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made") / "g.omni"
    with og.init(place, schema=SCHEMA, settings=Settings(durability="os")) as graph:
        graph.mutate(
            'query q() { insert Person { handle: "ada", name: "Ada" } insert Person { handle: "ben", name: "Ben" } '
            'insert Knows { from: "ada", to: "ben" } }'
        )
        graph.tags.create("release")
        graph.mutate('query q() { delete Person where handle = "ben" }')
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "g.omni")
    (tmp_path / "q.gq").write_text(QUERIES)
    return tmp_path


@pytest.mark.parametrize("command", ["query", "explain", "mutate", "export"])
def test_a_mistake_in_a_file_names_the_file(here: Run, place: Path, command: str) -> None:
    asked = (command, "one", "--query", "q.gq", "-p", "handle=ada", *STORE)
    ran = here(*asked, rc=1)
    assert "q.gq:1:" in ran.err
    assert "did you mean 'name'?" in ran.err
    if command != "export":
        assert here(*asked, "--json", rc=1).error["source_error"]["file"] == "q.gq"


def test_a_mistake_in_a_schema_names_the_file(here: Run, place: Path) -> None:
    (place / "s.pg").write_text("node Person {\n  handle: Strng @key\n}\n")
    ran = here("init", "--schema", "s.pg", "new.omni", rc=1)
    assert "s.pg:2:11" in ran.err
    assert "did you mean 'String'?" in ran.err
    assert not (place / "new.omni").exists()
    (place / "s.pg").write_text("node Person {\n  age: I32?  @range(0, 150)\n}\n")
    assert (
        "hint: the property comes first, as in @range(age, 0..150)"
        in here("lint", "--schema", "s.pg", rc=1).out
    )


def test_rows_that_break_a_rule_are_named(here: Run, place: Path) -> None:
    (place / "s.pg").write_text(SCHEMA.replace("age: I32?", "age: I32"))
    ran = here("schema", "apply", "--schema", "s.pg", *STORE, "--quiet", rc=1)
    assert ran.err.startswith("Person ada: Person.age must have a value (required)\nerror: ")


def test_the_python_surface_names_the_file_too(place: Path) -> None:
    with og.open_read_only(place / "g.omni") as graph:
        for ask in (graph.query, graph.explain):
            with pytest.raises(og.errors.QueryTypeError) as refused:
                ask(place / "q.gq", {"handle": "ada"})
            assert refused.value.diagnostics[0].file == str(place / "q.gq")
            assert refused.value.to_dict()["source_error"]["file"] == str(place / "q.gq")


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_text_is_a_text_and_not_a_path(place: Path, text: str) -> None:
    with og.open(place / "g.omni", settings=Settings(durability="os")) as graph:
        for ask in (graph.query, graph.explain, graph.mutate):
            with pytest.raises(og.errors.QueryNotSelected, match="declares no query"):
                ask(text)
        with pytest.raises(og.errors.IoFailure) as refused:
            graph.query("friends")
        assert "path of a file" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("clause", "hint"),
    [
        ('$p.name search "a"', "a search is written search($p.property, ...)"),
        (
            "$p.name resembles 3",
            "use =, !=, <, <=, >, >=, contains, starts_with, ends_with, is null or is not null",
        ),
    ],
)
def test_an_operator_that_is_none(here: Run, place: Path, clause: str, hint: str) -> None:
    text = f"query q() {{ match {{ $p: Person {clause} }} return {{ $p.name }} }}"
    assert hint in here("query", "-e", text, *STORE, rc=1).err


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("freinds", "did you mean 'friends'? it declares friends, teams"),
        ("nope", "it declares friends, teams"),
        (None, "it declares friends, teams"),
    ],
)
def test_a_query_that_the_file_does_not_have(here: Run, place: Path, name: str | None, hint: str) -> None:
    query = "query {}() {{ match {{ $p: Person }} return {{ $p.handle }} }}\n"
    (place / "two.gq").write_text(query.format("friends") + query.format("teams"))
    named = [] if name is None else [name]
    refused = here("query", *named, "--query", "two.gq", *STORE, rc=1)
    assert refused.err.splitlines()[-1] == f"hint: {hint}"


@pytest.mark.parametrize("command", ["query", "mutate", "explain"])
def test_an_empty_source_of_a_command(here: Run, place: Path, command: str) -> None:
    (place / "empty.gq").write_text("")
    assert "empty" in here(command, "-e", " ", *STORE, rc=2).err
    assert here(command, "--query", "empty.gq", *STORE, "--json", rc=1).error["kind"] == "query_not_selected"
    assert "--query q.gq" in here(command, "q.gq", *STORE, rc=2).err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((*ALL, "--format", "tabel"), "did you mean table?"),
        ((*ALL, "--formt", "csv"), "did you mean --format?"),
        (("load", "--data", "x", "--mode", "mrge", *STORE), "did you mean merge?"),
        (("log", "--limit", "0", *STORE), "--limit"),
        (("log", "--limit", "x", *STORE), "invalid value for '--limit': it should be a valid integer\n"),
        (("export", "out.jsonl", *STORE), "--out out.jsonl"),
        (("load", "--data", "x", *STORE), "--mode append (refuse them), merge, patch or overwrite"),
        (("load", "--mode", "merge", *STORE), "missing option '--data'\nhint: name a file"),
        (("changes", "poll", "--interval", "soon", *STORE), "takes a duration"),
        (("changes", "poll", "--interval", "0", *STORE), "at least one second"),
        (("commit", "list", "--since", "yesterday", *STORE), "takes a moment"),
    ],
)
def test_a_wrong_flag_or_value_names_the_near_one(
    here: Run, place: Path, arguments: tuple[str, ...], told: str
) -> None:
    ran = here(*arguments, rc=2)
    assert told in ran.err
    assert "Value error" not in ran.err
    assert "Input should" not in ran.err


def test_a_text_that_looks_like_a_number(here: Run, place: Path) -> None:
    ask = ("query", "-e", "query q($h: String) { match { $p: Person { handle: $h } } return { $p.handle } }")
    assert "write a text as -p 'h=" in here(*ask, "-p", "h=12", *STORE, rc=1).err
    assert here(*ask, "-p", 'h="12"', *STORE).out.startswith("0 rows")


def test_a_refused_load_tells_its_problems_in_the_order_of_the_input(here: Run, place: Path) -> None:
    (place / "bad.jsonl").write_text(
        '{"type":"Person","data":{"handle":"a","age":1}}\n'
        '{"type":"Person","data":{"handle":"b","name":"B","agee":1}}\n'
        '{"type":"Persn","data":{"handle":"c","name":"C"}}\n'
        '{"edge":"Knos","from":"ada","to":"ada"}\n'
    )
    ran = here("load", "--data", "bad.jsonl", "--mode", "append", "--engine", "local", *STORE, rc=1)
    places = [line.split(": ")[0] for line in ran.err.splitlines() if line.startswith("bad.jsonl:")]
    assert places == ["bad.jsonl:1", "bad.jsonl:2", "bad.jsonl:3", "bad.jsonl:4"]
    for near in ("'age'", "'Person'", "'Knows'"):
        assert f"did you mean {near}?" in ran.err


@pytest.mark.parametrize(
    "command",
    [("commit", "show"), ("commit", "changes"), ("revert",), ("snapshot", "--at"), (*ALL, "--at")],
    ids=" ".join,
)
def test_a_tag_works_where_a_commit_does(here: Run, place: Path, command: tuple[str, ...]) -> None:
    store = () if "--store" in command else STORE
    assert here(*command, "release", *store).out
    wrong = here(*command, "relase", *store, rc=6)
    assert "commit 'relase' does not exist" in wrong.err
    assert "hint: did you mean 'release'?" in wrong.err


@pytest.mark.slow
def test_a_revert_that_meets_later_changes_says_what_can_be_done(here: Run, place: Path) -> None:
    (place / "old.gq").write_text('query q() { update Person set { age: 9 } where handle = "ada" }\n')
    older = here("mutate", "--query", "old.gq", "--json", "--quiet", *STORE).json["commit"]["graph_commit_id"]
    here(
        "mutate", "-e", 'query q() { update Person set { age: 10 } where handle = "ada" }', "--quiet", *STORE
    )
    refused = here("revert", older, "--quiet", *STORE, rc=3)
    assert refused.err.startswith("conflict: Person ada: ")
    assert "--on-conflict" not in refused.err


def test_a_diff_says_where_edges_lead_and_keeps_one_kind(here: Run, place: Path) -> None:
    lines = here("diff", "release", "main", *STORE).out.splitlines()
    assert lines[0].startswith("- Knows ")
    assert lines[0].endswith("  ada -> ben")
    assert lines[1:] == ["- Person ben", "edge Knows: 1 deleted", "node Person: 1 deleted"]
    assert (
        here("diff", "release", "main", "--kind", "node", "--stat", *STORE).out == "node Person: 1 deleted\n"
    )
    assert here("diff", "release", "main", "--kind", "vertex", *STORE, rc=1).err.startswith("error: 'vertex'")


def test_a_tag_has_an_actor(here: Run, place: Path) -> None:
    made = here("tag", "create", "v2", "--as", "ines", "--json", "--quiet", *STORE).json
    assert made["actor_id"] == "ines"
    assert here("tag", "delete", "v2", "--as", "ines", "--json", "--quiet", *STORE).json["actor_id"] == "ines"


def rows_of(*values: str) -> Rows:
    table = pa.table({"name": pa.array(values)})
    return Rows(table.columns, table.schema, "q", "main", None, "01ARZ3NDEKTSV4RRFFQ69G5FAV")


def test_rows_are_taken_by_number_and_by_slice() -> None:
    rows = rows_of("a", "b", "c")
    assert (rows[0], rows[-1]) == ({"name": "a"}, {"name": "c"})
    assert rows[1:] == [{"name": "b"}, {"name": "c"}]
    assert rows[::-2] == [{"name": "c"}, {"name": "a"}]
    assert rows[3:] == []
    for outside in (3, -4):
        with pytest.raises(IndexError, match=f"no row {outside} in a result of 3"):
            rows[outside]


def test_data_cannot_drive_the_terminal() -> None:
    lines = list(table_lines(rows_of("red \x1b[31m alert\x07", "tab\there")))
    assert lines[3:] == ["red \\x1b[31m alert\\x07", "tab\\there"]
    assert "name: red \\x1b[31m alert\\x07" in list(kv_lines(rows_of("red \x1b[31m alert\x07")))


def test_marks_and_joiners_take_no_column() -> None:
    assert display_width("e\u0301") == 1
    assert display_width("\u2708\ufe0f") == display_width("\u2708")
    assert display_width("a\u200db") == 2


@pytest.mark.parametrize("store", ["q.gq", "folder", "missing.omni"])
def test_a_place_that_is_no_graph(here: Run, place: Path, store: str) -> None:
    (place / "folder").mkdir()
    ran = here(*ALL[:3], "--store", store, "--json", rc=6)
    assert ran.error["kind"] == "graph_not_found"


@pytest.mark.slow
def test_ctrl_c_ends_a_poll_that_follows(place: Path) -> None:
    child = subprocess.Popen(
        [COMMAND, "changes", "poll", "--follow", "--start", "beginning", "--interval", "60", *STORE],
        cwd=place,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    # The cursor ends what there is to tell; after it the command sleeps.
    while "cursor" not in json.loads(child.stdout.readline()):
        continue
    begun = time.monotonic()
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=30)
    assert child.returncode == 130
    assert said == "interrupted\n"
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("option", ["--params", "-p", "--params-file"])
def test_parameters_that_nest_too_deeply_are_a_slip(here: Run, place: Path, option: str) -> None:
    deep = "[" * 5_000 + "]" * 5_000
    value = f"n={deep}" if option == "-p" else f'{{"n":{deep}}}'
    if option == "--params-file":
        (place / "deep.json").write_text(value)
        value = str(place / "deep.json")
    query = "query q($n: String) { match { $p: Person { name: $n } } return { $p.name } }"
    ran = here("query", "-e", query, option, value, "--store", str(place / "g.omni"), rc=2)
    assert "is nested too deeply" in ran.err


def test_a_file_of_parameters_that_is_no_text_is_a_slip(here: Run, place: Path) -> None:
    (place / "p.json").write_bytes(b'{"n":"\xff"}')
    query = "query q($n: String) { match { $p: Person { name: $n } } return { $p.name } }"
    ran = here("query", "-e", query, "--params-file", str(place / "p.json"), "--store", str(place), rc=2)
    assert "is not UTF-8 text" in ran.err
