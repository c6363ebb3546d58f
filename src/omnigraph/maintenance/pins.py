"""Pins: states that somebody reads file by file, and that nobody may reclaim meanwhile.

A pin is one object, `__pins/<id>.json`. It names states and says whether the history before them is needed,
too. Its owner renews it while it lives. Whoever removes files of a graph reads the pins under the writer
lease; a pin is written under the lease as well, so the one comes wholly before the other.
"""

import json
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass

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


def remove_expired(session: GraphSession) -> None:
    """Remove the pins of owners that are gone. Cost: a listing, a read per pin."""
    latest = session.clock.now_us() - LEASE_CLOCK_SKEW_S_MAX * 1_000_000
    for name in session.adapter.list_dir(PINS):
        text = session.adapter.read_text_if_exists(f"{PINS}/{name}")
        try:
            over = text is not None and int(json.loads(text)["expires_at"]) < latest
        except (ValueError, TypeError, KeyError):
            continue  # not one we know: somebody else's, who may still need it
        if over:
            session.adapter.delete(f"{PINS}/{name}")
