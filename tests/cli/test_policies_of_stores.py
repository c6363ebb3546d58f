"""A policy in front of a store: by a flag of the command, or by the profile that names the store."""

import inspect
from pathlib import Path

import pytest

import omnigraph as og
from cli.conftest import Run
from omnigraph.cli.arguments import COMMANDS
from omnigraph.core.settings import Settings

SCHEMA = "node Person { handle: String @key  name: String? }\n"
POLICY = """\
version: 1
groups: { crew: [act-ines, act-tomas], masters: [act-tomas] }
protected_branches: [main]
rules:
  - { id: topics, allow: { actors: { group: crew }, actions: [change], branch_scope: unprotected } }
  - { id: own, allow: { actors: { group: masters }, actions: [change], branch_scope: protected } }
  - id: steer
    allow: { actors: { group: masters }, actions: [branch_create, branch_merge], target_branch_scope: any }
"""
ADD = ("mutate", "-e", "query q($h: String) { insert Person { handle: $h } }", "-p", "h=ada")
HANDLES = "query q() { match { $p: Person } return { $p.handle } }"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    place = tmp_path / "kb.omni"
    og.init(place, schema=SCHEMA, settings=Settings(durability="os")).close()
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "people.jsonl").write_text('{"type": "Person", "data": {"handle": "bo"}}\n')
    return place


def handles(store: Path) -> list[str]:
    with og.open_read_only(store) as graph:
        return sorted(graph.query(HANDLES)["p.handle"])


def test_a_write_to_a_store_asks_the_policy_of_the_flag(here: Run, store: Path) -> None:
    guarded = ("--store", str(store), "--policy", "policy.yaml", "--json")
    nobody = here(*ADD, *guarded, rc=5).error
    assert nobody["kind"] == "actor_required"
    assert "--as" in nobody["hint"]
    refused = here(*ADD, *guarded, "--as", "act-ines", rc=5).error
    assert (refused["kind"], "'act-ines' may not change on branch 'main'" in refused["error"]) == (
        "forbidden",
        True,
    )
    assert handles(store) == []
    here("--policy=policy.yaml", *ADD, "--store", str(store), "--as", "act-tomas")
    assert handles(store) == ["ada"]
    here(*ADD, "-p", "h=bo", "--store", str(store))
    assert handles(store) == ["ada", "bo"], "without the flag nothing is asked"
    here(*ADD, "--store", str(store), "--policy", "no such file", rc=1)


def test_a_load_and_a_merge_ask_for_all_they_do(here: Run, store: Path) -> None:
    load = ("load", "--data", "people.jsonl", "--mode", "merge", "--engine", "local", "--store", str(store))
    asking = ("--policy", "policy.yaml", "--json", "--as")
    refused = here(*load, "--branch", "topic", "--from", "main", *asking, "act-ines", rc=5).error
    assert "branch_create" in refused["error"]
    here(*load, "--branch", "topic", "--from", "main", *asking, "act-tomas")
    merge = ("branch", "merge", "topic", "--delete-branch", "--store", str(store), *asking, "act-tomas")
    done = here(*merge).json
    assert done["branch_deleted"] is False
    assert "may not branch_delete" in done["branch_delete_error"]
    assert handles(store) == ["bo"]
    with og.open_read_only(store) as graph:
        assert "topic" in graph.branches.list()


def test_a45_the_policy_of_a_profile_is_asked_unless_it_is_bypassed(here: Run, store: Path) -> None:
    home = store.parent / "home"
    home.mkdir()
    (home / "config.yaml").write_text(f"profiles: {{ kb: {{ store: '{store}', policy: ../policy.yaml }} }}\n")
    mine = {"OMNIGRAPH_HOME": str(home), "OMNIGRAPH_PROFILE": "kb"}
    refused = here(*ADD, "--json", env=mine, rc=5).error
    assert refused["kind"] == "actor_required"
    assert "--as" in refused["hint"]
    assert handles(store) == []
    done = here(*ADD, "--bypass-policy", env=mine)
    assert "warning: the policy '" in done.err
    assert "policy.yaml' is not asked" in done.err
    assert handles(store) == ["ada"]
    here(*ADD, "--bypass-policy", "--policy", "policy.yaml", env=mine, rc=2)
    # Another way to the same store binds nothing.
    here(*ADD, "-p", "h=bo", "--store", str(store), env={"OMNIGRAPH_HOME": str(home)})


def test_only_a_store_has_a_policy_here(here: Run, store: Path) -> None:
    home = store.parent / "home"
    home.mkdir()
    (home / "config.yaml").write_text(
        "servers: { quay: { url: 'http://127.0.0.1:1' } }\n"
        "profiles: { quay: { server: quay, policy: p.yaml, default_graph: kb } }\n"
    )
    mine = {"OMNIGRAPH_HOME": str(home)}
    told = here(*ADD, "--profile", "quay", env=mine, rc=1).err
    assert "goes with a store only" in told
    served = ("--server", "http://127.0.0.1:1", "--graph", "kb", "--policy", "policy.yaml")
    assert "a server asks its own policy" in here(*ADD, *served, env=mine, rc=2).err


def test_every_command_that_writes_takes_the_flag() -> None:
    from omnigraph.cli import opening
    from omnigraph.cli.app import tree

    assert "policy_for" in inspect.getsource(opening.writing)
    writers = {
        (each.name,) if group is None else (group, each.name)
        for group, commands in [
            (None, tree().registered_commands),
            *(
                (each.name, each.typer_instance.registered_commands)
                for each in tree().registered_groups
                if each.typer_instance
            ),
        ]
        for each in commands
        if each.callback is not None and "writing" in each.callback.__code__.co_names
    }
    assert {("mutate",), ("branch", "merge"), ("erase",)} <= writers
    for path in writers:
        assert {"--policy", "--bypass-policy", "--as"} <= COMMANDS[path][1], path
