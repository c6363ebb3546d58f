"""Diff, blame and tags through the command."""

import pytest

SCHEMA = "node Person { name: String @key  age: I32? }\n"


@pytest.fixture
def store(tmp_path, here):
    (tmp_path / "s.pg").write_text(SCHEMA)
    here("init", "--schema", "s.pg", "g")
    here(
        "mutate", "-e", 'query a() { insert Person { name: "ada", age: 36 } }', "--store", "g", "--as", "ana"
    )
    here("tag", "create", "v1", "--store", "g")
    here("mutate", "-e", 'query b() { update Person set { age: 37 } where name = "ada" }', "--store", "g")
    here("mutate", "-e", 'query c() { insert Person { name: "bob" } }', "--store", "g")
    return "g"


@pytest.mark.slow
def test_a_diff_is_printed_by_entity_then_counted(here, store):
    done = here("diff", "v1", "main", "--store", store)
    assert done.out.splitlines() == [
        "~ Person ada  age: 36 -> 37",
        "+ Person bob",
        "node Person: 1 inserted, 1 updated",
    ]


def test_a_diff_as_json_has_counts_and_images(here, store):
    done = here("diff", "v1", "main", "--op", "update", "--json", "--store", store).json
    assert done["stats"] == {"node:Person": {"inserts": 0, "updates": 1, "deletes": 0}}
    (change,) = done["changes"]
    assert (change["op"], change["kind"], change["type"]["name"], change["id"]) == (
        "update",
        "node",
        "Person",
        "ada",
    )
    assert (change["before"]["properties"]["age"], change["after"]["properties"]["age"]) == (36, 37)


@pytest.mark.slow
def test_blame_names_actor_and_commit(here, store):
    found = here("blame", "Person", "ada", "--json", "--store", store).json
    origin = {each["property"]: each["actor_id"] for each in found["properties"]}
    assert origin == {"age": None, "name": "ana"}


def test_blame_says_values_as_every_other_output_does(here, tmp_path):
    (tmp_path / "s.pg").write_text(
        "node Note { slug: String @key  at: DateTime?  day: Date?  tags: [String]?  v: Vector(2)? }\n"
    )
    here("init", "--schema", "s.pg", "notes")
    values = 'at: datetime("2026-05-01T12:00:00Z"), day: date("2026-05-02"), tags: ["a", "b"], v: [0.5, 2.0]'
    here("mutate", "-e", f'query a() {{ insert Note {{ slug: "n", {values} }} }}', "--store", "notes")
    lines = here("blame", "Note", "n", "--store", "notes").out.splitlines()
    assert {line.split()[0]: line.split()[-1] for line in lines} == {
        "at": "2026-05-01T12:00:00.000Z",
        "day": "2026-05-02",
        "slug": "n",
        "tags": '["a","b"]',
        "v": "[0.5,2.0]",
    }
    found = here("blame", "Note", "n", "--store", "notes", "--json").json["properties"]
    assert {each["property"]: each["value"] for each in found}["at"] == "2026-05-01T12:00:00.000Z"


@pytest.mark.slow
def test_tags_are_listed_and_forgotten(here, store):
    (tag,) = here("tag", "list", "--json", "--store", store).json["tags"]
    assert tag["name"] == "v1"
    assert here("tag", "create", "v1", "--store", store, rc=None).rc == 3
    here("tag", "delete", "v1", "--store", store)
    missing = here("diff", "v1", "main", "--json", "--store", store, rc=None)
    assert missing.rc == 6
    assert missing.error["kind"] == "commit_not_found"


@pytest.mark.slow
def test_a_commit_is_reverted(here, store):
    commits = here("commit", "list", "--json", "--store", store).json["commits"]
    raised = next(
        c["graph_commit_id"] for c in reversed(commits) if c["actor_id"] is None and c["parent_commit_id"]
    )
    done = here("revert", raised, "--store", store, "--json", "--as", "ben").json
    assert done["reverted"] == raised
    rows = here(
        "query",
        "-e",
        "query q() { match { $p: Person } return { $p.name, $p.age } }",
        "--format",
        "csv",
        "--store",
        store,
    )
    assert sorted(rows.out.split()[1:]) == ["ada,36", "bob,null"]


@pytest.mark.slow
def test_a_commit_shows_its_changes(here, store):
    commits = here("commit", "list", "--json", "--store", store).json["commits"]
    newest, raised = commits[0]["graph_commit_id"], commits[1]["graph_commit_id"]
    assert here("commit", "changes", newest, "--store", store).out.splitlines() == [
        "insert node Person bob",
        "  + age: <null>",
        "  + name: bob",
    ]
    assert here("commit", "changes", raised, "--store", store).out.splitlines() == [
        "update node Person ada",
        "  age: 36 -> 37",
    ]
    told = here("commit", "changes", newest, "--json", "--store", store).json
    assert told["cause"]["graph_commit_id"] == newest
    assert [change["id"] for change in told["changes"]] == ["bob"]
    first = here("commit", "changes", commits[-1]["graph_commit_id"], "--json", "--store", store, rc=3)
    assert first.error["kind"] == "parentless_commit"


@pytest.mark.slow
def test_pages_of_a_commit_are_printed_one_by_one(here, store):
    text = " ".join(f'insert Person {{ name: "n{n}" }}' for n in range(3))
    here("mutate", "-e", f"query m() {{ {text} }}", "--store", store)
    newest = here("commit", "list", "--json", "--store", store).json["commits"][0]["graph_commit_id"]
    everything = here("commit", "changes", newest, "--limit", "1", "--json", "--store", store).json
    assert [change["id"] for change in everything["changes"]] == ["n0", "n1", "n2"]
    assert "next_page_token" not in everything


@pytest.mark.slow
def test_a_poll_prints_blocks_and_the_cursor(here, store):
    told = here("changes", "poll", "--start", "beginning", "--limit", "1", "--json", "--store", store).json
    assert [len(block["changes"]) for block in told["blocks"]] == [1, 1, 1]
    assert told["caught_up"]
    again = here("changes", "poll", "--cursor", told["cursor"], "--store", store).out.splitlines()
    assert again[0] == "(no new commits)"
    here("mutate", "-e", 'query d() { delete Person where name = "bob" }', "--store", store)
    later = here("changes", "poll", "--cursor", told["cursor"], "--store", store).out.splitlines()
    assert later[1] == "delete node Person bob"
    assert later[-1].startswith("cursor: ")
    both = here("changes", "poll", "--cursor", "x", "--start", "now", "--json", "--store", store, rc=2)
    assert both.error["kind"] == "usage"
    wrong = here(
        "changes", "poll", "--cursor", told["cursor"], "--op", "insert", "--json", "--store", store, rc=1
    )
    assert wrong.error["kind"] == "change_cursor_rejected"
    assert wrong.error["error"].startswith("change cursor rejected:")


@pytest.mark.slow
def test_a_baseline_and_its_cursor_miss_nothing(here, store, tmp_path):
    made = here("changes", "baseline", "--out", "base.jsonl", "--json", "--store", store).json
    lines = (tmp_path / "base.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert all(made["resume_cursor"] not in line for line in lines)
    here("mutate", "-e", 'query e() { insert Person { name: "cyd" } }', "--store", store)
    told = here("changes", "poll", "--cursor", made["resume_cursor"], "--json", "--store", store).json
    assert [change["id"] for block in told["blocks"] for change in block["changes"]] == ["cyd"]
    assert sorted(each.name for each in tmp_path.iterdir() if "base" in each.name) == ["base.jsonl"]
