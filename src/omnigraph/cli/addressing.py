"""Which graph a command means: flags first, then the environment, then the personal file."""

import os
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from omnigraph.cli import config as personal
from omnigraph.cli import output
from omnigraph.core.errors import ActorNotSettable, BadRequest, UsageError
from omnigraph.core.late_dataclass import dataclass

if TYPE_CHECKING:
    from omnigraph.core.settings import Settings

NAME_A_STORE: Final = "pass the graph's storage URI as --store"


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags of the command line that the commands themselves do not declare."""

    server: str | None = None
    cluster: str | None = None
    graph: str | None = None
    profile: str | None = None
    actor: str | None = None
    progress: str | None = None
    policy: str | None = None
    bypasses_policy: bool = False

    @classmethod
    def of(cls, values: Mapping[str, str]) -> "Flags":
        """From `--flag` to value."""
        named = {name.removeprefix("--"): value for name, value in values.items()}
        named["actor"] = named.pop("as", "")
        bypasses = named.pop("bypass-policy", None) is not None
        return cls(**{name: value or None for name, value in named.items()}, bypasses_policy=bypasses)


class Address(str):
    """Where a graph is: the URI of its storage, or its address on a server.

    `server` is the address of the server, None when the graph is opened by its storage. `policy` is the file
    that the profile which named the storage binds to it.
    """

    __slots__ = ("graph", "policy", "server")
    server: str | None
    graph: str
    policy: str | None

    def __new__(
        cls, text: str, server: str | None = None, graph: str = "", policy: str | None = None
    ) -> Self:
        """The text, and what it is made of."""
        made = super().__new__(cls, text)
        made.server, made.graph, made.policy = server, graph, policy
        return made


@dataclass(frozen=True, slots=True)
class Scope:
    """What was found, and what said so."""

    kind: str
    target: str
    origin: str
    graph: str | None = None
    policy: str | None = None


NOTHING_GIVEN: Final = Flags()
given: ContextVar[Flags] = ContextVar("given", default=NOTHING_GIVEN)


def resolve(store: str | None) -> Scope | None:
    """The graph, server or cluster meant; None when nothing names one."""
    flags = given.get()
    primitives = {"--store": store, "--server": flags.server, "--cluster": flags.cluster}
    named = {flag: value for flag, value in primitives.items() if value}
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} exclude each other", hint="give one of them")
    if store:
        _check_single(flags, "--store")
    for flag, value in named.items():
        kind = flag.removeprefix("--")
        return Scope(kind, value, flag, None if kind == "store" else flags.graph)
    config = personal.load()
    name = flags.profile or os.environ.get(personal.PROFILE_VARIABLE)
    if name:
        return _of_profile(config, name, flags)
    return _of_environment_or_defaults(config, flags)


def _check_single(flags: Flags, origin: str) -> None:
    if flags.graph:
        raise UsageError(
            f"{origin} names a store, which is already a single graph, so --graph cannot be used with it",
            hint="leave --graph out",
        )


def _of_profile(config: personal.Config, name: str, flags: Flags) -> Scope:
    profile = config.profile(name)
    if profile.problem is not None:
        raise BadRequest(f"{profile.problem} ({config.path})", hint="give the profile exactly one of them")
    origin = f"profile {name}"
    if profile.kind == "store":
        _check_single(flags, origin)
    graph = flags.graph or profile.default_graph
    return Scope(profile.kind, str(profile.target), origin, graph, profile.policy)


def _of_environment_or_defaults(config: personal.Config, flags: Flags) -> Scope | None:
    for kind, target, origin in (
        ("store", os.environ.get(personal.STORE_VARIABLE), personal.STORE_VARIABLE),
        ("server", config.defaults.get("server"), "defaults.server"),
        ("store", config.defaults.get("store"), "defaults.store"),
    ):
        if not target:
            continue
        if kind == "store":
            _check_single(flags, origin)
            return Scope(kind, target, origin)
        return Scope(kind, target, origin, flags.graph or config.defaults.get("default_graph"))
    return None


def addressed(store: str | None) -> Address:
    """The graph a user named. Nothing has been opened; a server is asked which graphs it has only when none
    is named.
    """
    if isinstance(store, Address):
        return store
    scope = resolve(store)
    if scope is None:
        raise UsageError(
            "no graph addressed",
            hint="pass --store URI, name a --profile, set OMNIGRAPH_STORE, or give config.yaml a default",
        )
    if scope.kind == "server":
        return _on_server(scope)
    if scope.kind != "store":
        raise UsageError(f"{scope.origin}: clusters are not known to this version", hint=NAME_A_STORE)
    if scope.target.startswith(("http://", "https://")):
        raise UsageError(
            f"'{scope.target}' is a server, and servers are addressed with --server, not --store",
            hint="pass --server URL --graph ID",
        )
    return Address(scope.target, policy=scope.policy)


def _on_server(scope: Scope) -> Address:
    if given.get().actor is not None:
        raise ActorNotSettable(
            "a server takes the actor of a write from the token, so --as cannot be used with it",
            hint="leave --as out",
        )
    url = personal.load().server(scope.target)
    graph = scope.graph or _only_graph(url)
    return Address(f"{url}/graphs/{quote(graph, safe='')}", url, graph)


def _only_graph(url: str) -> str:
    """The graph of a server that has one. Raises UsageError that names them when there are others."""
    from omnigraph.cli.credentials import token_for
    from omnigraph.client.remote import served_graphs

    found = served_graphs(url, token=token_for(url))
    if len(found) == 1:
        return found[0]
    known = f"it has {', '.join(found)}" if found else "it has none that you may read"
    raise UsageError(f"no graph of {url} is named; {known}", hint="pass --graph ID")


def default_actor(arguments: Mapping[str, Any], actor: str | None) -> str | None:
    """Who a write is recorded under when `--as` does not say it. Of a server the token says it.

    `arguments` are those of the command.
    """
    known = actor or personal.load().actor
    if actor is not None or known is None:
        return known
    scope = resolve(arguments.get("store"))
    return None if scope is not None and scope.kind == "server" else known


def policy_for(uri: Address) -> str | None:
    """The file of the policy that a write of this command asks: that of `--policy`, else that of the profile.

    `--bypass-policy` leaves out what the profile binds, and says so. Raises UsageError.
    """
    flags = given.get()
    if flags.policy is not None and uri.server is not None:
        raise UsageError(
            "a server asks its own policy, so --policy cannot be used with it", hint="leave --policy out"
        )
    if flags.policy is not None and flags.bypasses_policy:
        raise UsageError("--policy and --bypass-policy exclude each other", hint="give one of them")
    if flags.bypasses_policy:
        if uri.policy is not None:
            output.note(f"warning: the policy '{uri.policy}' is not asked")
        return None
    return flags.policy or uri.policy


def settings() -> "Settings":
    """The settings of the engine: the environment over the `settings` of the personal file."""
    from omnigraph.core.settings import Settings

    return Settings.from_environment(values=personal.load().settings)
