"""Where a command finds its graph, its actor and its settings: flags, environment, file, default."""

import shutil
from pathlib import Path
from unittest.mock import patch

import pytest

import omnigraph as og
from cli.conftest import Run
from omnigraph.core.settings import Settings

SCHEMA = "node Person { handle: String @key  name: String? }\n"
COUNT = ("query", "-e", "query n() { match { $p: Person } return { $p.handle } }", "--format", "csv")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("made")
    for name in ("one", "two", "three"):
        with og.init(base / f"{name}.omni", schema=SCHEMA, settings=Settings(durability="os")) as graph:
            graph.mutate(f'query q() {{ insert Person {{ handle: "{name}" }} }}')
    return base


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def home(place: Path, text: str) -> dict[str, str]:
    (place / "home").mkdir(exist_ok=True)
    (place / "home" / "config.yaml").write_text(text)
    return {"OMNIGRAPH_HOME": str(place / "home"), "OMNIGRAPH_DURABILITY": "os"}


def read(here: Run, *arguments: str, env: dict[str, str]) -> str:
    return here(*COUNT, *arguments, env=env).out.split()[1]


@pytest.mark.slow
def test_the_order_in_which_a_graph_is_found(here: Run, place: Path) -> None:
    personal = home(place, "defaults: {store: three.omni}\nprofiles: {first: {store: one.omni}}\n")
    everywhere = {**personal, "OMNIGRAPH_STORE": "two.omni", "OMNIGRAPH_PROFILE": "first"}
    assert read(here, "--store", "three.omni", env=everywhere) == "three"
    assert read(here, env=everywhere) == "one"
    assert read(here, "--profile", "first", env={**personal, "OMNIGRAPH_STORE": "two.omni"}) == "one"
    assert read(here, env=personal) == "three"
    both = here(*COUNT, env={**personal, "OMNIGRAPH_STORE": "two.omni"})
    assert (both.out.split()[1], both.err) == ("two", "")
    assert read(here, env={**personal, "OMNIGRAPH_STORE": ""}) == "three"
    served = home(place, "defaults: {server: quay}\nservers: {quay: {url: 'https://localhost:1'}}\n")
    assert read(here, env={**served, "OMNIGRAPH_STORE": "two.omni"}) == "two"
    personal = home(place, "defaults: {store: three.omni}\nprofiles: {first: {store: one.omni}}\n")
    assert here("--profile", "first", *COUNT, env=personal).out.split()[1] == "one"
    assert read(here, env={**home(place, ""), "OMNIGRAPH_STORE": "two.omni"}) == "two"


@pytest.mark.parametrize(
    ("text", "arguments", "rc", "told"),
    [
        ("profiles: {a: {store: one.omni}}", ["--profile", "b"], 6, "no profile 'b'"),
        ("profiles: {local: {store: one.omni}}", ["--profile", "lcal"], 6, "did you mean 'local'?"),
        ("profiles: {a: {}}", ["--profile", "a"], 1, "must name one server, one cluster or one store"),
        ("profiles: {a: {store: one.omni}}", ["--profile", "a", "--graph", "x"], 2, "single graph"),
        ("defaults: {store: one.omni}", ["--graph", "x"], 2, "single graph"),
        ("defaults: {store: one.omni, default_graph: x}", [], 1, "default_graph"),
        ("defaults: {server: quay}\nservers: {quay: {url: 'https://localhost:1'}}", [], 1, "was not reached"),
        ("{", [], 1, "not valid YAML"),
        ("- a", [], 1, "is not a mapping"),
        ("servers: {quay: {}}", [], 1, "has no url"),
        ("defaults: {output: xml}", [], 1, "defaults.output is not one of"),
        ("defaults: {table_max_column_width: 0}", [], 1, "not a positive number"),
        ("operator: {actor: 7}", [], 1, "operator.actor"),
        ("", [], 2, "no graph addressed"),
        ("", ["--profile"], 2, "--profile needs a value"),
        ("", ["--store", "one.omni", "--server", "quay"], 2, "exclude each other"),
        ("", ["--server", "quay"], 6, "there is no server 'quay'"),
    ],
)
def test_a_configuration_that_does_not_work_says_why(
    here: Run, place: Path, text: str, arguments: list[str], rc: int, told: str
) -> None:
    ran = here(*COUNT, *arguments, env=home(place, text), rc=rc)
    assert ran.out == ""
    assert told in ran.err
    assert "error: " in ran.err


