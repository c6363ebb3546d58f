import ast
import inspect
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from omnigraph.core import failpoints
from omnigraph.core.failpoints import (
    EXIT_STATUS,
    Callback,
    InjectedFailure,
    Pass,
    Pause,
    Raise,
    Sequence,
    Window,
    activate,
    failpoint,
    parse_failpoints,
)

SOURCES = Path(inspect.getfile(failpoints)).parents[1]
ANY = Window.MUTATION_POST_TABLE_COMMIT


def test_every_window_has_a_sentence() -> None:
    tree = ast.parse(inspect.getsource(Window))
    body = tree.body[0].body
    followed = dict(zip(body, [*body[1:], None], strict=True))
    silent = [
        node.targets[0].id
        for node, after in followed.items()
        if isinstance(node, ast.Assign)
        and not (
            isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and str(after.value.value).endswith(".")
        )
    ]
    assert silent == []


def calls_of_failpoint() -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", None))
                if name == "failpoint":
                    found.setdefault(str(path.relative_to(SOURCES)), []).append(node.args[0])
    return found


@pytest.mark.slow
def test_no_module_names_a_window_by_a_literal() -> None:
    literals = [
        path
        for path, calls in calls_of_failpoint().items()
        if any(isinstance(arg, ast.Constant) for arg in calls)
    ]
    assert literals == []


def test_every_window_has_its_call() -> None:
    code = "\n".join(path.read_text() for path in SOURCES.rglob("*.py") if path.name != "failpoints.py")
    called = set(re.findall(r"\bWindow\.(\w+)", code))
    assert [window.name for window in Window if window.name not in called] == []


def test_an_inactive_window_does_nothing() -> None:
    for window in Window:
        failpoint(window)


def test_raise_and_end_of_activation() -> None:
    with activate(ANY, Raise()), pytest.raises(InjectedFailure, match=ANY.value):
        failpoint(ANY)
    failpoint(ANY)
    with activate(ANY, Raise(OSError("disk"))), pytest.raises(OSError, match="disk"):
        failpoint(ANY)


def test_one_action_per_window() -> None:
    with activate(ANY, Pass()), pytest.raises(ValueError, match="already"), activate(ANY, Pass()):
        pass


def test_callback_gets_the_window() -> None:
    seen: list[Window] = []
    with activate(ANY, Callback(seen.append)):
        failpoint(ANY)
        failpoint(next(window for window in Window if window is not ANY))
    assert seen == [ANY]


def test_a_sequence_takes_one_step_per_arrival() -> None:
    with activate(ANY, Sequence([Pass(), Raise()])):
        failpoint(ANY)
        with pytest.raises(InjectedFailure):
            failpoint(ANY)
        failpoint(ANY)


def test_pause_holds_a_thread_until_released() -> None:
    done = threading.Event()

    def work() -> None:
        failpoint(ANY)
        done.set()

    with activate(ANY, Pause()) as pause:
        thread = threading.Thread(target=work)
        thread.start()
        pause.wait_until_reached()
        assert not done.is_set()
        pause.release()
        thread.join()
    assert done.is_set()


def test_a_pause_nobody_releases_is_an_error_and_not_a_hang() -> None:
    with activate(ANY, Pause(seconds_max=0.01)), pytest.raises(TimeoutError):
        failpoint(ANY)
    with pytest.raises(TimeoutError):
        Pause(seconds_max=0.01).wait_until_reached()


@pytest.mark.parametrize(
    "text",
    ["no.such.window=exit", f"{ANY.value}=explode", ANY.value, f"{ANY.value}="],
    ids=["window", "action", "bare", "empty"],
)
def test_a_child_told_nonsense_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_failpoints(text)


def run_child(spec: str, arrivals: int) -> subprocess.CompletedProcess[str]:
    code = (
        "from omnigraph.core.failpoints import Window, failpoint\n"
        f"for n in range({arrivals}):\n    print(n, flush=True)\n    failpoint(Window.{ANY.name})\n"
    )
    environment = {**os.environ, "OMNIGRAPH_FAILPOINTS": spec}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )


def test_a_child_dies_where_it_is_told() -> None:
    child = run_child(f" {ANY.value} = pass, exit ;", arrivals=3)
    assert child.returncode == EXIT_STATUS
    assert child.stdout.split() == ["0", "1"]
    assert child.stderr == ""


def test_a_child_is_killed_where_it_is_told() -> None:
    child = run_child(f"{ANY.value}=kill", arrivals=2)
    assert child.returncode == -signal.SIGKILL
    assert child.stdout.split() == ["0"]


def test_a_child_raises_where_it_is_told() -> None:
    child = run_child(f"{ANY.value}=raise", arrivals=1)
    assert child.returncode == 1
    assert "InjectedFailure" in child.stderr
