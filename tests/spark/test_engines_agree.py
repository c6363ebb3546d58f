"""Generated and damaged graphs: both engines give the same rows, the same counts and the same problems."""

import json
import shutil
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from graphs import make_graph
from omnigraph.api.graph import Graph
from omnigraph.core.errors import OmnigraphError

SCHEMA = """
node A { k: String @key  u: String? @unique  n: I32?  @range(n, 0..9) }
node B { t: String? }
edge AB: A -> B @card(0..2)
edge AA: A -> A { w: F64?  @unique(src, dst) }
"""
SEED = [
    {"type": "A", "data": {"k": "a0", "u": "x"}},
    {"type": "A", "data": {"k": "a1", "u": "y"}},
    {"type": "B", "data": {"id": "b0"}},
    {"edge": "AB", "from": "a0", "to": "b0", "data": {"id": "e0"}},
    {"edge": "AA", "from": "a0", "to": "a1", "data": {"id": "f0"}},
]

_a = st.sampled_from(["a0", "a1", "a2", "a3"])
_b = st.sampled_from(["b0", "b1", "b2"])
_e = st.sampled_from(["e0", "e1", "e2"])
_node_a = st.fixed_dictionaries(
    {"k": _a},
    optional={"u": st.sampled_from(["x", "y", "z", None]), "n": st.sampled_from([1, 9, 10, None, "q"])},
).map(lambda data: {"type": "A", "data": data})
_node_b = st.fixed_dictionaries({"id": _b}, optional={"t": st.sampled_from(["s", 4])}).map(
    lambda data: {"type": "B", "data": data}
)
_ab = st.builds(lambda s, t, i: {"edge": "AB", "from": s, "to": t, "data": {"id": i}}, _a, _b, _e)
_aa = st.builds(lambda s, t, i: {"edge": "aa", "from": s, "to": t, "data": {"id": i}}, _a, _a, _e)
_junk = st.sampled_from(["", "{}", '{"type":"Zed"}', "[1]", '{"type":"A","data":{"k":"a9"},"x":1}'])
_inputs = st.lists(st.one_of(_node_a, _node_a, _node_b, _ab, _aa, _junk), max_size=14)


def outcome(graph: Graph, source: Path, mode: str, engine: str, rejects: Path | None):
    try:
        report = graph.load(source, mode=mode, engine=engine, rejects=rejects).to_dict()
    except OmnigraphError as error:
        return type(error).__name__, json.dumps(error.to_dict(), sort_keys=True), graph.export()
    for name in ("engine", "seconds", "commit", "rejects", "load_id"):
        report.pop(name, None)
    aside = (
        (rejects / "rejects.jsonl").read_text() if rejects and (rejects / "rejects.jsonl").exists() else ""
    )
    return "loaded", json.dumps(report, sort_keys=True), graph.export(), aside


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(_inputs, st.sampled_from(["append", "merge", "overwrite", "patch"]), st.booleans())
@example(SEED, "merge", False)
def test_both_engines_agree(runtime, tmp_path_factory, records, mode: str, with_rejects) -> None:
    home = tmp_path_factory.mktemp("agree")
    seed, source = home / "seed.jsonl", home / "input.jsonl"
    seed.write_text("".join(json.dumps(each) + "\n" for each in SEED))
    source.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records))
    with make_graph(home / "local", SCHEMA) as graph:
        graph.load(seed, mode="append", engine="local")
    shutil.copytree(home / "local", home / "spark")
    outcomes = []
    for engine in ("local", "spark"):
        with _opened(home / engine) as graph:
            rejects = home / f"rejects-{engine}" if with_rejects else None
            outcomes.append(outcome(graph, source, mode, engine, rejects))
            assert graph.verify().violations == ()
    assert outcomes[0] == outcomes[1]


def _opened(path: Path) -> Graph:
    import omnigraph
    from graphs import FAST

    return omnigraph.open(path, settings=FAST)
