"""What long work says on stderr while it runs: a bar for people, lines for programs, nothing in a pipe."""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Generator
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

from omnigraph.cli.addressing import given
from omnigraph.core.errors import UsageError
from omnigraph.core.events import Event, Progress, Warned, listen
from omnigraph.core.late_dataclass import dataclass

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

TICK_SECONDS: Final = 0.1
LINE_SECONDS: Final = 1.0
BAR_AFTER_SECONDS: Final = 0.5
"""Work that ends sooner needs no bar, and the library that draws it takes a tenth of that to load."""

Clock = Callable[[], float]


class Form(StrEnum):
    """How progress is said."""

    AUTO = "auto"
    BAR = "bar"
    JSON = "json"
    NONE = "none"


def chosen_form() -> Form:
    """What `--progress` says. Raises UsageError."""
    word = given.get().progress or Form.AUTO
    try:
        return Form(word)
    except ValueError:
        raise UsageError(f"--progress takes {', '.join(Form)}, not '{word}'") from None


@dataclass(slots=True)
class Stage:
    """The newest event of a stage, and when and where the stage was first seen."""

    event: Progress
    began: float
    began_at: int

    def follows(self, event: Progress) -> bool:
        """Whether the event is about the same stage."""
        mine = self.event
        return (mine.operation, mine.stage, mine.unit) == (event.operation, event.stage, event.unit)

    def rate(self, now: float) -> float | None:
        """Units a second since the stage was first seen; None while nothing is known."""
        seconds, done = now - self.began, self.event.done - self.began_at
        return done / seconds if seconds > 0 and done > 0 else None

    def seconds_left(self, now: float) -> float | None:
        """How long the rest takes at that rate."""
        rate, total = self.rate(now), self.event.total
        return None if rate is None or total is None else max(0, total - self.event.done) / rate


class Shown(Protocol):
    """One way of saying how far the work is. Its owner calls it from one thread at a time."""

    def show(self, stage: Stage, now: float) -> None:
        """Say the state, unless it was said a moment ago."""
        ...

    def clear(self) -> None:
        """Leave the terminal as it was."""
        ...

    def warn(self, warning: Warned) -> None:
        """Say a warning, which is never held back."""
        ...


class Silence:
    """Warnings, and nothing else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, stage: Stage, now: float) -> None:
        """See `Shown.show`."""

    def clear(self) -> None:
        """See `Shown.clear`."""

    def warn(self, warning: Warned) -> None:
        """See `Shown.warn`."""
        detail = f": {warning.detail}" if warning.detail else ""
        _write(self._stream, f"warning: {warning.message}{detail}\n")


class Lines:
    """One JSON object a line, at most one a second, and one for the last state."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._said = float("-inf")
        self._unsaid: dict[str, Any] | None = None

    def show(self, stage: Stage, now: float) -> None:
        """See `Shown.show`."""
        event, rate, left = stage.event, stage.rate(now), stage.seconds_left(now)
        self._unsaid = {
            "operation": event.operation,
            "stage": event.stage,
            "done": event.done,
            "total": event.total,
            "unit": event.unit,
            "rate": None if rate is None else round(rate, 3),
            "seconds_left": None if left is None else round(left, 1),
        }
        if now - self._said >= LINE_SECONDS:
            self.clear()
            self._said = now

    def clear(self) -> None:
        """See `Shown.clear`."""
        if self._unsaid is not None:
            self._say({"progress": self._unsaid})
            self._unsaid = None

    def warn(self, warning: Warned) -> None:
        """See `Shown.warn`."""
        self._say({"warning": {"message": warning.message, "detail": warning.detail}})

    def _say(self, value: Any) -> None:
        _write(self._stream, json.dumps(value, ensure_ascii=False) + "\n")


