"""The conflict of two writers as HTTP clients see it. The name is the scenario name."""

import json
import re
from pathlib import Path

from graphs import rows_of
from omnigraph.api.graph import Graph
from omnigraph.core.failpoints import Window, activate
from scenarios.test_concurrency import all_arrive, at_once
from server.conftest import RENAME, Serve, harbor, logged, serve

__all__ = ["harbor", "logged", "serve"]  # the fixtures


def test_http_conflict_body_shape(serve: Serve, harbor: Graph, tmp_path: Path) -> None:
    server = serve({"act-ines": "t1", "act-tomas": "t2"})
    version = harbor.snapshot().entries["node:Ship"].version

    def rename(who: str, name: str):
        return server.post("/mutate", {"query": RENAME, "params": {"imo": "S1", "name": name}}, who)

    with activate(Window.MUTATION_POST_STAGE_PRE_QUEUE, all_arrive(2)):
        answers = at_once([lambda: rename("act-ines", "Alba"), lambda: rename("act-tomas", "Brisa")])
    won, lost = sorted(answers, key=lambda answer: answer.status_code)
    assert (won.status_code, lost.status_code) == (200, 409)
    assert lost.headers["content-type"] == "application/json"
    # The body of the protocol document comes first and whole; newer members follow.
    shape = (
        rb'\{"error": "[^"]+", "code": "conflict", '
        rb'"manifest_conflict": \{"table_key": "node:Ship", "expected": (\d+), "actual": (\d+)\}'
    )
    found = re.match(shape, lost.content)
    assert found is not None, lost.content
    now = harbor.snapshot().entries["node:Ship"].version
    assert (int(found[1]), int(found[2])) == (version, now)
    assert version < now
    told = lost.json()
    assert (told["kind"], told["retry"]) == ("manifest_conflict", "after_refresh")
    assert told["published_dataset_version_conflict"] == {
        "entity_kind": "node",
        "type_name": "Ship",
        "expected_published_dataset_version": version,
        "actual_published_dataset_version": now,
    }
    assert str(tmp_path) not in json.dumps(told)
    # The loser wrote nothing, and what it builds anew on the present state succeeds.
    names = {row["imo"]: row["name"] for row in rows_of(harbor, "Ship").values()}
    assert names["S1"] == ("Alba" if won.json()["actor_id"] == "act-ines" else "Brisa")
    assert rename("act-tomas", "Clara").status_code == 200
