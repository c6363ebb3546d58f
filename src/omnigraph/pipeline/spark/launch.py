"""Start Spark's JVM directly: one JVM, output in a log file, classes from an archive when there is one."""

import atexit
import contextlib
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from omnigraph.core.errors import InternalError, IoFailure
from omnigraph.pipeline.spark.java import Java, archive_path, cache_directory, java_options
from omnigraph.pipeline.spark.leftovers import LEFTOVERS

START_SECONDS_MAX: Final = 120.0
LOOPBACK: Final = "127.0.0.1"
ARCHIVE_SETTING: Final = "OMNIGRAPH_SPARK_ARCHIVE"
"""`auto` (default): use the archive and build it when missing; `use`: never build; `off`: neither."""


@dataclass(frozen=True, slots=True)
class Jvm:
    """A JVM that waits for a driver to attach. It ends when `process.stdin` closes."""

    process: "subprocess.Popen[bytes]"
    port: int
    secret: str
    log: Path
    archive: Path | None
    """The class archive it was started with."""

    def stop(self, seconds_max: float = 10.0) -> None:
        """Let the JVM end, and end it if it does not."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def spark_home() -> Path:
    """The directory of the installed PySpark, which is not loaded for it: the JVM can start meanwhile."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise InternalError("pyspark is not installed")
    return Path(found.origin).parent


def archive_for(java: Java) -> Path:
    """Where the class archive of this Java and the installed PySpark is kept."""
    version = importlib.metadata.version("pyspark")
    return archive_path(java, spark_home=spark_home(), spark_version=version, cache=cache_directory())


def launch(
    java: Java,
    conf: Mapping[str, str],
    *,
    log: Path,
    memory: str = "1g",
    quick_start: bool = False,
    archive_at_exit: Path | None = None,
) -> Jvm:
    """Start the JVM and wait until a driver can attach.

    `quick_start` stops the JIT at its first level: right for short commands, several times slower for long
    work inside the JVM. `archive_at_exit` makes the JVM write its loaded classes there when it ends.
    Raises IoFailure with the end of the log when the JVM does not come up.
    """
    home = spark_home()
    archive = _usable_archive(java) if archive_at_exit is None else None
    flags = ["-XX:+UseSerialGC", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:disable"]
    if archive_at_exit is not None:
        flags.append(f"-XX:ArchiveClassesAtExit={archive_at_exit}")
    elif archive is not None:
        flags.append(f"-XX:SharedArchiveFile={archive}")
    if quick_start:
        flags.append("-XX:TieredStopAtLevel=1")
    command = [str(java.executable), "-cp", f"{home}/conf:{home}/jars/*", f"-Xmx{memory}"]
    command += [*java_options(java), *flags, "org.apache.spark.deploy.SparkSubmit"]
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    exchange = LEFTOVERS.add(Path(tempfile.mkdtemp(prefix="omnigraph-jvm-")))
    try:
        on_loopback = conf.get("spark.driver.host") == LOOPBACK
        gateway = exchange / "gateway"
        process = _start([*command, "pyspark-shell"], home, gateway, log, on_loopback=on_loopback)
        try:
            _load_beside_the_start()

            port, secret = _wait_for_gateway(process, gateway, log)
        except BaseException:
            process.kill()
            process.communicate()
            raise
    finally:
        LEFTOVERS.remove(exchange)
    return Jvm(process=process, port=port, secret=secret, log=log, archive=archive)


def _load_beside_the_start() -> None:
    """Load what a driver needs next while the JVM comes up."""
    importlib.import_module("pyspark.sql")


def _start(
    command: list[str], home: Path, gateway: Path, log: Path, *, on_loopback: bool
) -> "subprocess.Popen[bytes]":
    environment = os.environ | {
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(gateway),
        "SPARK_HOME": str(home),
        "SPARK_CONNECT_MODE": "0",
        "SPARK_SCALA_VERSION": "2.13",
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "LANCE_LOG": os.environ.get("LANCE_LOG", "error"),
        # A worker's warnings would otherwise be mixed into the log once per task.
        "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore"),
    }
    if on_loopback:
        environment.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    log.parent.mkdir(parents=True, exist_ok=True)
    # Before the start: a thread that starts a JVM may find the handlers run already when it comes back.
    atexit.register(end_with_us)
    with log.open("ab") as output, _STARTING:
        if ending():
            raise InternalError("this process ends")
        # A session of its own: Ctrl-C reaches our process only. `preexec_fn` would fork with Lance loaded.
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
        _STARTED.append(process)
    return process


_STARTED: "Final[list[subprocess.Popen[bytes]]]" = []
_STARTING: Final = threading.Lock()
"""Held while a JVM is started: a process that ends waits for it, and then ends the JVM as well. A thread that
starts one is not run any more once the handlers at exit are through.
"""


class _Ending:
    """Set once this process ends; a class, so that the name is never rebound from a function."""

    now = False


def ending() -> bool:
    """Whether this process is ending and has ended its JVM."""
    return _Ending.now


def end_with_us() -> None:
    """End the JVM with this process, however it ends; also a JVM that nobody attached to yet.

    A thread that starts one registers this in vain once the handlers at exit run, so whoever makes such a
    thread registers it too.
    """
    logging.getLogger().addFilter(is_not_of_the_bridge)
    with _STARTING:
        _Ending.now = True
        for process in _STARTED:
            if process.poll() is None:
                process.kill()
                process.wait()


def is_not_of_the_bridge(record: logging.LogRecord) -> bool:
    """Py4J logs, with a traceback, that the JVM it talks to is gone. That is what an ending process wants."""
    return "py4j" not in Path(record.pathname).parts


def _wait_for_gateway(process: "subprocess.Popen[bytes]", gateway: Path, log: Path) -> tuple[int, str]:
    """The port and secret that the JVM writes, by rename, once it listens."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while not gateway.is_file():
        if _Ending.now:
            raise InternalError("this process ends")
        if process.poll() is not None:
            raise IoFailure(f"Java ended with status {process.returncode}: {useful_line(log)} (log: {log})")
        if time.monotonic() > deadline:
            raise IoFailure(f"Java did not come up within {START_SECONDS_MAX:.0f} s (log: {log})")
        time.sleep(0.01)
    content = gateway.read_bytes()
    port, length = struct.unpack("!ii", content[:8])
    return port, content[8 : 8 + length].decode()


def useful_line(log: Path) -> str:
    """The line of the log that says why the JVM ended."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-200:]
    except OSError:
        return "no log was written"
    telling = [line for line in lines if "Exception" in line or "Error" in line or "rror:" in line]
    return (telling or lines or ["no output"])[-1].strip()


def _usable_archive(java: Java) -> Path | None:
    if os.environ.get(ARCHIVE_SETTING, "auto") == "off":
        return None
    archive = archive_for(java)
    return archive if archive.is_file() else None


def start_archive_build(java: Java) -> "subprocess.Popen[bytes] | None":
    """Build the missing class archive in a child of low priority; None when it is there or not wanted.

    The child outlives this process. One build at a time: it takes a lock file, stale after an hour.
    """
    if os.environ.get(ARCHIVE_SETTING, "auto") != "auto" or archive_for(java).is_file():
        return None
    return subprocess.Popen(
        [sys.executable, "-m", "omnigraph.pipeline.spark.archive"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
