"""Can a load run on Spark here, and what should be fixed: the report behind `omnigraph spark doctor`."""

import time
from dataclasses import asdict, dataclass
from typing import Any

from omnigraph.core.errors import OmnigraphError
from omnigraph.core.settings import Settings
from omnigraph.pipeline.spark.java import Java, find_java
from omnigraph.pipeline.spark.launch import archive_for
from omnigraph.pipeline.spark.session import spark_runtime


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What was found. `ok` says whether a load on Spark would run."""

    ok: bool
    java: str | None
    java_origin: str | None
    java_executable: str | None
    spark_version: str | None
    pyarrow_version: str
    pandas_version: str | None
    master: str
    archive: str | None
    """Where the class archive is or would be."""
    archive_present: bool
    start_seconds: float | None
    first_job_seconds: float | None
    to_fix: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON members."""
        return asdict(self)


def doctor(settings: Settings | None = None) -> DoctorReport:
    """Look at Java and the packages, start Spark, run one job with Arrow in Python workers, and report.

    Never raises for a broken installation: every failure is a line of `to_fix`.
    Cost: one Spark start when none runs yet.
    """
    import pyarrow as pa  # noqa: PLC0415

    settings = settings or Settings.from_environment()
    to_fix: list[str] = []
    java: Java | None = None
    try:
        java = find_java()
    except OmnigraphError as error:
        to_fix.append(str(error))
    spark_version = _version("pyspark", to_fix)
    pandas_version = _version("pandas", to_fix)
    archive = archive_for(java) if java is not None and spark_version is not None else None
    present = archive is not None and archive.is_file()
    start_seconds, job_seconds = (None, None) if to_fix else _first_job(settings, to_fix)
    return DoctorReport(
        ok=not to_fix,
        java=java.version if java else None,
        java_origin=java.origin if java else None,
        java_executable=str(java.executable) if java else None,
        spark_version=spark_version,
        pyarrow_version=pa.__version__,
        pandas_version=pandas_version,
        master=settings.spark_master,
        archive=str(archive) if archive else None,
        archive_present=present,
        start_seconds=start_seconds,
        first_job_seconds=job_seconds,
        to_fix=tuple(to_fix),
    )


def _version(package: str, to_fix: list[str]) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version(package)
    except PackageNotFoundError:
        to_fix.append(f"the package {package} is not installed; reinstall omnigraph")
        return None


def _first_job(settings: Settings, to_fix: list[str]) -> tuple[float | None, float | None]:
    try:
        runtime = spark_runtime(settings, quick_start=True)
        began = time.monotonic()

        def first_job() -> list[Any]:
            return runtime.spark.range(0, 1, 1, 1).mapInArrow(lambda batches: batches, "id long").collect()

        rows = runtime.run(first_job, operation="doctor", stage="first job", total=1)
    except OmnigraphError as error:
        to_fix.append(error.message if error.hint is None else f"{error.message}; {error.hint}")
        return None, None
    if len(rows) != 1:
        to_fix.append(f"a job of one row returned {len(rows)} rows")
    return runtime.start_seconds, time.monotonic() - began
