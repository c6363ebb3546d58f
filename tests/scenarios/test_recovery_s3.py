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


def open_and_look(place, directory, number):
    result = directory / f"result-{number}"
    command = {
        "command": "recover",
        "path": place.uri,
        "options": place.storage_options,
        "result": str(result),
    }
    return popen_child(command), result


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
    command = {
        "command": "write",
        "path": place.uri,
        "options": place.storage_options,
        "writer": "insert",
        "tag": "1",
        "branch": "main",
    }
    status, errors = run_child(command, failpoints=f"{window}=exit")
    assert status == EXIT_AT_WINDOW, errors
    (operation,) = graph.pending()
    deadline = time.monotonic() + LEASE_EXPIRY_S + LEASE_CLOCK_SKEW_S_MAX + 120
    while graph.pending():
        assert time.monotonic() < deadline, "the lease of the dead writer never expired"
        started = [open_and_look(place, tmp_path, number) for number in range(2)]
        for child, _ in started:
            _, errors = child.communicate(timeout=120)
            assert child.returncode == 0, errors
    found = json.loads(started[0][1].read_text())
    assert found["recoveries"] == [[operation, kind]]
    assert found["violations"] == []
    expected = before if kind == "RolledBack" else INSERT.after(before, "1")
    assert Model.read(graph.export()) == expected
    INSERT.run(graph, "2")
    assert graph.verify().ok
