"""Identifier types, the source of ids, and the spelling of branch names and table keys."""

import os
import threading
import time
from functools import cache
from typing import Final, NewType

from omnigraph.core.errors import BadRequest

TableKey = NewType("TableKey", str)
"""`node:<TypeName>` or `edge:<EdgeName>`; case preserved."""
BranchName = NewType("BranchName", str)
CommitId = NewType("CommitId", str)
OperationId = NewType("OperationId", str)

Branch = BranchName | None
"""A branch inside the engine; None is main."""

MAIN: Final = "main"
ENGINE_ACTORS: Final = "omnigraph:"
"""The beginning of every actor under which the engine itself writes, such as recovery."""
NAME_BYTES_MAX: Final = 255
"""Bytes that the name of a file may have, and so that of anything which is looked up as one."""
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM_BITS: Final = 80
_FNV_OFFSET: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_MASK_64: Final = (1 << 64) - 1


class UlidSource:
    """ULIDs that grow strictly within one source, whatever the wall clock does. Thread-safe.

    A forked child starts from fresh randomness, so that two processes never continue one sequence.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self) -> str:
        """The next id: 26 characters, ordered like the moments they were drawn."""
        random = int.from_bytes(os.urandom(_RANDOM_BITS // 8), "big")
        fresh = ((time.time_ns() // 1_000_000) << _RANDOM_BITS) | random
        with self._lock:
            # Within one millisecond, and after the clock stepped back, count up from the last id instead.
            self._last = fresh if fresh >> _RANDOM_BITS > self._last >> _RANDOM_BITS else self._last + 1
            return encode_ulid(self._last)

    def forget(self) -> None:
        """Start over with fresh randomness (in a forked child)."""
        self._lock = threading.Lock()
        self._last = 0


def encode_ulid(value: int) -> str:
    """The 26 characters of a 128-bit number."""
    pairs = _pairs()
    return "".join([pairs[value >> shift & 1023] for shift in range(120, -1, -10)])


@cache
def _pairs() -> tuple[str, ...]:
    """Every two digits."""
    return tuple(high + low for high in _ALPHABET for low in _ALPHABET)


new_ulid: Final = UlidSource()
os.register_at_fork(after_in_child=new_ulid.forget)


def normalize_branch(text: str | None) -> Branch:
    """The branch a user named: trimmed, `main` as None. An empty name is a BadRequest."""
    if text is None:
        return None
    name = text.strip()
    if not name:
        raise BadRequest("a branch name cannot be empty")
    if len(name.encode("utf-8", "replace")) > NAME_BYTES_MAX:
        raise BadRequest("no branch has a name that long")
    return None if name == MAIN else BranchName(name)


def show_branch(branch: Branch) -> str:
    """The name a user reads."""
    return MAIN if branch is None else branch


def node_table_key(name: str) -> TableKey:
    """The table key of a node type."""
    return TableKey(f"node:{name}")


def edge_table_key(name: str) -> TableKey:
    """The table key of an edge type."""
    return TableKey(f"edge:{name}")


def fnv1a64(text: str) -> int:
    """The 64-bit FNV-1a hash of the UTF-8 text."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = ((value ^ byte) * _FNV_PRIME) & _MASK_64
    return value


def refuse_reserved_actor(actor: str | None) -> None:
    """Refuse an actor that is reserved or empty.

    Commits of the engine say that a dead writer's work was settled, so nobody else may sign as the engine. A
    caller without a name leaves the actor out.
    """
    if actor is not None and not actor.strip():
        raise BadRequest("the actor is empty", hint="name somebody, or leave the actor out")
    if actor is not None and actor.startswith(ENGINE_ACTORS):
        raise BadRequest(
            f"the actor '{actor}' is reserved", hint=f"choose one that does not begin with '{ENGINE_ACTORS}'"
        )
