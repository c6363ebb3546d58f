"""Which names a branch may have. No I/O happens here."""

from collections.abc import Iterable
from typing import Final

from omnigraph.core.errors import BadRequest, BranchExists, BranchNotFound, BranchPrefixClash
from omnigraph.core.ids import MAIN, BranchName
from omnigraph.core.limits import CANDIDATES_MAX

SCHEMA_APPLY_LOCK: Final = BranchName("__schema_apply_lock__")
INTERNAL_NAMES: Final = frozenset({SCHEMA_APPLY_LOCK})
LEGACY_RUN_PREFIX: Final = "__run__"
_BYTES_MAX: Final = 180
"""A branch names files whose length the file system bounds at 255 bytes, percent-encoded in between."""


def checked_branch_name(text: str) -> BranchName:
    """The trimmed name of a branch a user may create. Raises BadRequest saying what is wrong with it."""
    name = text.strip()
    problem = _problem(name)
    if problem is not None:
        raise BadRequest(f"'{name}' cannot name a branch: {problem}")
    return BranchName(name)


def _problem(name: str) -> str | None:
    if not name:
        return "it is empty"
    if name == MAIN or name.startswith(f"{MAIN}/"):
        return f"'{MAIN}' always exists"
    if name in INTERNAL_NAMES:
        return "it is reserved"
    if name.startswith("/") or name.endswith("/"):
        return "it begins or ends with a slash"
    segments = name.split("/")
    if not all(segments):
        return "it has an empty segment"
    if ".." in name or "." in segments or name.endswith(".lock"):
        return "it contains '..', a segment '.', or ends in '.lock'"
    if not all(character.isalnum() or character in "._-/" for character in name):
        return "only letters, digits, '.', '-', '_' and '/' are allowed"
    if len(name.encode()) > _BYTES_MAX:
        return f"it is longer than {_BYTES_MAX} bytes"
    return None


def refuse_taken(name: BranchName, existing: Iterable[str]) -> None:
    """Raise BranchExists, or BranchPrefixClash when one name would be a directory inside the other."""
    names = sorted(existing)
    if name in names:
        raise BranchExists(name)
    for other in names:
        if other.startswith(f"{name}/") or name.startswith(f"{other}/"):
            raise BranchPrefixClash(name, other)


def unknown_branch(name: str, existing: Iterable[str], *, is_tag: bool = False) -> BranchNotFound:
    """The error for a branch that does not exist, with near names; `is_tag` when a tag has the name."""
    if is_tag:
        hint = f"'{name}' is a tag: it can be read but never written; name a branch"
        return BranchNotFound(name, hint=hint)
    import difflib  # noqa: PLC0415  only for a mistake

    return BranchNotFound(name, candidates=difflib.get_close_matches(name, [MAIN, *existing], CANDIDATES_MAX))
