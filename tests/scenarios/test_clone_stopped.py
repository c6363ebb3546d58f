"""A clone that is stopped half-way is no graph, or shows what it showed before; the next one goes on."""

import json
from pathlib import Path

import pytest

import omnigraph
from crash.harness import CUT, run_script
from graphs import FAST, make_graph, run
from omnigraph.core.cancel import Cancellation
from omnigraph.core.errors import AlreadyInitialized, Cancelled, CloneUnfinished, InitializationClaimed
from omnigraph.core.failpoints import Callback, Raise, Window, activate
from omnigraph.manifest import clone_marker
from omnigraph.storage.layout import CLONE
from stores import Store
from travelling import SMALL, cloned, files_of, goes_on, make, opened, states


@pytest.fixture
def source(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "source"))


@pytest.fixture
def target(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "clone"))


@pytest.fixture
def small(tmp_path: Path):
    with make_graph(tmp_path / "small", SMALL) as graph:
        run(graph, 'insert P { k: "a" } insert P { k: "b" } insert E { from: "a", to: "b" }')
        yield graph


LIVES = """
import sys, omnigraph
from omnigraph.core.settings import Settings
omnigraph.clone(sys.argv[1], sys.argv[2], settings=Settings(durability="os"))
"""
DEATHS = {
    "first file": (Window.CLONE_FILE_COPIED, "kill"),
    "some files": (Window.CLONE_FILE_COPIED, ",".join(["pass"] * 20 + ["kill"])),
    "all files": (Window.CLONE_POST_COPY, "kill"),
    "tables": (Window.CLONE_POST_TABLES, "kill"),
    "commit tables": (Window.COMMIT_PROJECTION_BEFORE_APPEND, "kill"),
    "states": (Window.CLONE_POST_STATES, "kill"),
}


def killed(source: Store, target: Store, window: Window, action: str) -> None:
    status, errors = run_script(LIVES, source.uri, target.uri, failpoints=f"{window.value}={action}")
    assert status == CUT, (status, errors)


def no_graph_yet(target: Store) -> None:
    for how in (omnigraph.open, omnigraph.open_read_only):
        with pytest.raises(CloneUnfinished, match="no graph") as refused:
            how(target.uri, settings=FAST)
        assert refused.value.kind == "graph_not_found"
        assert "clone it again" in (refused.value.hint or "")
    with pytest.raises((InitializationClaimed, AlreadyInitialized)):
        omnigraph.init(target.uri, schema=SMALL, settings=FAST)
    with pytest.raises((InitializationClaimed, AlreadyInitialized)):
        omnigraph.init(target.uri, schema=SMALL, settings=FAST, force=True)


@pytest.mark.crash
@pytest.mark.parametrize("death", DEATHS)
def test_a_killed_clone_is_no_graph_and_goes_on(
    source: Store, target: Store, tmp_path: Path, death: str
) -> None:
    make(source, tmp_path)
    killed(source, target, *DEATHS[death])
    no_graph_yet(target)
    with opened(source) as graph:
        run(graph, 'insert Note { text: "meanwhile" }')
        expected = states(graph)
    report = cloned(source, target)
    fresh = cloned(source, Store(str(tmp_path / "fresh")))
    if death != "first file":
        assert report.files_copied < fresh.files_copied
    assert not any("#" in path.name for path in Path(target.uri).rglob("*"))
    with opened(target) as graph:
        assert states(graph) == expected
        assert graph.verify().violations == ()
        goes_on(graph)


@pytest.mark.crash
@pytest.mark.parametrize("death", DEATHS)
def test_a_killed_update_of_a_clone_shows_the_old_state_or_nothing(
    source: Store, target: Store, tmp_path: Path, death: str
) -> None:
    make(source, tmp_path)
    cloned(source, target)
    with opened(target, read_only=True) as graph:
        former = states(graph)
    with opened(source) as graph:
        for number in range(8):
            run(graph, f'insert Person {{ handle: "new{number}" }}', branch="kid")
        run(graph, 'insert Note { text: "new" }', actor="ana")
        expected = states(graph)
    killed(source, target, *DEATHS[death])
    if DEATHS[death][0] in {Window.CLONE_FILE_COPIED, Window.CLONE_POST_COPY}:
        with opened(target, read_only=True) as graph:
            assert states(graph) == former
    else:
        no_graph_yet(target)
    cloned(source, target)
    with opened(target) as graph:
        assert states(graph) == expected
        assert graph.verify().violations == ()


@pytest.mark.slow
def test_files_that_a_restart_may_have_lost_are_copied_again(small, target: Store) -> None:
    failure = omnigraph.errors.IoFailure("the power is away")
    with activate(Window.CLONE_POST_STATES, Raise(failure)), pytest.raises(omnigraph.errors.IoFailure):
        cloned(Store(small.uri), target)
    marker = json.loads(target.adapter().read_text(CLONE))
    target.adapter().write_text(CLONE, json.dumps(marker | {"phase": "publishing", "boot": "another"}))
    for path in Path(target.uri).rglob("*"):
        if path.is_file() and path.suffix in {".lance", ".manifest"}:
            path.write_bytes(bytes(path.stat().st_size))  # of the right size, and nothing in it
    assert clone_marker.read_marker(target.adapter()).was_cut_off
    cloned(Store(small.uri), target)
    with opened(target) as graph:
        assert graph.export() == small.export()
        assert graph.verify().violations == ()


@pytest.mark.slow
def test_a_cut_off_update_trusts_what_was_published_before(small, target: Store) -> None:
    cloned(Store(small.uri), target)
    run(small, 'insert P { k: "c" }')
    failure = omnigraph.errors.IoFailure("the power is away")
    with activate(Window.CLONE_POST_COPY, Raise(failure)), pytest.raises(omnigraph.errors.IoFailure):
        cloned(Store(small.uri), target)
    marker = json.loads(target.adapter().read_text(CLONE))
    assert marker["phase"] == "copying"
    target.adapter().write_text(CLONE, json.dumps(marker | {"boot": "another"}))
    known = files_of(target)
    report = cloned(Store(small.uri), target)
    assert 0 < report.files_copied < len(known) / 2
    with opened(target) as graph:
        assert graph.export() == small.export()


def test_a_clone_can_be_cancelled_and_goes_on(small, target: Store) -> None:
    stop = Cancellation()
    with activate(Window.CLONE_FILE_COPIED, Callback(lambda _: stop.request())), pytest.raises(Cancelled):
        small.clone(target.uri, cancel=stop)
    with pytest.raises(CloneUnfinished):
        opened(target)
    small.clone(target.uri)
    with opened(target) as graph:
        assert graph.export() == small.export()
