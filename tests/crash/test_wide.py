"""A write of many tables: killed anywhere it is all or nothing like every other."""

import json

import pytest

import omnigraph
from crash.harness import CUT, Children, Prepared

pytestmark = [pytest.mark.crash, pytest.mark.slow]
TABLES = 6
EVENTS_MAX = 400
SCHEMA = "\n".join(f"node T{n} {{ name: String @key }}" for n in range(TABLES))
QUERY = "query w($k: String) { " + " ".join(f"insert T{n} {{ name: $k }}" for n in range(TABLES)) + " }"


def rows_by_table(exported):
    """The names each table shows."""
    shown = {f"T{n}": set() for n in range(TABLES)}
    for line in exported.splitlines():
        value = json.loads(line)
        shown[value["type"]].add(value["data"]["name"])
    return shown


@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.torture)])
def test_killed_wide_write_is_all_or_nothing(step, tmp_path):
    path, result, returned = tmp_path / "graph", tmp_path / "result.json", tmp_path / "returned"
    omnigraph.init(path, schema=SCHEMA).close()
    prepared = Prepared(path)
    told = {"query": QUERY, "key": "k", "returned": str(returned)}
    cuts = 0
    with Children() as children:
        for number in range(1, EVENTS_MAX, step):
            prepared.put_back()
            status = children.run("mutate", path=str(path), cut=number, **told)
            assert status in {0, CUT}
            assert children.run("recover", path=str(path), result=str(result)) == 0
            found = json.loads(result.read_text())
            assert found["violations"] == [], f"cut at durable event {number}"
            shown = rows_by_table(found["exports"]["main"])
            assert len({frozenset(names) for names in shown.values()}) == 1, f"cut at durable event {number}"
            assert shown["T0"] in ([{"k"}] if returned.exists() else [set(), {"k"}]), f"cut at {number}"
            if status == 0:
                assert returned.exists()
                break
            cuts += 1
    print(f"\nwide write: {cuts} cuts, every one before or after")
    assert 60 // step < cuts < EVENTS_MAX // step - 1
