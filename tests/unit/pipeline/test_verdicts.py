"""Generated inputs: what a load accepts satisfies every rule, what it refuses breaks one (an independent model)."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import omnigraph
from graphs import FAST
from omnigraph.core.errors import OmnigraphError

SCHEMA = """
node A { k: String @key  u: String? @unique }
edge AA: A -> A @card(0..1)
"""

_a = st.sampled_from(["a0", "a1", "a2", "a3"])
_nodes = st.builds(lambda k, u: ("A", k, u), _a, st.sampled_from(["x", "y", "z", None]))
_edges = st.builds(lambda i, s, t: ("AA", i, s, t), st.sampled_from(["e0", "e1"]), _a, _a)
_inputs = st.lists(st.one_of(_nodes, _nodes, _edges), max_size=7)


class Model:
    """The graph as dictionaries; says whether a load is right and applies it."""

    def __init__(self) -> None:
        self.nodes: dict[str, str | None] = {}
        self.edges: dict[str, tuple[str, str]] = {}

    def load(self, records, mode: str) -> bool:
        keys = [r[1] for r in records if r[0] == "A"]
        uniques = [r[2] for r in records if r[0] == "A" and r[2] is not None]
        edge_ids = [r[1] for r in records if r[0] == "AA"]
        if len(set(keys)) < len(keys) or len(set(uniques)) < len(uniques):
            return False
        if mode != "merge" and len(set(edge_ids)) < len(edge_ids):
            return False
        if mode == "append" and (set(keys) & set(self.nodes) or set(edge_ids) & set(self.edges)):
            return False
        nodes = {} if mode == "overwrite" and keys else dict(self.nodes)
        edges = {} if mode == "overwrite" and edge_ids else dict(self.edges)
        nodes |= {r[1]: r[2] for r in records if r[0] == "A"}
        edges |= {r[1]: (r[2], r[3]) for r in records if r[0] == "AA"}
        held = [u for u in nodes.values() if u is not None]
        sources = Counter(source for source, _ in edges.values())
        sound = (
            len(set(held)) == len(held)
            and all(end in nodes for ends in edges.values() for end in ends)
            and all(count <= 1 for count in sources.values())
        )
        if sound:
            self.nodes, self.edges = nodes, edges
        return sound


def lines(records) -> str:
    described = [
        {"type": "A", "data": {"k": r[1], "u": r[2]}}
        if r[0] == "A"
        else {"edge": "AA", "from": r[2], "to": r[3], "data": {"id": r[1]}}
        for r in records
    ]
    return "".join(json.dumps(each) + "\n" for each in described)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(_inputs, st.sampled_from(["append", "merge", "overwrite"])), max_size=5))
@pytest.mark.slow
def test_loads_follow_the_model(tmp_path_factory, program) -> None:
    home = tmp_path_factory.mktemp("model")
    model = Model()
    with omnigraph.init(home / "g", schema=SCHEMA, settings=FAST) as graph:
        for records, mode in program:
            (home / "in.jsonl").write_text(lines(records))
            before = graph.export()
            try:
                graph.load(home / "in.jsonl", mode=mode, engine="local")
                accepted = True
            except OmnigraphError:
                accepted = False
                assert graph.export() == before
            assert accepted == model.load(records, mode), (records, mode)
            exported = [json.loads(line) for line in graph.export().splitlines()]
            assert {r["data"]["k"]: r["data"]["u"] for r in exported if "type" in r} == model.nodes
            assert {r["data"]["id"]: (r["from"], r["to"]) for r in exported if "edge" in r} == model.edges
