"""SIGKILL in the midst of many writers: what was acknowledged is there once, nothing is half, keys hold."""

import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import omnigraph
from crash.crowd_child import LIVES, send
from graphs import PEOPLE
from omnigraph.core.failpoints import Callback, Window, activate

CHILD = Path(__file__).with_name("crowd_child.py")
THREADS = 64
CHILD_S_MAX = 300
WINDOWS = [
    Window.RECOVERY_SIDECAR_LIST,
    Window.MUTATION_POST_STAGE_PRE_QUEUE,
    Window.RECOVERY_SIDECAR_WRITE,
    Window.MUTATION_POST_SIDECAR_PRE_COMMIT,
    Window.MUTATION_POST_TABLE_COMMIT,
    Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER,
    Window.PUBLISH_AFTER_STATE_LOAD,
    Window.PUBLISH_RETRYABLE_CONTENTION,
    Window.GRAPH_PUBLISH_AFTER_MANIFEST_COMMIT,
    Window.GRAPH_PUBLISH_BEFORE_COMMIT_APPEND,
    Window.RECOVERY_SIDECAR_DELETE,
]
"""Those that every such write passes, in this order."""
AFTER_MANY_COMMITS = [
    Window.COMMIT_PROJECTION_BEFORE_APPEND,
    Window.ENSURE_INDICES_POST_STAGE_PRE_COMMIT_BTREE,
    Window.OPTIMIZE_POST_COMPACT_PRE_REINDEX,
    Window.OPTIMIZE_POST_PHASE_B_PRE_MANIFEST_COMMIT,
]
"""Those of what is done beside the writes when enough of them have gathered."""
pytestmark = pytest.mark.crash


class Crowd:
    """A graph whose writers are killed again and again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "g"
        omnigraph.init(self._path, schema=PEOPLE).close()

    def kill(self, number: int, window: Window, arrival: int) -> None:
        arguments = [self._path, self._directory, number, window.value, arrival, THREADS]
        done = subprocess.run(
            [sys.executable, str(CHILD), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=CHILD_S_MAX,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr

    @contextmanager
    def beside(self, number: int, threads: int) -> Iterator[None]:
        """Another process writes as well, and outlives what happens meanwhile."""
        arguments = [self._path, self._directory, f"beside-{number}", LIVES, 0, threads]
        other = subprocess.Popen(
            [sys.executable, str(CHILD), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "writing\n"
            yield
        finally:
            _, complaint = other.communicate(timeout=CHILD_S_MAX)
        assert complaint[-700:] == ""
        assert other.returncode == 0

    def _tags(self, name: str) -> set[str]:
        file = self._directory / name
        return set(file.read_text().split()) if file.exists() else set()

    def judge(self, where: str) -> int:
        """Compare what is there with what was acknowledged, then send again what was not; how many that was."""
        sent, acknowledged = self._tags("sent"), self._tags("acked")
        with omnigraph.open(self._path) as graph:
            people, notes = shown(graph)
            assert set(notes) == people, f"{where}: half of a write is there"
            assert not [tag for tag, times in notes.items() if times > 1], f"{where}: written twice"
            assert acknowledged <= people <= sent, (
                f"{where}: an acknowledged write is gone, or one is invented"
            )
            unknown = sorted(sent - acknowledged)
            for tag in unknown:
                assert send(graph, tag).repeated == (tag in people), f"{where}: the key did not hold"
            people, notes = shown(graph)
            assert people == sent
            assert set(notes.values()) <= {1}, where
            assert graph.pending() == ()
            assert graph.verify().ok, where
        for tag in unknown:
            with (self._directory / "acked").open("a") as file:
                file.write(f"{tag}\n")
        return len(unknown)


def shown(graph: omnigraph.Graph) -> tuple[set[str], Counter[str]]:
    people = graph.query("query p() { match { $p: Person } return { $p.name } }")
    notes = graph.query("query n() { match { $n: Note } return { $n.text } }")
    return {row["p.name"] for row in people}, Counter(row["n.text"] for row in notes)


@pytest.mark.parametrize("window", WINDOWS[::3])
def test_a_crowd_of_writers_killed_in_a_window(tmp_path: Path, window: Window) -> None:
    crowd = Crowd(tmp_path)
    for number, arrival in enumerate((1, 4)):
        crowd.kill(number, window, arrival)
        assert crowd.judge(f"{window.value}, arrival {arrival}") > 1


@pytest.mark.parametrize(
    "window",
    [
        Window.MUTATION_POST_STAGE_PRE_QUEUE,
        Window.MUTATION_POST_SIDECAR_PRE_COMMIT,
        Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER,
        Window.RECOVERY_SIDECAR_DELETE,
    ],
)
def test_a_crowd_killed_beside_another_process_leaves_that_one_alone(tmp_path: Path, window: Window) -> None:
    """Both meet at every commit, so each waits for its turn; one dies in the midst of one, and the other one
    finishes or drops its work. Between two tables it could not: then a graph has to be opened anew.
    """
    crowd = Crowd(tmp_path)
    with crowd.beside(0, 8):
        for number, arrival in enumerate((2, 5)):
            crowd.kill(number, window, arrival)
    assert crowd.judge(f"{window.value}, beside another process") > 1


@pytest.mark.torture
@pytest.mark.timeout(3 * 60 * 60)
def test_a_crowd_of_writers_killed_two_hundred_times(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    chosen = random.Random(20)
    windows = [*WINDOWS, *AFTER_MANY_COMMITS]
    rounds, unknown = Counter[str](), 0
    for number in range(200):
        window = windows[number % len(windows)]
        arrival = 1 if window in AFTER_MANY_COMMITS else chosen.randint(1, 12)
        crowd.kill(number, window, arrival)
        unknown += crowd.judge(f"round {number}: {window.value}, arrival {arrival}")
        rounds[window.value] += 1
        print(f"round {number}: {window.value}, {unknown} answers were not known so far", flush=True)
    assert rounds.total() == 200
    assert len(rounds) == len(windows)


def test_every_window_that_such_a_write_passes_is_among_them(tmp_path: Path) -> None:
    seen: list[Window] = []
    with omnigraph.init(tmp_path / "g", schema=PEOPLE) as graph, ExitStack() as heard:
        for window in Window:
            heard.enter_context(activate(window, Callback(seen.append)))
        for number in range(3):
            send(graph, str(number))
    assert set(seen) == set(WINDOWS)
