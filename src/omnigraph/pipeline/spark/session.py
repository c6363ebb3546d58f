"""The one Spark session of a process: started lazily, quiet, shared, cancellable.

Only work that needs Spark calls `spark_runtime`. A caller may hand in its own session; then nothing here
starts or stops anything.
"""

import atexit
import contextlib
import itertools
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from omnigraph.core.errors import InternalError, IoFailure, OmnigraphError
from omnigraph.core.events import Progress, Warned, emit
from omnigraph.core.ids import new_ulid
from omnigraph.core.settings import Settings
from omnigraph.pipeline.spark.java import Java, find_java
from omnigraph.pipeline.spark.launch import LOOPBACK, Jvm, end_with_us, ending, launch, start_archive_build
from omnigraph.pipeline.spark.leftovers import LEFTOVERS

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Result = TypeVar("Result")

DEFAULT_MASTER: Final = "local[*,3]"
_CANCEL_SECONDS_MAX: Final = 10.0
_POLL_SECONDS: Final = 0.1
_START_ENDS_SECONDS_MAX: Final = 1.0
_STANDALONE: Final = "spark://"
_CONNECT: Final = "sc://"
_CONNECT_PORT: Final = 15002
_PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
_MASTER_SECONDS_MAX: Final = 5.0
"""How long the address of a master may take to accept a connection."""
_NOISY_LOGGERS: Final = ("py4j", "py4j.clientserver", "DataFrameQueryContextLogger", "SQLQueryContextLogger")

_lock: Final = threading.Lock()
_counter: Final = itertools.count(1)


class _Current:
    """The process-wide runtime; a class, so that the name is never rebound from a function."""

    runtime: "SparkRuntime | None" = None


