"""The personal configuration: who I am, which graphs I know, my defaults. One file, read when needed."""

import os
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from omnigraph.cli import output
from omnigraph.core.errors import BadRequest, IoFailure, ProfileNotFound, ServerNotFound
from omnigraph.core.late_dataclass import dataclass

HOME_VARIABLE: Final = "OMNIGRAPH_HOME"
PROFILE_VARIABLE: Final = "OMNIGRAPH_PROFILE"
STORE_VARIABLE: Final = "OMNIGRAPH_STORE"
OUTPUTS: Final = ("table", "kv", "csv", "jsonl", "json", "arrow")
LAYOUTS: Final = ("truncate", "wrap")

_SECTIONS: Final = {"operator", "servers", "clusters", "defaults", "profiles", "aliases", "settings"}
_BINDINGS: Final = ("server", "cluster", "store")
_DEFAULTS: Final = {
    "output",
    "table_max_column_width",
    "table_cell_layout",
    "server",
    "store",
    "default_graph",
}


@dataclass(frozen=True, slots=True)
class Profile:
    """A named bundle: one server, one cluster or one store, and the graph inside it."""

    name: str
    bindings: Mapping[str, str]
    default_graph: str | None = None
    output: str | None = None
    policy: str | None = None
    """The file of a policy that every write of a store asks, as a whole path."""

    @property
    def problem(self) -> str | None:
        """Why it cannot be used; None when it can."""
        if len(self.bindings) == 1:
            if self.policy is not None and "store" not in self.bindings:
                return f"profile '{self.name}' has a policy, which goes with a store only"
            if "store" in self.bindings and self.default_graph is not None:
                return f"profile '{self.name}' names a store, which is one graph, and a default_graph"
            return None
        given = " and ".join(self.bindings) or "nothing"
        return f"profile '{self.name}' must name one server, one cluster or one store, not {given}"

    @property
    def kind(self) -> str:
        """`server`, `cluster` or `store`; `invalid` when it has a problem."""
        return next(iter(self.bindings)) if self.problem is None else "invalid"

    @property
    def target(self) -> str | None:
        """What it names."""
        return next(iter(self.bindings.values())) if self.problem is None else None


@dataclass(frozen=True, slots=True)
class Config:
    """What the file says. A missing file says nothing."""

    path: Path
    exists: bool = False
    actor: str | None = None
    servers: Mapping[str, str] = field(default_factory=dict[str, str])
    clusters: Mapping[str, str] = field(default_factory=dict[str, str])
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    profiles: Mapping[str, Profile] = field(default_factory=dict[str, Profile])
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def server(self, name: str) -> str:
        """The address of a server: that of a name, or what is an address already. Raises ServerNotFound."""
        from omnigraph.language.diagnostics import near_names

        url = name if "://" in name else self.servers.get(name)
        if url is None:
            near = near_names(name, sorted(self.servers))
            raise ServerNotFound(
                f"there is no server '{name}' in {self.path}",
                hint=f"did you mean '{near[0]}'?" if near else "give its address, or name it under servers",
                details={"candidates": list(near)} if near else None,
            )
        return url.rstrip("/")

    def profile(self, name: str) -> Profile:
        """The profile of this name. Raises ProfileNotFound."""
        from omnigraph.language.diagnostics import near_names

        found = self.profiles.get(name)
        if found is None:
            near = near_names(name, sorted(self.profiles))
            raise ProfileNotFound(
                f"there is no profile '{name}' in {self.path}",
                hint=f"did you mean '{near[0]}'?" if near else "`omnigraph profile list` shows what there is",
                details={"candidates": list(near)} if near else None,
            )
        return found


def home() -> Path:
    """The directory of the personal files."""
    return Path(os.environ.get(HOME_VARIABLE) or "~/.omnigraph").expanduser()


@cache
def load() -> Config:
    """Read the file, once per command.

    Keys nobody knows are named on stderr and ignored: a file made for a newer version still works. Raises
    BadRequest for a file that is not what it should be, IoFailure for one that cannot be read.
    """
    path = home() / "config.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Config(path)
    except UnicodeDecodeError as error:
        raise BadRequest(f"'{path}' is not UTF-8 text") from error
    except OSError as error:
        raise IoFailure(f"'{path}' cannot be read: {error.strerror or error}") from error
    return _parsed(path, text)


