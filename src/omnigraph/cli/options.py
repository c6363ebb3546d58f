"""Options that several commands share, spelled once."""

from typing import Annotated, Final

from omnigraph.cli.addressing import default_actor
from omnigraph.cli.declared import Option
from omnigraph.core.errors import AmbiguousTarget, UsageError

Json = Annotated[bool, Option("--json", help="Print one JSON document; errors become JSON on stderr.")]
Store = Annotated[
    str | None,
    Option(
        "--store",
        metavar="URI",
        help="The graph: a directory or s3://bucket/prefix; else --profile, OMNIGRAPH_STORE, config.yaml.",
    ),
]
Branch = Annotated[str, Option("--branch", metavar="NAME", help="The branch to work on.")]
ReadBranch = Annotated[
    str | None, Option("--branch", metavar="NAME", help="The branch to read; main if not given.")
]
At = Annotated[
    str | None,
    Option("--snapshot", "--at", metavar="ID", help="Read this commit, tag or moment, or main~1."),
]
Types = Annotated[list[str] | None, Option("--type", metavar="TYPE", help="Only this type. Repeatable.")]
Ops = Annotated[
    list[str] | None,
    Option("--op", metavar="OP", help="Only insert, update or delete. Repeatable."),
]
Kinds = Annotated[list[str] | None, Option("--kind", metavar="KIND", help="Only node or edge. Repeatable.")]
Timeout = Annotated[
    float | None,
    Option("--timeout", metavar="SECONDS", help="Stop after this long; what has begun is finished."),
]
IdempotencyKey = Annotated[
    str | None,
    Option("--idempotency-key", metavar="KEY", help="Sent again with this key, it happens once."),
]
Actor = Annotated[
    str | None,
    Option(
        "--as",
        metavar="ACTOR",
        callback=default_actor,
        help="Who the write is recorded under; else operator.actor of config.yaml.",
    ),
]
BlobSource = Annotated[
    list[str] | None,
    Option(
        "--blob-source",
        metavar="URI",
        help="A place below which external blobs may be read: an address or a directory. Repeatable.",
    ),
]
Yes = Annotated[bool, Option("--yes", help="Agree to a destructive action on a remote graph.")]
Quiet = Annotated[bool, Option("--quiet", help="Do not name the target of the write on stderr.")]


_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DIGITS_MAX: Final = 8
"""More than any age: what is longer is a slip."""


def duration(text: str, flag: str) -> int:
    """Seconds of a duration as a user writes it: `90`, `2s`, `15m`, `24h`, `7d`, `2w`. Raises UsageError."""
    number = text.rstrip("smhdw")
    unit = text[len(number) :]
    if not (number.isascii() and number.isdigit()) or unit not in _UNITS:
        raise UsageError(f"{flag} takes a duration such as 30s, 15m, 24h or 7d, not '{text}'")
    if len(number) > _DIGITS_MAX:
        raise UsageError(f"{flag} takes at most {_DIGITS_MAX} digits, as in 7d")
    return int(number) * _UNITS[unit]


def check_one_state(branch: str | None, at: str | None) -> None:
    """Refuse a read that names two states. Raises AmbiguousTarget."""
    if branch is not None and at is not None:
        raise AmbiguousTarget("--branch and --snapshot (--at) exclude each other", hint="give one of them")


def teach(summary: str, *examples: str, more: str = "") -> str:
    """Help text: what the command does, then examples that are not rewrapped."""
    shown = "\n".join(f"  {example}" for example in examples)
    parts = [summary, *([more] if more else []), f"\b\nExample:\n{shown}" if len(examples) == 1 else ""]
    if len(examples) > 1:
        parts[-1] = f"\b\nExamples:\n{shown}"
    return "\n\n".join(part for part in parts if part)


Fill = Annotated[
    list[str] | None,
    Option(
        "--fill",
        metavar="FILL",
        help='What rows get in an added property: Person.tier = "basic", or Person.label = $row.name. '
        "Can be repeated.",
    ),
]
