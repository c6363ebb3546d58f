"""Recovery on an object store, where a dead writer's lease expires instead of falling."""

import json
import time

import pytest

import omnigraph
from crash.harness import EXIT_AT_WINDOW, popen_child, run_child
from crash.people import INSERT, SCHEMA, Model, seed
from omnigraph.core.failpoints import Window
from omnigraph.core.limits import LEASE_CLOCK_SKEW_S_MAX, LEASE_EXPIRY_S
from stores import s3_store

pytestmark = [pytest.mark.s3, pytest.mark.crash, pytest.mark.slow]


@pytest.fixture
def place():
    return s3_store()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("window", "kind"),
    [
        (Window.MUTATION_POST_TABLE_COMMIT, "RolledBack"),
        (Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, "RolledForward"),
    ],
)
def test_two_processes_crash_and_recover_on_an_object_store(place, tmp_path, window, kind):
    """A dies in Phase B; others open at once. While its lease may be alive they touch nothing; then one recovers."""
    graph = omnigraph.init(place.uri, schema=SCHEMA, storage_options=place.storage_options)
    seed(graph)
    before = Model.read(graph.export())
    there = {"path": place.uri, "options": place.storage_options}
    write = there | {"command": "write", "writer": "insert", "tag": "1", "branch": "main"}
    look = there | {"command": "recover", "result": str(tmp_path / "found")}
    status, errors = run_child(write, failpoints=f"{window}=exit")
    assert status == EXIT_AT_WINDOW, errors
    (operation,) = graph.pending()
    deadline = time.monotonic() + LEASE_EXPIRY_S + LEASE_CLOCK_SKEW_S_MAX + 120
    while graph.pending():
        assert time.monotonic() < deadline, "the lease of the dead writer never expired"
        for child in [popen_child(look), popen_child(look)]:
            _, errors = child.communicate(timeout=120)
            assert child.returncode == 0, errors
    # One of the two may have looked while the other was settling, so whoever opens next is asked.
    status, errors = run_child(look)
    assert status == 0, errors
    found = json.loads((tmp_path / "found").read_text())
    assert found["recoveries"] == [[operation, kind]]
    assert found["violations"] == []
    expected = before if kind == "RolledBack" else INSERT.after(before, "1")
    assert Model.read(graph.export()) == expected
    INSERT.run(graph, "2")
    assert graph.verify().ok
