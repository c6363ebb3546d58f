"""What an operator can set, from the environment and from an optional TOML file. The environment wins."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final, Literal, cast

from omnigraph.core import limits
from omnigraph.core.errors import BadRequest, IoFailure
from omnigraph.core.late_dataclass import dataclass

Durability = Literal["full", "os", "syncfs"]
ExpandAccess = Literal["auto", "adjacency", "probe"]

_PREFIX: Final = "OMNIGRAPH_"
_SPARK_CONF_PREFIX: Final = "OMNIGRAPH_SPARK_CONF_"
_DURABILITIES: Final = ("full", "os", "syncfs")
_EXPAND_ACCESSES: Final = ("auto", "adjacency", "probe")

CACHE_DIR_OFF: Final = "off"
"""The value of `OMNIGRAPH_CACHE_DIR` for which no read cache is written or read."""


def default_cache_bytes() -> int:
    """A share of the machine's memory."""
    memory = _machine_memory()
    return limits.CACHE_BYTES_FALLBACK if memory is None else int(memory * limits.CACHE_MEMORY_SHARE)


def default_query_memory_bytes() -> int:
    """A share of the machine's memory."""
    memory = _machine_memory()
    return limits.QUERY_MEMORY_FALLBACK if memory is None else int(memory * limits.QUERY_MEMORY_SHARE)


