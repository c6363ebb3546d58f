"""Diff, blame and tags through the installed command."""

import pytest

SCHEMA = "node Person { name: String @key  age: I32? }\n"


@pytest.fixture
def store(tmp_path, run):
    (tmp_path / "s.pg").write_text(SCHEMA)
    run("init", "--schema", "s.pg", "g")
    run("mutate", "-e", 'query a() { insert Person { name: "ada", age: 36 } }', "--store", "g", "--as", "ana")
    run("tag", "create", "v1", "--store", "g")
    run("mutate", "-e", 'query b() { update Person set { age: 37 } where name = "ada" }', "--store", "g")
    run("mutate", "-e", 'query c() { insert Person { name: "bob" } }', "--store", "g")
    return "g"


def test_a_diff_is_printed_by_entity_then_counted(run, store):
    done = run("diff", "v1", "main", "--store", store)
    assert done.out.splitlines() == [
        "+ Person bob",
        "~ Person ada  age: 36 -> 37",
        "node:Person: 1 inserted, 1 updated",
    ]


def test_a_diff_as_json_has_counts_and_images(run, store):
    done = run("diff", "v1", "main", "--op", "update", "--json", "--store", store).json
    assert done["types"] == {"node:Person": {"inserted": 1, "updated": 1, "deleted": 0}}
    (change,) = done["changes"]
    assert (change["op"], change["node"], change["before"]["age"], change["after"]["age"]) == (
        "update",
        "Person",
        36,
        37,
    )


def test_blame_names_actor_and_commit(run, store):
    found = run("blame", "Person", "ada", "--json", "--store", store).json
    origin = {each["property"]: each["actor_id"] for each in found["properties"]}
    assert origin == {"age": None, "name": "ana"}


def test_tags_are_listed_and_forgotten(run, store):
    (tag,) = run("tag", "list", "--json", "--store", store).json["tags"]
    assert tag["name"] == "v1"
    assert run("tag", "create", "v1", "--store", store, rc=None).rc == 3
    run("tag", "delete", "v1", "--store", store)
    missing = run("diff", "v1", "main", "--json", "--store", store, rc=None)
    assert missing.rc == 6
    assert missing.error["kind"] == "commit_not_found"


def test_a_commit_is_reverted(run, store):
    commits = run("commit", "list", "--json", "--store", store).json["commits"]
    raised = next(
        c["graph_commit_id"] for c in reversed(commits) if c["actor_id"] is None and c["parent_commit_id"]
    )
    done = run("revert", raised, "--store", store, "--json", "--as", "ben").json
    assert done["reverted"] == raised
    rows = run(
        "query",
        "-e",
        "query q() { match { $p: Person } return { $p.name, $p.age } }",
        "--format",
        "csv",
        "--store",
        store,
    )
    assert sorted(rows.out.split()[1:]) == ["ada,36", "bob,null"]
