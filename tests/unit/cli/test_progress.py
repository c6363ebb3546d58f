"""Progress of long work: a bar on a terminal, a line a second for programs, nothing in a pipe."""

import io
import json

import pytest

from omnigraph.cli.addressing import Flags, given
from omnigraph.cli.progress import Form, Reporter, chosen_form
from omnigraph.core.errors import UsageError
from omnigraph.core.events import Progress, TableCommitted, Warned


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """A time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def staged(done: int, total: int | None = 10, unit: str = "tasks") -> Progress:
    return Progress("load", "stage", done, total, unit)


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_a_second_and_one_for_the_last_state() -> None:
    stream, clock = io.StringIO(), Clock()
    reporter = Reporter(Form.JSON, stream, clock=clock)
    for done in range(1, 25):  # eight events a second
        reporter(staged(done, 24))
        clock.now += 0.125
    said = [line["progress"]["done"] for line in lines(stream)]
    assert said == [1, 9, 17]
    reporter.close()
    assert lines(stream)[-1]["progress"] == {
        "operation": "load",
        "stage": "stage",
        "done": 24,
        "total": 24,
        "unit": "tasks",
        "rate": 8,
        "seconds_left": 0,
    }


def test_a_line_comes_every_second_also_when_nothing_happens() -> None:
    stream, clock = io.StringIO(), Clock()
    reporter = Reporter(Form.JSON, stream, clock=clock)
    reporter(staged(2))
    for _ in range(24):
        clock.now += 0.125
        reporter.tick()
    assert [line["progress"]["done"] for line in lines(stream)] == [2, 2, 2, 2]
    reporter.close()
    reporter.tick()
    assert len(lines(stream)) == 4


def test_rate_and_time_left_belong_to_a_stage() -> None:
    stream, clock = io.StringIO(), Clock()
    reporter = Reporter(Form.JSON, stream, clock=clock)
    reporter(staged(0, 100, "bytes"))
    clock.now += 2
    reporter(staged(20, 100, "bytes"))
    clock.now += 1
    reporter(Progress("load", "check ids", 5, None, "tasks"))
    first, second, third = (line["progress"] for line in lines(stream))
    assert (first["rate"], first["seconds_left"]) == (None, None)
    assert (second["rate"], second["seconds_left"]) == (10, 8)
    assert (third["rate"], third["seconds_left"], third["total"]) == (None, None, None)


def test_warnings_are_lines_of_the_same_kind() -> None:
    stream = io.StringIO()
    Reporter(Form.JSON, stream, clock=Clock())(Warned("careful", "it is late"))
    assert lines(stream) == [{"warning": {"message": "careful", "detail": "it is late"}}]


@pytest.mark.parametrize("form", [Form.AUTO, Form.BAR, Form.NONE])
def test_a_pipe_gets_warnings_only(form: Form) -> None:
    stream, clock = io.StringIO(), Clock()
    reporter = Reporter(form, stream, clock=clock)
    for done in range(10):
        reporter(staged(done))
        clock.now += 5
        reporter.tick()
    reporter(Warned("careful", "it is late"))
    reporter.close()
    assert stream.getvalue() == "warning: careful: it is late\n"


@pytest.mark.parametrize(("form", "quiet"), [(Form.NONE, False), (Form.AUTO, True)])
def test_a_terminal_stays_quiet_when_asked(form: Form, *, quiet: bool) -> None:
    stream, clock = Terminal(), Clock()
    reporter = Reporter(form, stream, clock=clock, quiet=quiet)
    for done in range(10):
        reporter(staged(done))
        clock.now += 5
    reporter.close()
    assert stream.getvalue() == ""


def test_a_bar_has_amount_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    stream, clock = Terminal(), Clock()
    reporter = Reporter(Form.AUTO, stream, clock=clock)
    reporter(staged(0, 4_000_000, "bytes"))
    assert stream.getvalue() == ""  # most work ends before anybody would read a bar
    clock.now += 2
    reporter(staged(1_000_000, 4_000_000, "bytes"))
    drawn = stream.getvalue()
    assert "load: stage" in drawn
    assert "1.0 MB/4.0 MB" in drawn
    assert "500.0 kB/s" in drawn
    assert "0:06 left" in drawn
    clock.now += 0.01
    reporter(staged(1_100_000, 4_000_000, "bytes"))
    assert stream.getvalue() == drawn  # not drawn more often than anybody sees
    reporter.close()


def test_a_warning_is_not_drawn_into_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    stream, clock = Terminal(), Clock()
    reporter = Reporter(Form.BAR, stream, clock=clock, quiet=True)
    clock.now += 1
    reporter(Progress("index", "build node:[b]Person", 1, 4, "indexes"))
    assert "build node:[b]Person" in stream.getvalue()
    before = len(stream.getvalue())
    reporter(Warned("careful"))
    after = stream.getvalue()[before:]
    assert after.endswith("warning: careful\n")
    assert "\x1b[2K" in after.split("warning")[0]  # the line of the bar was erased first
    reporter.close()


def test_other_events_are_no_progress() -> None:
    stream = io.StringIO()
    reporter = Reporter(Form.JSON, stream, clock=Clock())
    reporter(TableCommitted("node:Person", 2))
    reporter.tick()
    reporter.close()
    assert stream.getvalue() == ""


def test_an_unknown_form_is_refused() -> None:
    token = given.set(Flags(progress="loud"))
    try:
        with pytest.raises(UsageError, match="--progress takes auto, bar, json, none, not 'loud'"):
            chosen_form()
    finally:
        given.reset(token)