def _machine_memory() -> int | None:
    """Bytes, where the machine tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def default_staging_dir() -> Path:
    """The directory of the system for temporary files."""
    # Where the first choice of the standard library will do, its module is not loaded: that costs more than
    # everything else here.
    named = (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    first = Path(next(filter(None, named), "/tmp"))  # noqa: S108
    if "tempfile" not in sys.modules and first.is_dir() and os.access(first, os.W_OK | os.X_OK):
        return first.absolute()
    import tempfile  # noqa: PLC0415

    return Path(tempfile.gettempdir())


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one handle. The defaults are those of a process without environment and file."""

    durability: Durability = "full"
    cache_bytes: int = field(default_factory=default_cache_bytes)
    cache_dir: Path | None = None
    """Where read caches are kept between processes. None: below a local graph, in the user's cache directory
    for a graph in an object store. `off`: nowhere."""
    expand_access: ExpandAccess = "auto"
    """How an edge is followed: by cost, always over the adjacency in memory, always by index probes."""
    load_concurrency: int = limits.LOAD_CONCURRENCY_DEFAULT
    """Tables whose fragments a load writes at the same time, in this process or in one task of Spark. How
    many tasks run is Spark's affair; checks, exports and commits do not ask for it."""
    maintenance_concurrency: int = limits.MAINTENANCE_CONCURRENCY_DEFAULT
    maintenance_bytes: int = limits.MAINTENANCE_BYTES_DEFAULT
    leftover_seconds: int = limits.LEFTOVER_SECONDS_DEFAULT
    """How old a file that nothing names must be before a cleanup removes it: longer than any write takes."""
    merge_staging_dir: Path = field(default_factory=default_staging_dir)
    spark_master: str = "local[*,3]"
    spark_conf: Mapping[str, str] = field(default_factory=dict[str, str])
    bulk_rows_in_process_max: int = limits.BULK_ROWS_IN_PROCESS_MAX
    bulk_bytes_in_process_max: int = limits.BULK_BYTES_IN_PROCESS_MAX
    mutation_bytes: int = limits.MUTATION_BYTES_DEFAULT
    query_memory_bytes: int = field(default_factory=default_query_memory_bytes)
    """Working rows and values that one query may hold."""
    query_seconds: int | None = None
    """The time limit of one query; None: no limit."""
    vector_probes: int | None = None
    """None: `nearest` is exact. A number: large vector indexes have many parts, and a search looks into this
    many of the nearest ones.
    """
    blob_sources: tuple[str, ...] = ()
    """Places below which external blobs may be read: addresses, or directories of this machine. In the
    environment they are separated by blanks."""
    embed_provider: str | None = None
    """Who embeds the texts of queries; None: nobody, unless an address or a model is set. The key is only in
    the environment and never in here, because settings are shown and sent to workers.
    """
    embed_base_url: str | None = None
    embed_model: str | None = None
    embed_deadline_ms: int = limits.EMBED_DEADLINE_MS_DEFAULT
    """How long embedding may take, all attempts together; 0: no limit."""
    embed_timeout_ms: int = limits.EMBED_TIMEOUT_MS_DEFAULT
    embed_retry_attempts: int = limits.EMBED_RETRY_ATTEMPTS_DEFAULT
    embed_retry_backoff_ms: int = limits.EMBED_RETRY_BACKOFF_MS_DEFAULT
    embeddings_mock: bool = False
    """Whether texts are embedded offline, whatever provider is named."""
    debug: bool = False

    def __post_init__(self) -> None:
        if self.blob_sources:
            from omnigraph.core.blob_uris import blob_bases  # noqa: PLC0415  few handles have any

            object.__setattr__(self, "blob_sources", blob_bases(self.blob_sources))

    @classmethod
    def from_environment(
        cls,
        environ: Mapping[str, str] | None = None,
        file: Path | str | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> "Settings":
        """Read `OMNIGRAPH_*` over the `[settings]` table of `file` over `values` over the defaults.

        A blank text, and a number that cannot be read or is not positive, counts as not given. A durability
        nobody knows is an error: guessing there would decide about the safety of data.
        """
        files = {**(values or {}), **(_file_values(file) if file is not None else {})}
        if "embed_api_key" in files:
            raise BadRequest("a key does not belong in a file", hint="set OMNIGRAPH_EMBED_API_KEY")
        given = _Given(_environment_values(os.environ if environ is None else environ), files)
        default = cls()
        cache_dir = given.value("cache_dir")
        return cls(
            durability=_durability(given.value("durability"), default.durability),
            cache_bytes=given.positive("cache_bytes", default.cache_bytes),
            cache_dir=default.cache_dir if cache_dir is None else Path(cache_dir),
            expand_access=_expand_access(given.value("expand_access"), default.expand_access),
            load_concurrency=given.positive("load_concurrency", default.load_concurrency),
            maintenance_concurrency=given.positive(
                "maintenance_concurrency", default.maintenance_concurrency
            ),
            maintenance_bytes=given.positive("maintenance_bytes", default.maintenance_bytes),
            leftover_seconds=given.number("leftover_seconds", default.leftover_seconds, least=0),
            merge_staging_dir=Path(given.value("merge_staging_dir") or default.merge_staging_dir),
            spark_master=str(given.value("spark_master") or default.spark_master),
            spark_conf=given.texts_by_name("spark_conf"),
            bulk_rows_in_process_max=given.positive(
                "bulk_rows_in_process_max", default.bulk_rows_in_process_max
            ),
            bulk_bytes_in_process_max=given.positive(
                "bulk_bytes_in_process_max", default.bulk_bytes_in_process_max
            ),
            mutation_bytes=given.positive("mutation_bytes", default.mutation_bytes),
            query_memory_bytes=given.positive("query_memory_bytes", default.query_memory_bytes),
            query_seconds=given.positive("query_seconds", 0) or None,
            vector_probes=given.positive("vector_probes", 0) or None,
            blob_sources=_texts(given.value("blob_sources")),
            embed_provider=_word(given.value("embed_provider")),
            embed_base_url=_word(given.value("embed_base_url")),
            embed_model=_word(given.value("embed_model")),
            embed_deadline_ms=given.number("embed_deadline_ms", default.embed_deadline_ms, least=0),
            embed_timeout_ms=given.positive("embed_timeout_ms", default.embed_timeout_ms),
            embed_retry_attempts=given.positive("embed_retry_attempts", default.embed_retry_attempts),
            embed_retry_backoff_ms=given.positive("embed_retry_backoff_ms", default.embed_retry_backoff_ms),
            embeddings_mock=is_set(given.value("embeddings_mock")),
            debug=is_set(given.value("debug")),
        )


class _Given:
    """What was said about settings, the first who says something that can be read decides."""

    def __init__(self, *layers: Mapping[str, Any]) -> None:
        self._layers = layers

    def values(self, name: str) -> Iterator[Any]:
        for layer in self._layers:
            value = layer.get(name)
            if value is not None and str(value).strip():
                yield value

    def value(self, name: str) -> Any:
        return next(self.values(name), None)

    def number(self, name: str, default: int, *, least: int) -> int:
        return next((n for n in map(_whole, self.values(name)) if n is not None and n >= least), default)

    def positive(self, name: str, default: int) -> int:
        return self.number(name, default, least=1)

    def texts_by_name(self, name: str) -> dict[str, str]:
        """A setting that is itself a mapping: who comes first decides about each of its members."""
        found: dict[str, str] = {}
        for value in self.values(name):
            if not isinstance(value, Mapping):
                raise BadRequest(f"the setting '{name}' is a table of names and values")
            members = cast("Mapping[str, Any]", value)
            found = {**{str(key): str(member) for key, member in members.items()}, **found}
        return found


def _environment_values(environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {
        name.removeprefix(_PREFIX).lower(): text
        for name, text in environ.items()
        if name.startswith(_PREFIX) and not name.startswith(_SPARK_CONF_PREFIX)
    }
    # spark.executor.memory cannot be the name of a shell variable; OMNIGRAPH_SPARK_CONF_executor_memory can.
    conf = {
        "spark." + name.removeprefix(_SPARK_CONF_PREFIX).replace("_", "."): text
        for name, text in environ.items()
        if name.startswith(_SPARK_CONF_PREFIX)
    }
    if conf:
        values["spark_conf"] = conf
    return values


def _file_values(file: Path | str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415  most processes have no settings file

    path = Path(file)
    try:
        parsed = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise IoFailure(f"the settings file '{path}' cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the settings file '{path}' is not valid TOML: {error}") from error
    table = parsed.get("settings", {})
    if not isinstance(table, dict):
        raise BadRequest(f"the settings file '{path}' has a 'settings' that is not a table")
    return dict(cast("dict[str, Any]", table))


def is_set(value: Any) -> bool:
    """Whether a yes-or-no setting says yes. Everything says yes except an empty text, `0` and `false`."""
    return str("" if value is None else value).strip().lower() not in {"", "0", "false"}


def _whole(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _word(value: Any) -> str | None:
    """A text without blanks around it; a blank one counts as not given."""
    return None if value is None else str(value).strip() or None


def _texts(value: Any) -> tuple[str, ...]:
    """A list from a file, or words from the environment."""
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(value.split())
    if not isinstance(value, list):
        raise BadRequest("'blob_sources' is a list of places")
    return tuple(str(each) for each in cast("list[Any]", value))


def _durability(value: Any, default: Durability) -> Durability:
    if value is None or value == "":
        return default
    if value not in _DURABILITIES:
        raise BadRequest(f"unknown durability '{value}'", hint=f"use one of {', '.join(_DURABILITIES)}")
    return value


def _expand_access(value: Any, default: ExpandAccess) -> ExpandAccess:
    if value is None or value == "":
        return default
    if value not in _EXPAND_ACCESSES:
        raise BadRequest(f"unknown expand access '{value}'", hint=f"use one of {', '.join(_EXPAND_ACCESSES)}")
    return value
