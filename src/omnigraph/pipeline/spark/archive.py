"""Build the class archive: one training run of Spark whose loaded classes are written at its end."""

import contextlib
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from omnigraph.pipeline.spark.java import Java, find_java
from omnigraph.pipeline.spark.launch import archive_for, launch

LOCK_STALE_SECONDS: Final = 3600.0
_DUMP_SECONDS_MAX: Final = 300.0


def build_archive(java: Java) -> Path | None:
    """Build the archive for `java`, atomically; None when another process is building it.

    Cost: about half a minute of one core and 200 MB of disk, once per Java and PySpark version.
    """
    target = archive_for(java)
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_suffix(".building")
    if not _take(lock):
        return None
    part = target.with_suffix(f".part-{os.getpid()}")
    try:
        if not (java.home / "lib" / "server" / "classes.jsa").is_file():
            # A small runtime ships without the base archive that the dynamic one builds on.
            subprocess.run([java.executable, "-Xshare:dump"], capture_output=True, timeout=300, check=False)
        _train(java, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
        lock.unlink(missing_ok=True)
    return target


def _take(lock: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        if time.time() - lock.stat().st_mtime > LOCK_STALE_SECONDS:
            lock.unlink()
    try:
        lock.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _train(java: Java, part: Path) -> None:
    """Run one job of each kind that loads and frames run, then let the JVM write what it loaded."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only a training run loads PySpark

    from omnigraph.pipeline.spark.session import attach, base_conf  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="omnigraph-train-") as scratch:
        conf = base_conf("local[1]", scratch)
        jvm = launch(java, conf, log=Path(scratch) / "spark.log", archive_at_exit=part)
        try:
            context = attach(jvm, conf)
            context.parallelize(range(2), 2).mapPartitions(list).collect()
            spark = SparkSession(context)
            numbers = spark.range(0, 2, 1, 2)
            numbers.mapInArrow(lambda batches: batches, "id long").collect()
            numbers.repartition(2, "id").groupBy("id").count().collect()
            spark.stop()
        finally:
            jvm.stop(_DUMP_SECONDS_MAX)


def main() -> None:
    """Entry point of the background child."""
    with contextlib.suppress(OSError):
        os.nice(19)
    build_archive(find_java())


if __name__ == "__main__":
    main()
