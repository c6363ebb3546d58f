"""A graph that is moved, copied or mounted elsewhere shows every state, goes on, and reads nothing it left."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import omnigraph
from graphs import FAST, run
from omnigraph.core.failpoints import Window
from opened_files import run_told
from stores import Store, s3_store
from travelling import die, goes_on, make, opened, states

CHILD = Path(__file__).with_name("travel_child.py")
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(CHILD.parents[1]), *sys.path])}
HALF = {
    "rolled back": (Window.MUTATION_POST_TABLE_COMMIT, "kill"),
    "rolled forward": (Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, "kill"),
}
"""What becomes of the write whose sidecar travels along."""


@pytest.fixture
def origin(tmp_path: Path) -> Store:
    """The place a graph is made in, and leaves."""
    (tmp_path / "from").mkdir()
    return Store(str(tmp_path / "from" / "g"))


def left(store: Store, scratch: Path, half: str = "rolled back") -> dict[str, str]:
    """Make a graph with a pending write; every state it shows."""
    make(store, scratch)
    die(store, *HALF[half][:1], action=HALF[half][1])
    with opened(store, read_only=True) as graph:
        assert len(graph.pending()) == 1
        return states(graph)


def arrives(store: Store, expected: dict[str, str], half: str = "rolled back") -> None:
    with opened(store, read_only=True) as graph:
        assert states(graph) == expected
    with opened(store) as graph:
        # The lease of the dead writer may have come along. Until it is over nobody knows that the writer is
        # dead: a write to another table waits for the lease, and the one after it settles what is left.
        for text in ("waits", "settles"):
            if not graph.recoveries():
                run(graph, f'insert Note {{ text: "{text}" }}')
        (settled,) = graph.recoveries()
        assert settled.recovery_kind.value.lower() == half.replace(" ", "")
        assert {key: rows for key, rows in states(graph).items() if len(key) == 26}.items() >= {
            key: rows for key, rows in expected.items() if len(key) == 26
        }.items()
        goes_on(graph)
    with opened(store) as graph:
        assert graph.verify().violations == ()


@pytest.mark.crash
@pytest.mark.parametrize("half", HALF)
def test_a_moved_graph_goes_on(origin: Store, tmp_path: Path, half: str) -> None:
    expected = left(origin, tmp_path, half)
    (tmp_path / "to").mkdir()
    Path(origin.uri).rename(tmp_path / "to" / "other name")
    arrives(Store(str(tmp_path / "to" / "other name")), expected, half)
    assert not Path(origin.uri).exists()


@pytest.mark.crash
def test_a_copied_graph_goes_on_without_the_original(origin: Store, tmp_path: Path) -> None:
    expected = left(origin, tmp_path)
    subprocess.run(["cp", "-R", origin.uri, str(tmp_path / "copy")], check=True)
    shutil.rmtree(tmp_path / "from")
    arrives(Store(str(tmp_path / "copy")), expected)
    subprocess.run(["cp", "-R", str(tmp_path / "copy"), str(tmp_path / "again")], check=True)
    shutil.rmtree(tmp_path / "copy")
    with omnigraph.open(tmp_path / "again", settings=FAST) as graph:
        assert graph.verify().violations == ()
        assert {key: rows for key, rows in states(graph).items() if key in expected and len(key) == 26} == {
            key: rows for key, rows in expected.items() if len(key) == 26
        }


@pytest.mark.crash
def test_a_copy_opens_no_file_of_the_original(origin: Store, tmp_path: Path) -> None:
    expected = left(origin, tmp_path)
    (tmp_path / "expected.json").write_text(json.dumps(expected))
    shutil.copytree(origin.uri, tmp_path / "copy")
    command = [sys.executable, str(CHILD), str(tmp_path / "copy"), str(tmp_path / "expected.json")]
    command = ["env", f"PYTHONPATH={ENVIRONMENT['PYTHONPATH']}", *command]
    done, opened_there = run_told(command, Path(origin.uri), tmp_path / "trace")
    assert (done.returncode, done.stdout) == (0, "ok"), done.stderr
    assert opened_there == set()
    # The same command where the graph was made: that nothing was told is not for want of listening.
    command[-2] = origin.uri
    done, opened_here = run_told(command, Path(origin.uri), tmp_path / "trace")
    assert (done.returncode, done.stdout) == (0, "ok"), done.stderr
    assert len(opened_here) > 20


def mounted(origin: Store, tmp_path: Path) -> Iterator[tuple[list[str], str]]:
    """A command prefix under which the graph lies in another place only, and that place.

    Where mounts are not allowed: the same directory through a linked parent.
    """
    (tmp_path / "mount").mkdir()
    allowed = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0
    if not allowed:
        (tmp_path / "linked").symlink_to(tmp_path / "from")
        return [], str(tmp_path / "linked" / "g")
    script = 'mount --bind "$0" "$1" && mount -t tmpfs none "$0" && shift 1 && exec "$@"'
    prefix = ["unshare", "-rm", "sh", "-c", script, str(tmp_path / "from"), str(tmp_path / "mount")]
    return prefix, str(tmp_path / "mount" / "g")


@pytest.mark.crash
def test_a_graph_on_another_mount_goes_on(origin: Store, tmp_path: Path) -> None:
    (tmp_path / "expected.json").write_text(json.dumps(left(origin, tmp_path)))
    prefix, place = mounted(origin, tmp_path)
    done = subprocess.run(
        [*prefix, sys.executable, str(CHILD), place, str(tmp_path / "expected.json")],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (done.returncode, done.stdout) == (0, "ok"), done.stderr
    with opened(origin) as graph:
        assert graph.verify().violations == ()


def copied(source: Store, target: Store) -> None:
    """What a tool that copies objects does."""
    there, here = source.adapter(), target.adapter()
    for name in there.sizes():
        here.write_chunks(name, there.read_chunks(name))


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.parametrize(
    ("way", "half"),
    [("s3 to local", "rolled back"), ("local to s3", "rolled back"), ("s3 to s3", "rolled forward")],
)
def test_a_graph_travels_between_a_disk_and_an_object_store(tmp_path: Path, way: str, half: str) -> None:
    source, target = (
        s3_store() if kind == "s3" else Store(str(tmp_path / kind)) for kind in way.split(" to ")
    )
    expected = left(source, tmp_path, half)
    copied(source, target)
    if source.root.is_local:
        shutil.rmtree(source.uri)
    else:
        for name in source.adapter().sizes():
            source.adapter().delete(name)
    arrives(target, expected, half)
