"""The keys callers gave their writes: which commit answers a request that is sent again."""

import hashlib
import json
import threading
from dataclasses import field
from typing import TYPE_CHECKING, cast

from omnigraph.core.clock import Clock
from omnigraph.core.errors import BadRequest, IdempotencyMismatch
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import REQUEST_KEY_CHARACTERS_MAX, REQUEST_KEY_HOURS
from omnigraph.manifest.commit_record import CommitRecord, RequestKey
from omnigraph.manifest.commits import CommitLog
from omnigraph.manifest.state import Snapshot

if TYPE_CHECKING:
    from omnigraph.core.ids import Branch

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
    """The keys in the history of one branch up to `head`, oldest first; of one that was used twice within
    its window, the first commit.
    """

    head: CommitRecord
    time_us: int = 0
    """When `head` was made, at the earliest: no commit is older than those before it, whatever clocks say."""
    answers: dict[tuple[str | None, str], tuple[int, Answer]] = field(
        default_factory=dict["tuple[str | None, str]", "tuple[int, Answer]"]
    )
    """With the time of the commit, in that sense."""

    def reaches(self, snapshot: Snapshot) -> bool:
        """Whether the keys of this state are known: it is that of `head`, or an earlier one of the branch."""
        record, head = snapshot.commit, self.head
        if record.id == head.id:
            return True
        own = record.home == snapshot.branch and (head.home, head.incarnation) == (
            record.home,
            record.incarnation,
        )
        return own and record.manifest_version < head.manifest_version

    def add(self, record: CommitRecord, now_us: int) -> None:
        """Know the keys of a newer commit; one that was used before the window begins anew."""
        self.time_us = max(self.time_us, min(record.time_us, now_us))
        for each in record.keys:
            name = (each.actor, each.key)
            if name in self.answers and self.answers[name][0] >= now_us - _WINDOW_US:
                continue
            self.answers.pop(name, None)
            self.answers[name] = self.time_us, (record, each)

    def forget(self, since_us: int) -> None:
        """Drop the keys whose window is over, so that a process that runs for long does not gather them."""
        while self.answers:
            name = next(iter(self.answers))
            if self.answers[name][0] >= since_us:
                return
            del self.answers[name]


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

        Cost: none when nothing was published since the last question; otherwise one look at each commit
        since, or one pass over those of the window when these are many.
        """
        now_us = self._clock.now_us()
        with self._lock:
            known = self._followed(snapshot, now_us)
            time_us, found = known.answers.get((actor, key), (0, None))
        return found if time_us >= now_us - _WINDOW_US else None

    def _followed(self, snapshot: Snapshot, now_us: int) -> _Known:
        known, head = self._known.get(snapshot.branch), snapshot.commit
        if known is not None and known.reaches(snapshot):
            return known
        newer = None if known is None else self._commits.after(known.head.id, head)
        if known is None or newer is None:
            known, newer = _Known(head), self._commits.since(head, now_us - _WINDOW_US)
            self._known[snapshot.branch] = known
        known.forget(now_us - _WINDOW_US)
        for record in reversed(newer):
            known.add(record, now_us)
        known.head = head
        return known