@dataclass
class SparkRuntime:
    """A running Spark session and what is needed to drive and end it. Thread-safe."""

    session: "SparkSession | None"
    owned: bool
    """False when the caller brought the session: it is never stopped here."""
    own_context: "SparkContext | None" = None
    """A context whose session is made when somebody asks for one: of a JVM of our own, or the caller's."""
    log: Path | None = None
    jvm: Jvm | None = None
    java: Java | None = None
    scratch: Path | None = None
    start_seconds: float = 0.0
    failed: bool = field(default=False, init=False)
    _making: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    @property
    def spark(self) -> "SparkSession":
        """The session. A load has no use for it, and the JVM sets up its SQL for a second."""
        with self._making:
            if self.session is None:
                from pyspark.sql import SparkSession  # noqa: PLC0415

                self.session = SparkSession(cast("Any", self.own_context))
            return self.session

    @property
    def context(self) -> "SparkContext":
        """The context; not for a session of Spark Connect."""
        return self.spark.sparkContext if self.own_context is None else self.own_context

    @property
    def remote(self) -> bool:
        """True for a Spark Connect session, which has no context of its own."""
        return self.own_context is None and not hasattr(self.spark, "_jsparkSession")

    @property
    def master(self) -> str:
        """Where the tasks run."""
        return str(self.spark.conf.get("spark.master", "") if self.remote else self.context.master)

    def run(
        self, action: Callable[[], Result], *, operation: str, stage: str, total: int | None = None
    ) -> Result:
        """Run one Spark action in a worker thread and report its finished tasks as `Progress`.

        An interrupt of the waiting thread cancels the action's jobs before it is raised again, so no task
        keeps staging after the caller was told "interrupted".
        """
        tag = f"omnigraph-{new_ulid()}"
        box: dict[str, Any] = {}
        done = threading.Event()

        def body() -> None:
            try:
                with self._tagged(tag):
                    box["value"] = action()
            except BaseException as error:  # noqa: BLE001 - carried to the waiting thread
                box["error"] = error
            finally:
                done.set()

        # An Event and not Thread.join: an interrupted join marks the thread as ended while it still runs.
        threading.Thread(target=body, name=tag, daemon=True).start()
        try:
            self._wait(done, tag, operation, stage, total)
        except BaseException:
            self._cancel(tag)
            done.wait(_CANCEL_SECONDS_MAX)
            raise
        if "error" in box:
            self.failed = True
            if self.log is not None:
                LEFTOVERS.keep(self.log)
            raise translated(box["error"], self.log) from box["error"]
        if total is not None:
            emit(Progress(operation=operation, stage=stage, done=total, total=total, unit="tasks"))
        return box["value"]

    def _wait(self, done: threading.Event, tag: str, operation: str, stage: str, total: int | None) -> None:
        """Wait and report. Only this thread is interrupted, so it never talks to the JVM itself."""
        counted = [0]

        def count() -> None:
            while not done.wait(_POLL_SECONDS):
                counted[0] = self._finished_tasks(tag) or counted[0]

        threading.Thread(target=count, name=f"{tag}-progress", daemon=True).start()
        shown = 0
        while not done.wait(_POLL_SECONDS):
            if counted[0] != shown:
                shown = counted[0]
                emit(Progress(operation=operation, stage=stage, done=shown, total=total, unit="tasks"))

    @contextlib.contextmanager
    def _tagged(self, tag: str) -> Generator[None]:
        if self.remote:
            self.spark.addTag(tag)
            try:
                yield
            finally:
                self.spark.removeTag(tag)
            return
        context = self.context
        context.addJobTag(tag)
        try:
            yield
        finally:
            context.removeJobTag(tag)

    def _cancel(self, tag: str) -> None:
        """Cancel the jobs of a tag, from a thread whose connection no interrupt has cut."""

        def cancel() -> None:
            with contextlib.suppress(Exception):  # the session may be gone; the interrupt is what matters
                if self.remote:
                    self.spark.interruptTag(tag)
                else:
                    self.context.cancelJobsWithTag(tag)

        threading.Thread(target=cancel, name=f"{tag}-cancel", daemon=True).start()

    def _finished_tasks(self, tag: str) -> int | None:
        if self.remote:
            return None
        try:
            context: Any = self.context
            jobs = context._jsc.sc().statusTracker().getJobIdsForTag(tag)  # noqa: SLF001
            tracker = context.statusTracker()
            finished = 0
            for job in list(jobs):
                info = tracker.getJobInfo(int(job))
                for stage_id in info.stageIds if info is not None else ():
                    stage = tracker.getStageInfo(stage_id)
                    finished += stage.numCompletedTasks if stage is not None else 0
        except Exception:  # noqa: BLE001 - progress is decoration; the action itself reports failures
            return None
        return finished

    def stop(self) -> None:
        """End the session if this module started it. A JVM of our own on this machine is simply ended."""
        with _lock:
            if _Current.runtime is self:
                _Current.runtime = None
        if not self.owned:
            return
        with contextlib.suppress(Exception):  # a lost JVM cannot be stopped more than it is
            (self.session or self.context).stop()
        if self.jvm is not None:
            self.jvm.stop()
        self.tidy()

    def tidy(self) -> None:
        """Take away the files of a session that has ended; the log of one that failed stays."""
        if self.scratch is not None:
            LEFTOVERS.remove(self.scratch)
        if self.log is not None and not self.failed:
            LEFTOVERS.remove(self.log)


def spark_runtime(
    settings: Settings | None = None, *, session: "SparkSession | None" = None, quick_start: bool = False
) -> SparkRuntime:
    """The process's Spark, started now if it does not run yet.

    Order: `session` as given; the runtime already started; a session the process already has; a new one at
    `settings.spark_master`. `quick_start` shapes a new JVM for a short command.
    """
    if session is not None:
        return SparkRuntime(session=session, owned=False)
    with _lock:
        if _Current.runtime is not None and _alive(_Current.runtime):
            return _Current.runtime
        settings = settings or Settings.from_environment()
        runtime = _adopted() or _started(settings, quick_start=quick_start)
        _Current.runtime = runtime
        return runtime


def start_early(settings: Settings, *, quick_start: bool) -> None:
    """Begin to start Spark beside what the caller does next; `spark_runtime` then waits for the rest.

    A failure is not reported here: the next call of `spark_runtime` tries again and raises it.
    """

    def start() -> None:
        with contextlib.suppress(Exception):
            spark_runtime(settings, quick_start=quick_start)

    thread = threading.Thread(target=start, name="omnigraph-spark-start", daemon=True)
    # Runs after the JVM was ended: the thread then takes away its directories.
    atexit.register(thread.join, _START_ENDS_SECONDS_MAX)
    atexit.register(end_with_us)  # runs first
    thread.start()


