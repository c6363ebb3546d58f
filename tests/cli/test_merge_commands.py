"""branch delete and branch merge through the command."""

import json
from pathlib import Path

import pytest

import omnigraph as og
from cli.conftest import Run

SCHEMA = "node Ship { imo: String @key  name: String  tonnage: I32? }\n"
STORE = ("--store", "harbor.omni", "--quiet")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """One ship, and a branch topic."""
    with og.init(tmp_path / "harbor.omni", schema=SCHEMA) as graph:
        graph.mutate('query q() { insert Ship { imo: "S1", name: "Aurora" } }')
        graph.branches.create("topic")
    return tmp_path


def tonnage(here: Run, value: int, branch: str) -> None:
    here(
        "mutate",
        "-e",
        f'query q() {{ update Ship set {{ tonnage: {value} }} where imo = "S1" }}',
        "--branch",
        branch,
        *STORE,
    )


@pytest.mark.slow
def test_a_fast_forward(run: Run, here: Run, place: Path) -> None:
    tonnage(here, 7, "topic")
    merged = run("branch", "merge", "topic", "--as", "ines", *STORE, "--json").json
    assert (merged["source"], merged["target"], merged["outcome"]) == ("topic", "main", "fast_forward")
    assert merged["actor_id"] == "ines"
    assert '"tonnage":7' in here("export", "--store", "harbor.omni").out
    again = here("branch", "merge", "topic", *STORE, "--json").json
    assert (again["outcome"], again["commit"]) == ("already_up_to_date", None)


def test_a_conflict_of_an_edge_that_lost_its_end_names_the_edge(here: Run, tmp_path: Path) -> None:
    with og.init(tmp_path / "harbor.omni", schema=f"{SCHEMA}edge Tows: Ship -> Ship\n") as graph:
        graph.mutate(
            'query q() { insert Ship { imo: "S1", name: "A" } insert Ship { imo: "S2", name: "B" } }'
        )
        graph.branches.create("topic")
        made = graph.mutate('query q() { insert Tows { from: "S1", to: "S2" } }', branch="topic")
        graph.mutate('query q() { delete Ship where imo = "S2" }')
    ran = here("branch", "merge", "topic", *STORE, rc=3)
    lost = f"{made.inserted[0].id}: no Ship with id 'S2' (target)"
    assert ran.err.startswith(f"conflict: Tows {lost} (orphan_edge)\n")


@pytest.mark.slow
def test_conflicts_are_listed_and_nothing_is_published(here: Run, place: Path) -> None:
    tonnage(here, 1, "main")
    tonnage(here, 2, "topic")
    before = here("export", "--store", "harbor.omni").out
    refused = here("branch", "merge", "topic", *STORE, "--json", rc=3)
    assert refused.out == ""
    assert refused.error["kind"] == "merge_conflicts"
    assert refused.error["merge_conflicts_total"] == 1
    text = here("branch", "merge", "topic", *STORE, rc=3)
    assert text.err.startswith("conflict: Ship S1: ")
    assert "\n  tonnage: base null, ours 1, theirs 2\n" in text.err
    shown = {"property": "tonnage", "base": None, "ours": 1, "theirs": 2}
    assert refused.error["merge_conflicts"][0]["properties"] == [shown]
    assert "error: the merge has 1 conflict\n" in text.err
    assert here("export", "--store", "harbor.omni").out == before


@pytest.mark.slow
def test_a_dry_run_writes_only_the_conflict_list(here: Run, place: Path) -> None:
    tonnage(here, 1, "main")
    tonnage(here, 2, "topic")
    commits = here("commit", "list", "--store", "harbor.omni").out
    arguments = ["branch", "merge", "topic", "--dry-run", "--conflicts", "c.json", "--store", "harbor.omni"]
    preview = here(*arguments, "--json", rc=3).json
    assert preview["merge_conflicts_total"] == 1
    assert here("commit", "list", "--store", "harbor.omni").out == commits
    listed = json.loads((place / "c.json").read_text())
    listed["conflicts"][0]["resolution"] = "theirs"
    (place / "c.json").write_text(json.dumps(listed))
    assert (
        here("branch", "merge", "topic", "--resolve", "c.json", *STORE, "--json").json["outcome"] == "merged"
    )
    assert '"tonnage":2' in here("export", "--store", "harbor.omni").out


@pytest.mark.slow
def test_a_dry_run_with_conflicts_does_not_say_merged(here: Run, place: Path) -> None:
    tonnage(here, 1, "main")
    tonnage(here, 2, "topic")
    arguments = ["branch", "merge", "topic", "--dry-run", "--store", "harbor.omni"]
    text = here(*arguments, rc=3)
    assert text.out.splitlines()[0] == "topic into main: nothing would be merged"
    assert text.out.splitlines()[-1] == "1 conflict"
    assert text.err.startswith("hint: choose a side with --on-conflict")
    preview = here(*arguments, "--json", rc=3).json
    assert preview["outcome"] == "conflicts"
    assert preview["hint"].startswith("choose a side")
    settled = here(*arguments, "--on-conflict", "ours", "--json").json
    assert (settled["outcome"], "hint" in settled) == ("merged", False)


@pytest.mark.slow
@pytest.mark.parametrize(("side", "kept"), [("ours", 1), ("theirs", 2), ("Ship=theirs", 2)])
def test_a_side_settles_conflicts(here: Run, place: Path, side: str, kept: int) -> None:
    tonnage(here, 1, "main")
    tonnage(here, 2, "topic")
    here("branch", "merge", "topic", "--on-conflict", side, *STORE)
    assert f'"tonnage":{kept}' in here("export", "--store", "harbor.omni").out


@pytest.mark.slow
def test_delete_after_a_merge_may_be_refused_without_failing_it(here: Run, place: Path) -> None:
    here("branch", "create", "kid", "--from", "topic", *STORE)
    tonnage(here, 7, "topic")
    merged = here("branch", "merge", "topic", "--delete-branch", *STORE, "--json")
    assert merged.json["branch_deleted"] is False
    assert "kid" in merged.json["branch_delete_error"]
    assert merged.err.startswith("warning: ")
    here("branch", "delete", "kid", *STORE)
    assert (
        here("branch", "merge", "topic", "--delete-branch", *STORE, "--json").json["branch_deleted"] is True
    )
    assert here("branch", "list", "--store", "harbor.omni").out == "main\n"


@pytest.mark.parametrize(
    ("arguments", "rc", "kind"),
    [
        (["delete", "main"], 1, "bad_request"),
        (["delete", "nope"], 6, "branch_not_found"),
        (["merge", "main", "--into", "main"], 1, "bad_request"),
        (["merge", "nope"], 6, "branch_not_found"),
        (["merge", "topic", "--on-conflict", "mine"], 1, "bad_request"),
        (["merge", "topic", "--conflicts", "c.json"], 2, "usage"),
    ],
)
def test_refusals(here: Run, place: Path, arguments: list[str], rc: int, kind: str) -> None:
    assert here("branch", *arguments, *STORE, "--json", rc=rc).error["kind"] == kind


def test_deleting_a_branch_of_a_remote_graph_needs_consent(here: Run) -> None:
    ran = here("branch", "delete", "topic", "--store", "s3://nowhere/g.omni", "--json", rc=5)
    assert ran.error["kind"] == "confirmation_required"
    assert "--yes" in ran.error["hint"]
