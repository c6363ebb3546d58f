"""The keys callers gave their writes: which commit answers a request that is sent again."""

import hashlib
import json
import threading
from dataclasses import field
from typing import cast

from omnigraph.core.clock import Clock
from omnigraph.core.errors import BadRequest, IdempotencyMismatch
from omnigraph.core.ids import Branch, CommitId
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import REQUEST_KEY_CHARACTERS_MAX, REQUEST_KEY_HOURS
from omnigraph.manifest.commit_record import CommitRecord, RequestKey
from omnigraph.manifest.commits import CommitLog
from omnigraph.manifest.state import Snapshot

Answer = tuple[CommitRecord, RequestKey]
_WINDOW_US = REQUEST_KEY_HOURS * 3_600_000_000


def request_key(key: str | None, actor: str | None, *request: object) -> RequestKey | None:
    """The key a caller gives a request, with a digest of what is asked for. Raises BadRequest."""
    if key is None:
        return None
    if not isinstance(cast("object", key), str) or not key or len(key) > REQUEST_KEY_CHARACTERS_MAX:
        raise BadRequest(
            f"an idempotency key is a text of 1 to {REQUEST_KEY_CHARACTERS_MAX} characters",
            hint="use a random id per request, and send it again with the same request only",
        )
    asked = json.dumps(request, ensure_ascii=True, sort_keys=True, default=repr)
    return RequestKey(actor, key, hashlib.sha256(asked.encode()).hexdigest())


@dataclass(slots=True)
class _Known:
    """The keys in the history of one branch up to `head`; of one that was used twice, the first commit."""

    head: CommitId
    answers: dict[tuple[str | None, str], Answer] = field(
        default_factory=dict["tuple[str | None, str]", "Answer"]
    )


class RequestKeys:
    """Looks keys up in the commits of a branch, those it inherited included. Thread-safe.

    A key is part of the commit record, so it holds as long as the commit is known, after restarts and
    recoveries, for `REQUEST_KEY_HOURS`.
    """

    def __init__(self, commits: CommitLog, clock: Clock) -> None:
        self._commits = commits
        self._clock = clock
        self._known: dict[Branch, _Known] = {}
        self._lock = threading.Lock()

    def answer(self, snapshot: Snapshot, asked: RequestKey) -> Answer | None:
        """The commit that answers this request, if an earlier one with its key was carried out.

        Raises `IdempotencyMismatch` when that was another request.
        """
        found = self.find(snapshot, asked.actor, asked.key)
        if found is not None and found[1].digest != asked.digest:
            raise IdempotencyMismatch(asked.key, found[0].id)
        return found

    def find(self, snapshot: Snapshot, actor: str | None, key: str) -> Answer | None:
        """The commit that carries this key of this actor, if the state contains one.

        Cost: none when nothing was published since the last question; one look at each commit of this process
        since; otherwise one pass over the commits of the window.
        """
        since_us = self._clock.now_us() - _WINDOW_US
        with self._lock:
            known = self._followed(snapshot, since_us)
            found = known.answers.get((actor, key))
        return found if found is not None and found[0].time_us >= since_us else None

    def _followed(self, snapshot: Snapshot, since_us: int) -> _Known:
        known = self._known.get(snapshot.branch)
        newer = None if known is None else self._newer(snapshot.commit, known.head)
        if known is None or newer is None:
            known, newer = _Known(snapshot.head), self._commits.since(snapshot.commit, since_us)
            self._known[snapshot.branch] = known
        for record in reversed(newer):
            for each in record.keys:
                known.answers.setdefault((each.actor, each.key), (record, each))
        known.head = snapshot.head
        return known

    def _newer(self, record: CommitRecord, head: CommitId) -> list[CommitRecord] | None:
        """The commits from this one back to `head`, newest first; None when they are not at hand."""
        found: list[CommitRecord] = []
        if record.id == head:
            return found
        current: CommitRecord | None = record
        while current is not None:
            found.append(current)
            if current.parent == head:
                return found
            current = None if current.parent is None else self._commits.at_hand(current.parent)
        return None