def _alive(runtime: SparkRuntime) -> bool:
    if runtime.jvm is not None and runtime.jvm.process.poll() is not None:
        return False
    if runtime.remote:
        return True
    context: Any = runtime.context
    return context._jsc is not None  # noqa: SLF001


def _adopted() -> SparkRuntime | None:
    """A session that the process made itself: a second context in one process is not possible."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    active = SparkSession.getActiveSession()
    if active is not None:
        return SparkRuntime(session=active, owned=False)
    # A session is active in the thread that made it; its context is there for all of them.
    known: Any = SparkContext
    context = known._active_spark_context  # noqa: SLF001
    return None if context is None else SparkRuntime(session=None, owned=False, own_context=context)


def _started(settings: Settings, *, quick_start: bool) -> SparkRuntime:
    began = time.monotonic()
    master = settings.spark_master or DEFAULT_MASTER
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    refuse_silent_master(master)
    if master.startswith(_CONNECT):
        from pyspark.sql import SparkSession  # noqa: PLC0415

        builder: Any = SparkSession.builder
        remote = builder.remote(master).config(map=dict(settings.spark_conf)).getOrCreate()
        return SparkRuntime(session=remote, owned=True, start_seconds=time.monotonic() - began)
    scratch = LEFTOVERS.add(Path(tempfile.mkdtemp(prefix="omnigraph-spark-")))
    log = LEFTOVERS.add(Path(tempfile.gettempdir()) / f"omnigraph-spark-{os.getpid()}-{next(_counter)}.log")
    conf = base_conf(master, str(scratch)) | dict(settings.spark_conf)
    java = find_java()
    jvm: Jvm | None = None
    try:
        memory = conf.get("spark.driver.memory", "1g")
        try:
            jvm = launch(java, conf, log=log, memory=memory, quick_start=quick_start)
        except IoFailure as refused:
            emit(Warned("Java did not start directly; trying Spark's own launcher", refused.message))
        context = attach(jvm, conf) if jvm is not None else attach_stock(conf, java, log)
    except BaseException as error:
        if jvm is not None:
            jvm.stop(1.0)
        LEFTOVERS.remove(scratch)
        if not ending():  # else nobody will be told where it is
            LEFTOVERS.keep(log)
        known = translated(error, log, f"start on '{master}'")
        if known is error:
            raise
        raise known from error
    runtime = SparkRuntime(
        session=None,
        owned=True,
        own_context=context,
        log=log,
        jvm=jvm,
        java=java,
        scratch=scratch,
        start_seconds=time.monotonic() - began,
    )
    atexit.register(_at_exit, runtime)
    return runtime


def refuse_silent_master(master: str) -> None:
    """Raise IoFailure when nobody listens at the address of a standalone master or of a Connect server.

    Spark itself would try for a minute or more, and then fail with whatever uses the session first.
    """
    what, named = "Spark master", master
    if master.startswith(_CONNECT):
        if any(os.environ.get(name) for name in _PROXIES):
            return  # what cannot be reached from here may be reached through a proxy
        # What follows the address may be a secret.
        what, named = "Spark Connect server", master.partition("/;")[0].rstrip("/")
        address = named.removeprefix(_CONNECT)
        has_port = address.rpartition(":")[2].isdigit()
        addresses = [address if has_port else f"{address}:{_CONNECT_PORT}"]
    elif master.startswith(_STANDALONE):
        addresses = master.removeprefix(_STANDALONE).split(",")
    else:
        return
    reason = "no host and port"
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _MASTER_SECONDS_MAX).close()
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        else:
            return  # one of several is enough: they know which of them leads
    raise IoFailure(
        f"no {what} answers at '{named}' ({reason})",
        hint="start it, or name another one with --spark-master or OMNIGRAPH_SPARK_MASTER",
    )


def _not_from_the_gateway(record: logging.LogRecord) -> bool:
    """Whether a record of the root logger may be shown: not what the gateway says about a JVM we ended."""
    return "py4j" not in record.pathname


def _at_exit(runtime: SparkRuntime) -> None:
    """End the JVM without waiting for it, and only now train the archive: it must not slow the work down."""
    jvm, java = runtime.jvm, runtime.java
    if jvm is None:
        return
    if jvm.process.poll() is not None:
        runtime.tidy()
        return
    local = runtime.master.startswith("local")
    # Objects the JVM holds for us are let go of while the process ends; the gateway would log, through the
    # root logger, that nobody answers any more.
    logging.getLogger().addFilter(_not_from_the_gateway)
    if local:
        jvm.process.kill()
        jvm.process.wait()
        runtime.tidy()
    else:
        runtime.stop()
    if java is not None:
        start_archive_build(java)


def base_conf(master: str, scratch: str) -> dict[str, str]:
    """What every session of ours is started with; settings and the caller may change any of it."""
    # On this machine nobody else needs to reach the driver; a cluster elsewhere must find its address.
    here = master.startswith("local") or "//127.0.0.1" in master or "//localhost" in master
    loopback = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK} if here else {}
    return loopback | {
        "spark.master": master,
        "spark.app.name": "omnigraph",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.local.dir": scratch,
        "spark.pyspark.python": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }


def attach(jvm: Jvm, conf: Mapping[str, str]) -> "SparkContext":
    """Make this process the driver of a JVM that was just launched."""
    from pyspark import SparkContext  # noqa: PLC0415

    gateway = {"PYSPARK_GATEWAY_PORT": str(jvm.port), "PYSPARK_GATEWAY_SECRET": jvm.secret}
    with _driver_surroundings(conf, gateway):
        return _quiet(SparkContext(conf=_spark_conf(conf)))


def attach_stock(conf: Mapping[str, str], java: Java, log: Path) -> "SparkContext":
    """The context that Spark's own launcher starts; its output goes to the log too."""
    from pyspark import SparkContext  # noqa: PLC0415

    # PySpark leaves this function without types.
    from pyspark.java_gateway import (  # noqa: PLC0415
        launch_gateway,  # pyright: ignore[reportUnknownVariableType]
    )

    spark_conf = _spark_conf(conf)
    with log.open("ab") as output, _driver_surroundings(conf, {"JAVA_HOME": str(java.home)}):
        gateway = launch_gateway(spark_conf, {"stdout": output, "stderr": output})
        return _quiet(SparkContext(gateway=gateway, conf=spark_conf))


