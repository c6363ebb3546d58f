"""What an operator can set, from the environment and from an optional TOML file. The environment wins."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast

from omnigraph.core import limits
from omnigraph.core.errors import BadRequest, IoFailure

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
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return limits.CACHE_BYTES_FALLBACK
    return int(memory * limits.CACHE_MEMORY_SHARE)


def default_staging_dir() -> Path:
    """The directory of the system for temporary files."""
    import tempfile  # noqa: PLC0415  its own imports cost more than all of this module

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
    maintenance_concurrency: int = limits.MAINTENANCE_CONCURRENCY_DEFAULT
    merge_staging_dir: Path = field(default_factory=default_staging_dir)
    spark_master: str = "local[*,3]"
    spark_conf: Mapping[str, str] = field(default_factory=dict[str, str])
    bulk_rows_in_process_max: int = limits.BULK_ROWS_IN_PROCESS_MAX
    bulk_bytes_in_process_max: int = limits.BULK_BYTES_IN_PROCESS_MAX
    mutation_bytes: int = limits.MUTATION_BYTES_DEFAULT
    query_memory_bytes: int = limits.QUERY_MEMORY_BYTES_DEFAULT
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

        A number that cannot be read or is not positive counts as not given. A durability nobody knows is an
        error: guessing there would decide about the safety of data.
        """
        values = {**(values or {}), **(_file_values(file) if file is not None else {})}
        if "embed_api_key" in values:
            raise BadRequest("a key does not belong into a file", hint="set OMNIGRAPH_EMBED_API_KEY")
        values |= _environment_values(os.environ if environ is None else environ)
        default = cls()
        return cls(
            durability=_durability(values.get("durability"), default.durability),
            cache_bytes=_positive(values.get("cache_bytes"), default.cache_bytes),
            cache_dir=Path(values["cache_dir"]) if values.get("cache_dir") else default.cache_dir,
            expand_access=_expand_access(values.get("expand_access"), default.expand_access),
            load_concurrency=_positive(values.get("load_concurrency"), default.load_concurrency),
            maintenance_concurrency=_positive(
                values.get("maintenance_concurrency"), default.maintenance_concurrency
            ),
            merge_staging_dir=Path(values.get("merge_staging_dir") or default.merge_staging_dir),
            spark_master=str(values.get("spark_master") or default.spark_master),
            spark_conf={name: str(value) for name, value in values.get("spark_conf", {}).items()},
            bulk_rows_in_process_max=_positive(
                values.get("bulk_rows_in_process_max"), default.bulk_rows_in_process_max
            ),
            bulk_bytes_in_process_max=_positive(
                values.get("bulk_bytes_in_process_max"), default.bulk_bytes_in_process_max
            ),
            mutation_bytes=_positive(values.get("mutation_bytes"), default.mutation_bytes),
            query_memory_bytes=_positive(values.get("query_memory_bytes"), default.query_memory_bytes),
            query_seconds=_positive(values.get("query_seconds"), 0) or None,
            vector_probes=_positive(values.get("vector_probes"), 0) or None,
            blob_sources=_texts(values.get("blob_sources")),
            embed_provider=_word(values.get("embed_provider")),
            embed_base_url=_word(values.get("embed_base_url")),
            embed_model=_word(values.get("embed_model")),
            embed_deadline_ms=_or_none(values.get("embed_deadline_ms"), default.embed_deadline_ms),
            embed_timeout_ms=_positive(values.get("embed_timeout_ms"), default.embed_timeout_ms),
            embed_retry_attempts=_positive(values.get("embed_retry_attempts"), default.embed_retry_attempts),
            embed_retry_backoff_ms=_positive(
                values.get("embed_retry_backoff_ms"), default.embed_retry_backoff_ms
            ),
            embeddings_mock=is_set(values.get("embeddings_mock")),
            debug=is_set(values.get("debug")),
        )


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


def _positive(value: Any, default: int) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        return default
    return number if number > 0 else default


def _or_none(value: Any, default: int) -> int:
    """As `_positive`, except that 0 means no limit."""
    return 0 if str(value).strip() == "0" else _positive(value, default)


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