def test_an_unknown_key_is_named_once_and_ignored(here: Run, place: Path) -> None:
    personal = home(place, "colour: red\ndefaults: {store: one.omni, speed: 9}\n")
    ran = here("mutate", "-e", 'query q() { insert Person { handle: "x" } }', "--quiet", env=personal)
    assert sorted(line.split(": ", 2)[2] for line in ran.err.splitlines()) == [
        "unknown key 'colour', ignored",
        "unknown key 'speed' in defaults, ignored",
    ]


def test_the_actor_of_the_file_is_used_unless_a_flag_says_another(here: Run, place: Path) -> None:
    personal = home(place, "operator: {actor: act-ines}\n")
    write = ("mutate", "-e", 'query q() { insert Person { handle: "x" } }', "--store", "one.omni", "--json")
    assert here(*write, env=personal).json["actor_id"] == "act-ines"
    assert here(*write, "--as", "bo", env=personal).json["actor_id"] == "bo"
    assert (
        here("branch", "create", "topic", "--store", "one.omni", "--json", env=personal).json["actor_id"]
        == "act-ines"
    )


def test_output_of_the_file_is_used_unless_a_flag_says_another(here: Run, place: Path) -> None:
    personal = home(
        place, "defaults: {store: one.omni, output: jsonl}\nprofiles: {kv: {store: two.omni, output: kv}}\n"
    )
    ask = COUNT[:3]
    assert here(*ask, env=personal).out == '{"p.handle": "one"}\n'
    assert "row 1" in here(*ask, "--profile", "kv", env=personal).out
    assert here(*ask, "--format", "csv", env=personal).out == "p.handle\none\n"
    assert here(*ask, "--json", env=personal).json["row_count"] == 1


def test_width_and_layout_of_tables(here: Run, place: Path) -> None:
    text = 'query q() { insert Person { handle: "wide", name: "abcdefghijklmnopqrstuvwxyz" } }'
    here("mutate", "-e", text, "--store", "one.omni", env=home(place, ""))
    ask = (
        "query",
        "-e",
        'query n() { match { $p: Person { handle: "wide" } } return { $p.name } }',
        "--store",
        "one.omni",
    )
    cut = here(*ask, env=home(place, "defaults: {table_max_column_width: 10}\n")).out.splitlines()
    assert cut[3] == "abcdefghi…"
    wrapped = home(place, "defaults: {table_max_column_width: 10, table_cell_layout: wrap}\n")
    assert here(*ask, env=wrapped).out.splitlines()[3:] == ["abcdefghij", "klmnopqrst", "uvwxyz"]


def test_settings_come_from_the_environment_then_the_file(here: Run, place: Path) -> None:
    personal = home(
        place, "settings: {durability: syncfs, cache_bytes: 1000000, spark_conf: {spark.secret: hush}}\n"
    )
    del personal["OMNIGRAPH_DURABILITY"]

    def shown(env: dict[str, str]) -> dict[str, tuple[object, str]]:
        rows = here("config", "show", "--json", env=env).json["settings"]
        return {row["name"]: (row["value"], row["source"]) for row in rows}

    from_file = shown(personal)
    assert from_file["durability"] == ("syncfs", "settings.durability")
    assert from_file["cache_bytes"] == (1_000_000, "settings.cache_bytes")
    assert from_file["load_concurrency"][1] == "default"
    assert from_file["spark_conf"] == ("spark.secret", "settings")
    from_environment = shown({**personal, "OMNIGRAPH_DURABILITY": "os", "OMNIGRAPH_STORE": "one.omni"})
    assert from_environment["durability"] == ("os", "OMNIGRAPH_DURABILITY")
    assert from_environment["graph"] == ("one.omni", "OMNIGRAPH_STORE")
    assert "hush" not in here("config", "show", env=personal).out


