"""What nobody may see: tokens, values of parameters, places of the machine. Not in a body, not in a log line."""

import json
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnigraph.api.graph import Graph
from server.conftest import Serve

TOKEN, OTHER = "token-of-ines-zq1", "token-of-nobody-zq2"
SECRET = "zqvaluezq"
TYPES = ("String", "I32", "U64", "F64", "Bool", "Date", "DateTime", "[String]", "[I32]", "Vector(2)", "Blob")
READ = (
    "query q($p: {type}{null}, $imo: String) {{ match {{ $s: Ship {{ imo: $imo }} }} return {{ $s.name }} }}"
)
WRITE = "query q($imo: String, $p: {type}{null}) {{ insert Ship {{ imo: $imo, name: $imo }} }}"
FIXED = settings(
    max_examples=60,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True)
class Asked:
    """One request that carries secrets, and whether an answer may show what was written."""

    method: str
    path: str
    named: dict[str, Any]
    token: str | None
    elsewhere: bool
    """The token is also in the address and in the body, where it does not belong."""


def values() -> st.SearchStrategy[Any]:
    """Values of parameters that hold something nobody else may see, right and wrong ones."""
    held = st.sampled_from([SECRET, f"{SECRET} 2026-01-01", f"/{SECRET}", f'"{SECRET}"', f"base64:{SECRET}"])
    return st.recursive(
        held | st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("k"), inner, max_size=1),
        max_leaves=3,
    )


@st.composite
def requests(draw: st.DrawFn) -> Asked:
    declared = {"type": draw(st.sampled_from(TYPES)), "null": draw(st.sampled_from(["", "?"]))}
    params = {"imo": SECRET, "p": draw(values())}
    branch = draw(st.sampled_from(["main", "nope"]))
    route = draw(st.sampled_from(["query", "explain", "mutate", "mutate/many", "load", "entity"]))
    token = draw(st.sampled_from([TOKEN, OTHER, None]))
    elsewhere = draw(st.booleans())
    if route == "entity":
        key = draw(values())
        named = {"params": {"type": "Ship", "key": json.dumps([SECRET, key]), "branch": branch}}
        return Asked("GET", "/entity", named, token, elsewhere)
    if route == "load":
        line = json.dumps({"type": "Ship", "data": {"imo": 7, "name": params["p"], "more": SECRET}})
        headers = {"Content-Type": "application/x-ndjson"}
        return Asked(
            "POST", f"/load?branch={branch}", {"content": line, "headers": headers}, token, elsewhere
        )
    body: dict[str, Any] = {"branch": branch}
    body["query"] = (WRITE if route.startswith("mutate") else READ).format(**declared)
    body |= {"parameter_sets": [params]} if route == "mutate/many" else {"params": params}
    return Asked("POST", f"/{route}", {"json": body}, token, elsewhere)


def sent(client: httpx2.Client, asked: Asked) -> httpx2.Response:
    named = dict(asked.named)
    headers = dict(named.pop("headers", {}))
    if asked.token is not None:
        headers["Authorization"] = f"Bearer {asked.token}"
    path = f"/graphs/harbor{asked.path}"
    if asked.elsewhere:
        path += ("&" if "?" in path else "?") + f"token={OTHER}"
        if "json" in named:
            named["json"] = {**named["json"], "token": OTHER, "actor": SECRET}
        if "params" in named:
            path, named["params"] = f"/graphs/harbor{asked.path}", {**named["params"], "token": OTHER}
    return client.request(asked.method, path, headers=headers, **named)


@pytest.mark.slow
def test_no_body_and_no_log_line_holds_what_nobody_may_see(
    serve: Serve, harbor: Graph, logged: list[str]
) -> None:
    server = serve({"act-ines": TOKEN})
    answered: set[int] = set()

    @FIXED
    @given(requests())
    def look(asked: Asked) -> None:
        answer = sent(client, asked)
        answered.add(answer.status_code)
        told = answer.text + str(dict(answer.headers))
        assert answer.status_code < 500, told
        for hidden in (TOKEN, OTHER, harbor.uri):
            assert hidden not in told, (asked, told)
        inserted = answer.status_code == 200 and asked.path.startswith("/mutate")
        if not inserted and asked.path != "/load?branch=main":
            # Who writes a record is told which one it is; a parameter is in no other answer.
            assert SECRET not in told, (asked, told)

    with server.client() as client:
        look()
    assert {200, 400, 401, 404} <= answered
    told = "".join(logged)
    assert "decision" in {json.loads(line)["event"] for line in logged}
    for hidden in (TOKEN, OTHER, SECRET, harbor.uri):
        assert hidden not in told