class Bar(Silence):
    """One bar that is drawn over and over on a terminal, with the rate and the time left."""

    def __init__(self, stream: TextIO, now: float) -> None:
        super().__init__(stream)
        self._from = now + BAR_AFTER_SECONDS
        self._drawn = float("-inf")
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def show(self, stage: Stage, now: float) -> None:
        """See `Shown.show`."""
        if now < self._from or now - self._drawn < TICK_SECONDS:
            return
        self._drawn = now
        if self._bar is None or self._task is None:
            self._bar = _drawing(self._stream)
            self._bar.start()
            self._task = self._bar.add_task("", amount="", rate="", left="")
        event, rate, left = stage.event, stage.rate(now), stage.seconds_left(now)
        self._bar.update(
            self._task,
            description=f"{event.operation}: {event.stage}",
            completed=event.done,
            total=event.total,
            amount=_amount(event),
            rate="" if rate is None else f"{_said(rate, event.unit)}/s",
            left="" if left is None else f"{_clock(left)} left",
        )
        self._bar.refresh()

    def clear(self) -> None:
        """See `Shown.clear`."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None

    def warn(self, warning: Warned) -> None:
        """See `Shown.warn`."""
        self.clear()
        super().warn(warning)


def _drawing(stream: TextIO) -> "RichProgress":
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as RichProgress

    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *(TextColumn("{task.fields[" + name + "]}", markup=False) for name in ("amount", "rate", "left")),
        console=Console(file=stream, highlight=False, markup=False),
        transient=True,
        auto_refresh=False,
    )


def _amount(event: Progress) -> str:
    done = _said(event.done, event.unit, bare=event.total is not None and event.unit != "bytes")
    return done if event.total is None else f"{done}/{_said(event.total, event.unit)}"


def _said(number: float, unit: str, *, bare: bool = False) -> str:
    """A number with its unit as people write it: bytes in thousands, what is small with a digit after it."""
    if unit == "bytes":
        scale = next((power for power in (3, 2, 1) if number >= 1000**power), 0)
        return f"{number / 1000**scale:,.1f} {('B', 'kB', 'MB', 'GB')[scale]}"
    digits = 1 if number < 10 and number != int(number) else 0
    return f"{number:,.{digits}f}" + ("" if bare else f" {unit}")


def _clock(seconds: float) -> str:
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


class Reporter:
    """Hears the events of a command and says them in one form. Any thread may call it."""

    def __init__(
        self, form: Form, stream: TextIO, *, clock: Clock = time.monotonic, quiet: bool = False
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._stage: Stage | None = None
        self._shown = _shown(form, stream, clock(), quiet=quiet)

    @property
    def silent(self) -> bool:
        """Whether there is nothing to say while nothing happens."""
        return type(self._shown) is Silence

    def __call__(self, event: Event) -> None:
        """Hear one event."""
        if isinstance(event, Warned):
            with self._lock:
                self._shown.warn(event)
        elif isinstance(event, Progress):
            with self._lock:
                self._hear(event)

    def _hear(self, event: Progress) -> None:
        now = self._clock()
        if self._stage is not None and self._stage.follows(event):
            self._stage.event = event
        else:
            self._stage = Stage(event, now, event.done)
        self._shown.show(self._stage, now)

    def tick(self) -> None:
        """Time has passed: what is known is said again."""
        with self._lock:
            if self._stage is not None:
                self._shown.show(self._stage, self._clock())

    def close(self) -> None:
        """Say the last state and leave the terminal as it was."""
        with self._lock:
            self._shown.clear()
            self._stage = None


def _shown(form: Form, stream: TextIO, now: float, *, quiet: bool) -> Shown:
    if form is Form.JSON:
        return Lines(stream)
    wanted = form is Form.BAR or (form is Form.AUTO and not quiet)
    return Bar(stream, now) if wanted and stream.isatty() else Silence(stream)


@contextlib.contextmanager
def reporting(*, quiet: bool = False) -> Generator[None]:
    """Say what everything inside reports, in the form that `--progress` names."""
    reporter = Reporter(chosen_form(), sys.stderr, quiet=quiet)
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(TICK_SECONDS):
            reporter.tick()

    try:
        if not reporter.silent:
            threading.Thread(target=tick, name="omnigraph-progress", daemon=True).start()
        with listen(reporter, everywhere=True):
            yield
    finally:
        ended.set()
        reporter.close()


def _write(stream: TextIO, text: str) -> None:
    with contextlib.suppress(
        BrokenPipeError
    ):  # nobody reads our notes; the result and the status still count
        stream.write(text)
        stream.flush()
