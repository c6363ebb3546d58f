"""What must be right before a command starts: global flags in their place, known commands, usable flags."""

from collections.abc import Mapping, Sequence
from typing import Final

from omnigraph.cli.addressing import Flags
from omnigraph.core.errors import UsageError

# Flags a user may also write before the command; the value says whether they take one.
_GLOBAL_FLAGS: Final[Mapping[str, bool]] = {
    "--store": True,
    "--as": True,
    "--server": True,
    "--graph": True,
    "--cluster": True,
    "--profile": True,
    "--progress": True,
    "--policy": True,
    "--bypass-policy": False,
    "--yes": False,
    "--quiet": False,
    "--json": False,
}

# Misplaced flags are reported in this order.
_ADDRESSING: Final = ("--server", "--cluster", "--graph", "--store", "--as", "--profile")

_NONE: Final[frozenset[str]] = frozenset()
_ANYWHERE: Final = frozenset({"--server", "--graph", "--store", "--profile"})
_STORAGE: Final = frozenset({"--graph", "--store", "--cluster", "--profile"})

_GUARDING: Final = frozenset({"--policy", "--bypass-policy"})

_READ: Final = ("reads a graph", _ANYWHERE)
_WRITE: Final = ("writes a graph", _ANYWHERE | {"--as"} | _GUARDING)
_DIRECT: Final = ("works on storage directly", _STORAGE)
_DIRECT_WRITE: Final = ("works on storage directly", _STORAGE | {"--as"} | _GUARDING)
_PLAN: Final = ("works on storage directly", _STORAGE - {"--cluster"})
_CREATE: Final = ("creates a graph at its argument", _NONE)
_COPY: Final = ("copies one graph to another place, both named as arguments", _NONE)
_SERVE: Final = ("serves a graph named as its argument", _NONE)
_REGISTRY: Final = ("asks a server", frozenset({"--server", "--profile"}))
_STORED: Final = ("asks a server", frozenset({"--server", "--graph", "--profile"}))
_LOCAL: Final = ("works on files only", _NONE)

# Flags no command declares: they are taken out before the command is parsed.
_TAKEN_OUT: Final = frozenset({"--server", "--cluster", "--graph", "--profile", "--progress"})

COMMANDS: Final[Mapping[tuple[str, ...], tuple[str, frozenset[str]]]] = {
    ("version",): _LOCAL,
    ("fmt",): _LOCAL,
    ("lint",): _DIRECT,
    ("schema", "plan"): _PLAN,
    ("schema", "show"): _READ,
    ("schema", "apply"): _WRITE,
    ("init",): _CREATE,
    ("clone",): _COPY,
    ("optimize",): _DIRECT_WRITE,
    ("repair",): _DIRECT_WRITE,
    ("cleanup",): _DIRECT_WRITE,
    ("erase",): _DIRECT_WRITE,
    ("indexes",): _DIRECT,
    ("stats",): _DIRECT,
    ("mutate",): _WRITE,
    ("load",): _WRITE,
    ("embed",): _DIRECT_WRITE,
    ("query",): _READ,
    ("explain",): _READ,
    ("export",): _READ,
    ("blob", "get"): _READ,
    ("blob", "stat"): _READ,
    ("snapshot",): _READ,
    ("branch", "create"): _WRITE,
    ("branch", "list"): _READ,
    ("branch", "delete"): _WRITE,
    ("branch", "merge"): _WRITE,
    ("commit", "list"): _READ,
    ("commit", "show"): _READ,
    ("commit", "changes"): _READ,
    ("changes", "poll"): _READ,
    ("changes", "baseline"): _READ,
    ("log",): _READ,
    ("tag", "create"): _WRITE,
    ("tag", "list"): _READ,
    ("tag", "delete"): _WRITE,
    ("diff",): _READ,
    ("blame",): _READ,
    ("revert",): _WRITE,
    ("branch", "restore"): _WRITE,
    ("verify",): _DIRECT,
    ("recoveries",): _DIRECT,
    ("spark", "doctor"): _LOCAL,
    ("profile", "list"): _LOCAL,
    ("profile", "show"): _LOCAL,
    ("config", "path"): _LOCAL,
    ("config", "show"): _LOCAL,
    ("serve",): _SERVE,
    ("policy", "validate"): _LOCAL,
    ("policy", "test"): _LOCAL,
    ("policy", "explain"): _LOCAL,
    ("login",): _LOCAL,
    ("logout",): _LOCAL,
    ("graphs", "list"): _REGISTRY,
    ("queries", "list"): _STORED,
    ("completion",): _LOCAL,
}
"""Every command, its class in plain words, and the addressing flags that class can use."""

