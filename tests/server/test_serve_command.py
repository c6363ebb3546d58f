"""`omnigraph serve` as a process: how it starts, refuses to start, and ends."""

import json
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

import omnigraph
from cli.conftest import COMMAND, clean_environment
from graphs import make_graph
from omnigraph.api.graph import Graph
from server.conftest import ADD, BY_IMO
from stores import s3_store

pytestmark = pytest.mark.slow


@contextmanager
def serving(
    *arguments: str, log: int = subprocess.PIPE, **environ: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server until the block ends. Who asks much of it gives it another place for its log than a pipe."""
    process = subprocess.Popen(
        [COMMAND, "serve", *arguments, "--bind", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**clean_environment(), **environ},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("OMNIGRAPH_LISTEN_ADDR=127.0.0.1:"), process.communicate()
        yield process, f"http://{line.strip().partition('=')[2]}"
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def stopped(process: subprocess.Popen[str], how: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
    process.send_signal(how)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_it_says_where_it_listens_and_ends_well_when_told_to(harbor: Graph) -> None:
    for how in (signal.SIGTERM, signal.SIGINT):
        with serving(harbor.uri, "--graph-id", "harbor", "--unauthenticated") as (process, url):
            body = {"query": BY_IMO, "params": {"imo": "S1"}}
            answer = httpx2.post(f"{url}/graphs/harbor/query", json=body, trust_env=False, timeout=60)
            assert answer.json()["row_count"] == 1
            rc, out, err = stopped(process, how)
        assert (rc, out) == (0, "")
        events = [json.loads(line) for line in err.splitlines()]
        assert {event["event"] for event in events} == {"decision", "request"}


def test_a_log_line_names_the_request_and_nothing_of_its_content(harbor: Graph) -> None:
    with serving(
        harbor.uri, "--graph-id", "harbor", "--default", "write", OMNIGRAPH_SERVER_BEARER_TOKEN="s3cret"
    ) as (process, url):
        body = {"query": ADD, "params": {"imo": "S77", "name": "Secretive"}}
        headers = {"Authorization": "Bearer s3cret", "X-Request-Id": "req-1"}
        done = httpx2.post(
            f"{url}/graphs/harbor/mutate", json=body, headers=headers, trust_env=False, timeout=60
        )
        assert done.status_code == 200
        assert done.json()["actor_id"] == "default"
        _, _, err = stopped(process)
    events = {event["event"]: event for event in map(json.loads, err.splitlines())}
    told = events["request"]
    assert {told[name] for name in ("operation", "status", "graph", "actor", "request_id")} == {
        "mutate",
        200,
        "harbor",
        "default",
        "req-1",
    }
    assert events["decision"]["action"] == "change"
    assert events["decision"]["allowed"] is True
    for secret in ("s3cret", "S77", "Secretive", harbor.uri):
        assert secret not in err


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        ([], {}, "--unauthenticated"),
        ([], {"OMNIGRAPH_SERVER_BEARER_TOKEN": "x"}, "--default"),
        (["--unauthenticated"], {"OMNIGRAPH_SERVER_BEARER_TOKEN": "x"}, "exclude each other"),
        (["--default", "read"], {"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": '{"a": " "}'}, "blank"),
        (
            ["--default", "read"],
            {"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": '{"a": "x", "a": "y"}'},
            "two tokens",
        ),
        (
            ["--default", "read"],
            {"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": '{"a": "x", "b": "x"}'},
            "same token",
        ),
        (["--default", "read"], {"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": '["t0ken"]'}, "JSON object"),
        (["--default", "read"], {"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": "{t0ken"}, "JSON object"),
        (
            ["--default", "read"],
            {"OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": '{"omnigraph:recovery": "x"}'},
            "reserved",
        ),
        (["--default", "read"], {"OMNIGRAPH_SERVER_BEARER_TOKENS_FILE": "missing.json"}, "cannot be read"),
        (["--unauthenticated", "--graph-id", "a_b"], {}, "graph id"),
        (["--unauthenticated", "--bind", "nonsense"], {}, "HOST:PORT"),
    ],
)
def test_it_refuses_to_start_when_nobody_could_say_who_may_do_what(
    harbor: Graph, arguments: list[str], environ: dict[str, str], said: str
) -> None:
    done = subprocess.run(
        [COMMAND, "serve", harbor.uri, *arguments],
        capture_output=True,
        text=True,
        env={**clean_environment(), **environ},
        timeout=60,
        check=False,
    )
    assert done.returncode in {1, 2}
    assert said in done.stderr
    assert done.stdout == ""
    assert "t0ken" not in done.stderr


def test_a_token_may_be_known_by_its_digest_only(harbor: Graph, tmp_path: Path) -> None:
    import hashlib

    digest = hashlib.sha256(b"s3cret").hexdigest()
    (tmp_path / "tokens.json").write_text(json.dumps({"act-ines": f"sha256:{digest}"}))
    environ = {"OMNIGRAPH_SERVER_BEARER_TOKENS_FILE": str(tmp_path / "tokens.json")}
    with serving(harbor.uri, "--default", "read", **environ) as (_, url):
        for token, status in (("s3cret", 200), (f"sha256:{digest}", 401)):
            headers = {"Authorization": f"Bearer {token}"}
            assert (
                httpx2.get(f"{url}/graphs", headers=headers, trust_env=False, timeout=60).status_code
                == status
            )


def test_a_read_only_server_refuses_writes(harbor: Graph) -> None:
    with serving(harbor.uri, "--graph-id", "harbor", "--unauthenticated", "--read-only") as (_, url):
        body = {"query": ADD, "params": {"imo": "S9", "name": "x"}}
        refused = httpx2.post(f"{url}/graphs/harbor/mutate", json=body, trust_env=False, timeout=60)
        assert refused.status_code in {400, 403}, refused.text
        read = httpx2.post(
            f"{url}/graphs/harbor/query",
            json={"query": BY_IMO, "params": {"imo": "S1"}},
            trust_env=False,
            timeout=60,
        )
        assert read.status_code == 200


@pytest.mark.s3
def test_a_graph_in_an_object_store_is_served() -> None:
    store = s3_store()
    known = store.storage_options
    assert known is not None
    names = ("aws_endpoint", "aws_region", "aws_access_key_id", "aws_secret_access_key")
    environ = {name.upper(): known[name] for name in names}
    omnigraph.init(store.uri, schema="node Ship { imo: String @key }", storage_options=known).close()
    with (
        serving(store.uri, "--unauthenticated", AWS_ALLOW_HTTP="true", **environ) as (_, url),
        omnigraph.connect(url, graph="default") as graph,
    ):
        graph.mutate('query q() { insert Ship { imo: "S1" } }')
        assert graph.query("query q() { match { $s: Ship } return { $s.imo } }")["s.imo"] == ["S1"]
    with omnigraph.open(store.uri, storage_options=known) as graph:
        assert graph.verify().ok


PEOPLE = "node Person { name: String @key  age: I32 }\n"
PAIRS = "query q($most: I32) { match { $a: Person  $b: Person  $a.age < $b.age  $a.age < $most } return { count($a) as n } }"


def test_http_s58_a_query_that_runs_when_the_server_is_told_to_end_is_answered(tmp_path: Path) -> None:
    """SIGTERM during a slow query: it completes, nothing new is let in, and the server ends well."""
    store = tmp_path / "people.omni"
    with make_graph(store, PEOPLE) as graph:
        graph.load_frames(
            {"Person": [{"name": f"p{n}", "age": n} for n in range(4_000)]}, mode="append", engine="local"
        )
    options = ("--graph-id", "g", "--unauthenticated", "--drain-timeout", "600")
    most = 500
    with serving(str(store), *options) as (process, url), ThreadPoolExecutor(1) as pool:
        while True:
            body = {"query": PAIRS, "params": {"most": most}}
            slow = pool.submit(httpx2.post, f"{url}/graphs/g/query", json=body, trust_env=False, timeout=600)
            while not (begun := _reads_under_way(url)) and not slow.done():
                pass
            if begun:
                break
            most = min(most * 2, 4_000)  # it was over before anybody saw it
        rc, _, _ = stopped(process)
        answer = slow.result(600)
    assert rc == 0
    assert answer.status_code == 200
    assert answer.json()["rows"] == [{"n": sum(3_999 - age for age in range(most))}]


def _reads_under_way(url: str) -> bool:
    text = httpx2.get(f"{url}/metrics", trust_env=False, timeout=600).text
    line = next(
        (each for each in text.splitlines() if each.startswith('omnigraph_requests_under_way{lane="reads"}')),
        "0 0",
    )
    return float(line.split()[1]) > 0