def _spark_conf(conf: Mapping[str, str]) -> Any:
    from pyspark import SparkConf  # noqa: PLC0415

    spark_conf = SparkConf(loadDefaults=False)
    for name, value in conf.items():
        spark_conf.set(name, value)
    return spark_conf


@contextlib.contextmanager
def _driver_surroundings(conf: Mapping[str, str], names: Mapping[str, str]) -> Generator[None]:
    """Environment and signal handling while a driver attaches; both are as before afterwards."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    previous = signal.getsignal(signal.SIGINT) if in_main_thread else None
    # Without PYSPARK_PYTHON the workers run whatever `python3` is on PATH.
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    wanted = {**names, "PYSPARK_PYTHON": conf.get("spark.pyspark.python", python)}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        # Children of this process must not find a way to our JVM, and Spark's own interrupt handler
        # re-enters a blocked socket and cancels nothing.
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if in_main_thread:
            signal.signal(signal.SIGINT, previous)


def _quiet(context: Any) -> "SparkContext":
    # The server would print a traceback when the JVM ends before it does.
    context._accumulatorServer.handle_error = _ignore_lost_connection  # noqa: SLF001
    return context


def _ignore_lost_connection(_request: Any, _address: Any) -> None:
    """The JVM at the other end is gone: nothing is left to report to it."""


def translated(error: BaseException, log: Path | None, what: str = "finish the work") -> BaseException:
    """Our error for what a Spark action raised: the useful line, and where the whole story is."""
    if isinstance(error, OmnigraphError) or not isinstance(error, Exception):
        return error
    text = str(error).strip()
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    condition = getattr(error, "getCondition", lambda: None)()
    useful = next(
        (line for line in reversed(lines) if _names_an_error(line)), lines[0] if lines else repr(error)
    )
    where = f" (log: {log})" if log is not None else ""
    label = f"[{condition}] " if condition and condition not in useful else ""
    return InternalError(f"Spark could not {what}: {label}{useful}{where}")


def _names_an_error(line: str) -> bool:
    head = line.split(":", 1)[0]
    return (
        ":" in line
        and " " not in head
        and (head.endswith(("Error", "Exception")) or head.startswith("omnigraph."))
    )