def test_a_load_takes_the_settings_of_the_file_too(here: Run, place: Path) -> None:
    """A setting nobody can honour is how one sees that the command looked at it."""
    (place / "in.jsonl").write_text('{"type":"Person","data":{"handle":"new"}}\n')
    load = ("load", "--data", "in.jsonl", "--mode", "merge", "--store", "one.omni", "--json")
    wrong = home(place, "settings: {durability: sometimes}\n")
    del wrong["OMNIGRAPH_DURABILITY"]
    refused = here(*load, "--engine", "local", env=wrong, rc=None)
    assert refused.rc != 0
    assert "sometimes" in refused.error["error"]
    # Where Spark runs comes from the file as well: this one is nowhere.
    away = home(place, "settings: {spark_master: 'spark://127.0.0.1:1', spark_conf: {spark.foo: bar}}\n")
    seen: list[Settings] = []
    with (
        patch(
            "omnigraph.pipeline.spark.session.start_early",
            side_effect=lambda settings, **_: seen.append(settings),
        ),
        patch("omnigraph.api.graph.Graph.load", side_effect=og.errors.BadRequest("enough")),
    ):
        here(*load, env=away, rc=1)
    assert seen[0].spark_master == "spark://127.0.0.1:1"
    assert seen[0].spark_conf == {"spark.foo": "bar"}
    assert read(here, "--store", "one.omni", env=home(place, "")) == "one"
    assert here(*load, "--engine", "local", env=home(place, "")).json["total_entities"] == 1


@pytest.mark.slow
def test_profiles_are_listed_and_shown(here: Run, place: Path) -> None:
    personal = home(
        place, "profiles:\n  b: {store: two.omni}\n  a: {store: one.omni}\n  torn: {store: x, server: y}\n"
    )
    lines = here("profile", "list", env={**personal, "OMNIGRAPH_PROFILE": "b"}).out.splitlines()
    assert [line[:3] for line in lines] == ["  a", "* b", "  t"]
    assert "invalid" in lines[2]
    assert here("profile", "show", "a", "--json", env=personal).json == {
        "name": "a",
        "scope_kind": "store",
        "target": "one.omni",
        "endpoint": "one.omni",
        "default_graph": None,
        "output_format": "table",
    }
    assert here("profile", "show", "--json", env=personal).json["scope_kind"] == "none"
    assert here("config", "path", env=personal).out == f"{place}/home/config.yaml\n"


@pytest.mark.parametrize("command", [("version",), ("fmt", "x.pg"), ("init", "--schema", "s.pg", "n.omni")])
def test_a_profile_is_refused_where_no_graph_is_looked_for(
    here: Run, place: Path, command: tuple[str, ...]
) -> None:
    personal = home(place, "profiles: {a: {store: one.omni}}\n")
    assert "--profile" in here(*command, "--profile", "a", env=personal, rc=2).err
    assert here("version", env={**personal, "OMNIGRAPH_PROFILE": "nobody"}).rc == 0


def test_tracebacks_are_asked_for_by_the_environment_or_the_file(here: Run, place: Path) -> None:
    def traced(text: str, **env: str) -> bool:
        failed = here(*COUNT, "--store", "nowhere.omni", env={**home(place, text), **env}, rc=None)
        assert "error: no graph at" in failed.err
        return "Traceback" in failed.err

    asked = "settings: {debug: true}\n"
    assert not traced("")
    assert traced(asked)
    assert traced("", OMNIGRAPH_DEBUG="1")
    assert not traced(asked, OMNIGRAPH_DEBUG="0")
    assert traced(asked, OMNIGRAPH_DEBUG="")