RENAMED: Final[Mapping[tuple[str, ...], str]] = {
    ("read",): "query",
    ("change",): "mutate",
    ("check",): "lint",
    ("ingest",): "load",
    ("query", "lint"): "lint",
    ("schema", "get"): "schema show",
}
"""Spellings of other versions of this product, and ours."""


def wants_json(argv: Sequence[str]) -> bool:
    """Whether errors, too, are to be JSON."""
    return "--json" in _before_separator(argv)


def arrange(argv: Sequence[str]) -> tuple[list[str], Flags]:
    """The arguments with global flags moved behind the command, and the addressing flags apart from them.

    Raises UsageError for an unknown command and for a flag the command cannot use.
    """
    leading, rest = _split_leading(argv)
    path = command_path(rest)
    if path is None:
        return [*rest, *leading], Flags()
    words = len(path)
    arranged = [*rest[:words], *leading, *rest[words:]]
    _refuse_unusable(path, _before_separator(arranged[words:]))
    # `serve` declares a policy of its own.
    kept, taken = _taken_out(arranged, _TAKEN_OUT | (COMMANDS[path][1] & _GUARDING))
    return kept, Flags.of(taken)


def _taken_out(tokens: Sequence[str], flags: frozenset[str]) -> tuple[list[str], dict[str, str]]:
    kept: list[str] = []
    taken: dict[str, str] = {}
    rest = list(tokens)
    while rest and rest[0] != "--":
        token = rest.pop(0)
        flag, separator, value = token.partition("=")
        if flag not in flags:
            kept.append(token)
            if flag == "--as":
                taken[flag] = value if separator else next(iter(rest), "")
            continue
        if flag == "--bypass-policy" and not separator:
            taken[flag] = flag
            continue
        if not separator:
            if not rest:
                raise UsageError(f"{flag} needs a value")
            value = rest.pop(0)
        if not value:
            raise UsageError(f"the value of {flag} is empty")
        taken[flag] = value
    return [*kept, *rest], taken


def _before_separator(argv: Sequence[str]) -> list[str]:
    tokens = list(argv)
    return tokens[: tokens.index("--")] if "--" in tokens else tokens


def _split_leading(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    leading: list[str] = []
    rest = list(argv)
    while rest and (takes_value := _GLOBAL_FLAGS.get(rest[0].partition("=")[0])) is not None:
        flag = rest.pop(0)
        leading.append(flag)
        if takes_value and "=" not in flag and rest:
            leading.append(rest.pop(0))
    return leading, rest


def command_path(rest: Sequence[str]) -> tuple[str, ...] | None:
    """The words of the command, or None when the parser itself should answer (help, version, nothing)."""
    if not rest or rest[0].startswith("-"):
        return None
    groups = {path[0] for path in COMMANDS if len(path) > 1}
    first = rest[0]
    renamed = RENAMED.get((first,))
    if (first,) not in COMMANDS and first not in groups:
        raise _unknown(first, renamed, [path[0] for path in COMMANDS])
    if first not in groups:
        return (first,)
    if len(rest) < 2 or rest[1].startswith("-"):
        return None
    path = (first, rest[1])
    if path not in COMMANDS:
        names = [" ".join(known) for known in COMMANDS if known[0] == first]
        raise _unknown(" ".join(path), RENAMED.get(path), names)
    return path


def _unknown(given: str, renamed: str | None, known: Sequence[str]) -> UsageError:
    from omnigraph.language.diagnostics import near_names

    # People leave the group out: `restore` for `branch restore`.
    grouped = tuple(" ".join(path) for path in COMMANDS if len(path) > 1 and path[-1] == given)
    near = (renamed,) if renamed else grouped or near_names(given, sorted(set(known)))
    meant = " or ".join(f"`omnigraph {each}`" for each in (grouped or near[:1]))
    hint = f"did you mean {meant}?" if near else "`omnigraph --help` lists the commands"
    details = {"candidates": list(near)} if near else None
    return UsageError(f"there is no command `{given}`", hint=hint, details=details)


def _refuse_unusable(path: tuple[str, ...], tokens: Sequence[str]) -> None:
    given = {token.partition("=")[0] for token in tokens}
    words, usable = COMMANDS[path]
    command = " ".join(path)
    for flag in _ADDRESSING:
        if flag in given and flag not in usable:
            raise UsageError(f"`{command}` {words}, so {flag} cannot be used with it", hint=_remedy(usable))


def _remedy(usable: frozenset[str]) -> str:
    if "--cluster" in usable:
        return "pass the graph's storage URI as --store, or --cluster ROOT --graph ID"
    if "--store" in usable:
        return "pass the graph's storage URI as --store"
    return "leave the flag out"
