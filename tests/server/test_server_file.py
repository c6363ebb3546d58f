"""A server with several graphs: one broken beside a good one, and everything read again while it serves."""

import json
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cli.conftest import COMMAND, clean_environment
from graphs import make_graph
from omnigraph.api.graph import Graph
from server.conftest import ADD, BY_IMO, SHIPS
from server.test_serve_command import serving, stopped

pytestmark = pytest.mark.slow

READS = """\
version: 1
groups: { crew: [act-ines] }
rules:
  - { id: r, allow: { actors: { group: crew }, actions: [read], branch_scope: any } }
  - { id: a, allow: { actors: { group: crew }, actions: [admin] } }
"""
WRITES = READS.replace("actions: [read]", "actions: [read, change]")
BODY = {"query": ADD, "params": {"imo": "F1", "name": "File"}}


def asked(url: str, path: str, token: str = "t1", body: Any = None) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {token}"}
    if body is None:
        return httpx2.get(f"{url}{path}", headers=headers, trust_env=False, timeout=60)
    return httpx2.post(f"{url}{path}", headers=headers, json=body, trust_env=False, timeout=60)


@pytest.fixture
def place(harbor: Graph, tmp_path: Path) -> Path:
    make_graph(tmp_path / "second.omni", SHIPS).close()
    (tmp_path / "policy.yaml").write_text(READS)
    (tmp_path / "tokens.json").write_text(json.dumps({"act-ines": "t1"}))
    (tmp_path / "server.yaml").write_text(
        "graphs:\n"
        "  harbor: { store: harbor.omni, policy: policy.yaml }\n"
        "  broken: { store: nowhere.omni, policy: policy.yaml }\n"
        "  old: { store: second.omni, policy: policy.yaml, read_only: true }\n"
    )
    return tmp_path


def test_a_broken_graph_is_left_out_and_the_others_are_served(place: Path) -> None:
    tokens = {"OMNIGRAPH_SERVER_BEARER_TOKENS_FILE": str(place / "tokens.json")}
    with serving("--config", str(place / "server.yaml"), **tokens) as (process, url):
        assert asked(url, "/readyz").json() == {
            "status": "ready",
            "graphs_ready": 2,
            "graphs_quarantined": 1,
        }
        assert asked(url, "/graphs").json() == {"graphs": [{"graph_id": "harbor"}, {"graph_id": "old"}]}
        answer = asked(url, "/graphs/harbor/query", body={"query": BY_IMO, "params": {"imo": "S1"}})
        assert answer.json()["row_count"] == 1
        assert asked(url, "/graphs/broken/branches").status_code == 404
        assert (
            asked(url, "/graphs/broken/branches")
            .content.replace(b"broken", b"nosuch")
            .split(b"request_id")[0]
            == asked(url, "/graphs/nosuch/branches").content.split(b"request_id")[0]
        )
        rc, _, err = stopped(process)
    assert rc == 0
    left_out = [json.loads(line) for line in err.splitlines() if "graph_left_out" in line]
    assert [(each["graph"], each["kind"]) for each in left_out] == [("broken", "graph_not_found")]
    assert str(place) not in err


def test_a_server_that_needs_all_graphs_does_not_start_without_one(place: Path) -> None:
    import subprocess

    done = subprocess.run(
        [COMMAND, "serve", "--config", str(place / "server.yaml"), "--require-all-graphs", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**clean_environment(), "OMNIGRAPH_SERVER_BEARER_TOKENS_FILE": str(place / "tokens.json")},
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (6, "")
    assert json.loads(done.stderr.splitlines()[-1])["kind"] == "graph_not_found"


def test_tokens_and_policies_are_read_again_and_a_bad_file_changes_nothing(place: Path) -> None:
    tokens = {"OMNIGRAPH_SERVER_BEARER_TOKENS_FILE": str(place / "tokens.json")}
    with serving("--config", str(place / "server.yaml"), **tokens) as (process, url):
        assert asked(url, "/graphs/harbor/mutate", body=BODY).status_code == 403
        (place / "policy.yaml").write_text("version: 9")
        bad = asked(url, "/admin/reload", body={})
        assert (bad.status_code, asked(url, "/graphs/harbor/mutate", body=BODY).status_code) == (400, 403)
        (place / "policy.yaml").write_text(WRITES)
        (place / "tokens.json").write_text(json.dumps({"act-ines": "t2"}))
        told = asked(url, "/admin/reload", body={})
        assert (told.status_code, told.json()) == (200, {"graphs_ready": 2, "graphs_quarantined": 1})
        assert asked(url, "/graphs/harbor/mutate", body=BODY).status_code == 401
        assert asked(url, "/graphs/harbor/mutate", "t2", BODY).status_code == 200
        # By signal, and with a graph less: what it had under way ends, and it is not there any more.
        served = (place / "server.yaml").read_text().replace("  old:", "  other:")
        (place / "server.yaml").write_text(served)
        process.send_signal(signal.SIGHUP)
        while "reloaded" not in (process.stderr.readline() if process.stderr else "reloaded"):
            pass
        while "reloaded" not in (process.stderr.readline() if process.stderr else "reloaded"):
            pass
        assert asked(url, "/graphs", "t2").json()["graphs"] == [{"graph_id": "harbor"}, {"graph_id": "other"}]
        assert asked(url, "/graphs/old/branches", "t2").status_code == 404
        rc, _, _ = stopped(process)
    assert rc == 0


def test_only_who_may_keep_up_every_graph_may_reload(place: Path) -> None:
    (place / "policy.yaml").write_text(READS.replace("actions: [admin]", "actions: [invoke_query]"))
    tokens = {"OMNIGRAPH_SERVER_BEARER_TOKENS_FILE": str(place / "tokens.json")}
    with serving("--config", str(place / "server.yaml"), **tokens) as (_, url):
        assert asked(url, "/admin/reload", body={}).status_code == 403
        assert asked(url, "/admin/reload", "nope", {}).status_code == 401


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("graphs: {", "not valid YAML"),
        ("[]", "Expected `object`"),
        ("graphs: {}", "length"),
        ("graphs: { a: { stroe: x } }", "unknown field"),
        ("graphs: { a: { store: x }, b: { store: x } }", "same store"),
        ("graphs: { a_b: { store: x } }", "graph id"),
    ],
)
def test_a_file_that_says_nothing_useful_refuses_the_start(tmp_path: Path, text: str, told: str) -> None:
    import subprocess

    (tmp_path / "server.yaml").write_text(text)
    done = subprocess.run(
        [COMMAND, "serve", "--config", str(tmp_path / "server.yaml"), "--unauthenticated"],
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment(),
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert told in done.stderr
