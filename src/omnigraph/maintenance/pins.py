"""Pins: states that somebody reads file by file, and that nobody may reclaim meanwhile.

A pin is one object, `__pins/<id>.json`. It names states and says whether the history before them is needed,
too. Its owner renews it while it lives. Whoever removes files of a graph reads the pins under the writer
lease; a pin is written under the lease as well, so the one comes wholly before the other.
"""

import json
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from omnigraph.core.errors import StoragePermanent
from omnigraph.core.formats import PIN_FORMAT
from omnigraph.core.ids import Branch, CommitId, new_ulid
from omnigraph.core.limits import LEASE_CLOCK_SKEW_S_MAX, PIN_EXPIRY_S
from omnigraph.engine.session import GraphSession
from omnigraph.storage.layout import PINS


@dataclass(frozen=True, slots=True)
class PinnedState:
    """What a branch showed at a manifest version."""

    branch: Branch
    manifest_version: int
    commit: CommitId


class Pin:
    """One pin of this process. It exists from `renew` on."""

    def __init__(
        self, session: GraphSession, purpose: str, states: Iterable[PinnedState], *, history: bool
    ) -> None:
        self._adapter, self._clock = session.adapter, session.clock
        self._name = f"{PINS}/{new_ulid()}.json"
        self._created_us = session.clock.now_us()
        self._renewed_us = 0
        self._content = {
            "format": PIN_FORMAT,
            "purpose": purpose,
            "owner": f"{socket.gethostname()}:{os.getpid()}",
            "created_at": self._created_us,
            "history": history,
            "states": [
                {
                    "branch": each.branch,
                    "manifest_version": each.manifest_version,
                    "graph_commit_id": each.commit,
                }
                for each in states
            ],
        }

    def renew(self) -> None:
        """Write the pin, or its next heartbeat."""
        now = self._clock.now_us()
        content = {**self._content, "expires_at": now + PIN_EXPIRY_S * 1_000_000}
        self._adapter.write_text(self._name, json.dumps(content))
        self._renewed_us = now

    def renew_when_due(self) -> None:
        """Write the next heartbeat when a third of the time is over. Called often."""
        if self._clock.now_us() - self._renewed_us > PIN_EXPIRY_S * 1_000_000 // 3:
            self.renew()

    def release(self) -> None:
        """Let go of the states; a second call does nothing."""
        self._adapter.delete(self._name)


@dataclass(frozen=True, slots=True)
class LivePin:
    """A pin that somebody has, as a cleanup reads it."""

    name: str
    purpose: str
    history: bool
    """Whether everything before the states is needed as well."""
    states: tuple[tuple[Branch, int], ...]


def live_pins(session: GraphSession) -> tuple[list[LivePin], list[str]]:
    """The pins that are in force, and the names of those whose owners are gone.

    Raises StoragePermanent for one that cannot be understood: what it needs is not known. Cost: a listing,
    a read per pin.
    """
    live: list[LivePin] = []
    over: list[str] = []
    for name in _names(session):
        found = _read(session, name)
        if isinstance(found, LivePin):
            live.append(found)
        elif found:
            over.append(name)
    return live, over


def remove_expired(session: GraphSession) -> None:
    """Remove the pins of owners that are gone; one that cannot be read stays. Cost: as `live_pins`."""
    for name in _names(session):
        with suppress(StoragePermanent):
            if _read(session, name) is True:
                session.adapter.delete(name)


def _names(session: GraphSession) -> list[str]:
    return [f"{PINS}/{file}" for file in session.adapter.list_dir(PINS)]


def _read(session: GraphSession, name: str) -> LivePin | bool:
    """One pin; otherwise whether it is there and its time is over. Raises StoragePermanent."""
    text = session.adapter.read_text_if_exists(name)
    if text is None:
        return False  # its owner has just let go
    try:
        members = cast("dict[str, Any]", json.loads(text))
        if int(members["expires_at"]) < session.clock.now_us() - LEASE_CLOCK_SKEW_S_MAX * 1_000_000:
            return True
        if members["format"] != PIN_FORMAT:
            raise ValueError(f"it has format {members['format']}")  # noqa: TRY301
        states = tuple((each["branch"], int(each["manifest_version"])) for each in members["states"])
        return LivePin(name, str(members["purpose"]), bool(members["history"]), states)
    except (ValueError, TypeError, KeyError) as error:
        raise StoragePermanent(
            f"{session.adapter.address(name)}: the pin cannot be read: {error}",
            hint="what it protects is not known; delete the file if nobody clones this graph",
        ) from error