def _parsed(path: Path, text: str) -> Config:
    import yaml

    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = "" if where is None else f" at line {where.line + 1}"
        raise BadRequest(f"'{path}' is not valid YAML{line}") from error
    reader = _Reader(path)
    top = reader.section(content, "the file", _SECTIONS)
    operator = reader.section(top.get("operator"), "operator", {"actor"})
    defaults = reader.section(top.get("defaults"), "defaults", _DEFAULTS)
    reader.check_defaults(defaults)
    return Config(
        path=path,
        exists=True,
        actor=reader.text(operator, "operator", "actor"),
        servers=reader.named(top.get("servers"), "servers", "url"),
        clusters=reader.named(top.get("clusters"), "clusters", "root"),
        defaults=defaults,
        profiles=reader.profiles(top.get("profiles")),
        settings=reader.section(top.get("settings"), "settings", None),
    )


class _Reader:
    """Takes the file apart and says where it is wrong."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def section(self, value: Any, where: str, known: set[str] | None) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._wrong(f"{where} is not a mapping")
        section = cast("dict[Any, Any]", value)
        for key in section if known is not None else ():
            if key not in known:
                place = "" if where == "the file" else f" in {where}"
                output.note(f"warning: '{self._path}': unknown key '{key}'{place}, ignored")
        return {str(key): item for key, item in section.items() if known is None or key in known}

    def text(self, section: Mapping[str, Any], where: str, key: str) -> str | None:
        value = section.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            raise self._wrong(f"{where}.{key} is not text")
        return value

    def named(self, value: Any, where: str, member: str) -> dict[str, str]:
        """`name: { member: text }` for every name."""
        found: dict[str, str] = {}
        for name, entry in self.section(value, where, None).items():
            inside = self.section(entry, f"{where}.{name}", {member})
            text = self.text(inside, f"{where}.{name}", member)
            if text is None:
                raise self._wrong(f"{where}.{name} has no {member}")
            found[name] = text
        return found

    def profiles(self, value: Any) -> dict[str, Profile]:
        found: dict[str, Profile] = {}
        for name, entry in self.section(value, "profiles", None).items():
            where = f"profiles.{name}"
            inside = self.section(entry, where, {*_BINDINGS, "default_graph", "output", "policy"})
            bindings = {key: text for key in _BINDINGS if (text := self.text(inside, where, key)) is not None}
            form = self.one_of(inside, where, "output", OUTPUTS)
            policy = self.text(inside, where, "policy")
            if policy is not None:
                policy = str(self._path.parent / Path(policy).expanduser())
            found[name] = Profile(name, bindings, self.text(inside, where, "default_graph"), form, policy)
        return found

    def one_of(
        self, section: Mapping[str, Any], where: str, key: str, allowed: tuple[str, ...]
    ) -> str | None:
        value = section.get(key)
        if value is not None and value not in allowed:
            raise self._wrong(f"{where}.{key} is not one of {', '.join(allowed)}")
        return value

    def check_defaults(self, defaults: Mapping[str, Any]) -> None:
        for key in ("server", "store", "default_graph"):
            self.text(defaults, "defaults", key)
        if "server" in defaults and "store" in defaults:
            raise self._wrong("defaults binds one thing only: a server or a store, not both")
        if "store" in defaults and "default_graph" in defaults:
            raise self._wrong("defaults.store is one graph already; default_graph goes with a server")
        self.one_of(defaults, "defaults", "output", OUTPUTS)
        self.one_of(defaults, "defaults", "table_cell_layout", LAYOUTS)
        width = defaults.get("table_max_column_width")
        if width is not None and (not isinstance(width, int) or width < 1):
            raise self._wrong("defaults.table_max_column_width is not a positive number")

    def _wrong(self, message: str) -> BadRequest:
        return BadRequest(f"'{self._path}': {message}", hint="correct the file, or move it aside")
