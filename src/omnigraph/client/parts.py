"""The branches, the commits, the tags and the feed of a graph behind a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Unpack
from urllib.parse import quote

from omnigraph.api.arguments import text_checked_methods
from omnigraph.client import reports
from omnigraph.client.link import Part, check_caller
from omnigraph.client.wire import commit_of, creation_of, deletion_of, merge_of, told
from omnigraph.core.ids import CommitId

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Sequence

    from omnigraph.api.branches import BranchCreation
    from omnigraph.branching.baseline import Baseline
    from omnigraph.branching.branches import BranchDeletion
    from omnigraph.branching.feed import ChangesPage, FeedPage
    from omnigraph.branching.listing import BranchDetail
    from omnigraph.branching.merge_report import MergePreview, MergeReport
    from omnigraph.core.bounds import CallLimits
    from omnigraph.manifest.commit_record import CommitRecord

COMMITS_AT_ONCE: Final = 1_000
CHANGES_AT_ONCE: Final = 8_192
COMMITS_PER_PAGE: Final = 100


@text_checked_methods
class RemoteBranches(Part):
    """The branches of a graph behind a server."""

    def list(self, **_limits: Unpack[CallLimits]) -> list[str]:
        """All branches, main first, then by name."""
        names = told(self._link.get("/branches"), lambda said: [str(each) for each in said["branches"]])
        return sorted(names, key=lambda name: (name != "main", name))

    def details(self, **_limits: Unpack[CallLimits]) -> tuple[BranchDetail, ...]:
        """Every branch by name with its head and how far it and main are apart."""
        return told(self._link.get("/branches/details"), reports.details_of)

    def create(
        self, name: str, *, from_branch: str = "main", actor: str | None = None, **_limits: Unpack[CallLimits]
    ) -> BranchCreation:
        """Make a branch that shows what `from_branch` shows now."""
        check_caller(actor)
        return told(self._link.post("/branches", {"name": name, "from": from_branch}), creation_of)

    def delete(self, name: str, *, actor: str | None = None, **_limits: Unpack[CallLimits]) -> BranchDeletion:
        """Delete a branch."""
        check_caller(actor)
        return told(self._link.remove(f"/branches/{quote(name, safe='')}"), deletion_of)

    def merge(
        self,
        source: str,
        *,
        into: str = "main",
        actor: str | None = None,
        on_conflict: str | Mapping[str, str] | None = None,
        resolve: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        **_limits: Unpack[CallLimits],
    ) -> MergeReport:
        """Merge the head of `source` into another branch as one commit with two parents."""
        check_caller(actor)
        return told(self._link.post("/branches/merge", _merge(source, into, on_conflict, resolve)), merge_of)

    def preview(
        self,
        source: str,
        *,
        into: str = "main",
        on_conflict: str | Mapping[str, str] | None = None,
        resolve: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        **_limits: Unpack[CallLimits],
    ) -> MergePreview:
        """What `merge` would do now, and every conflict; nothing is written."""
        body = _merge(source, into, on_conflict, resolve)
        return told(self._link.look("/branches/preview", body), reports.preview_of)

    def restore(
        self, name: str, *, to: str, actor: str | None = None, **_limits: Unpack[CallLimits]
    ) -> MergeReport:
        """Make a branch show the rows of a tag, a commit or another branch again, as a new commit."""
        check_caller(actor)
        return told(self._link.post("/branches/restore", {"branch": name, "to": to}), merge_of)


def _merge(
    source: str,
    into: str,
    on_conflict: str | Mapping[str, str] | None,
    resolve: str | os.PathLike[str] | Mapping[str, Any] | None,
) -> dict[str, Any]:
    sides = dict(on_conflict) if isinstance(on_conflict, Mapping) else on_conflict
    body: dict[str, Any] = {"source": source, "target": into, "on_conflict": sides}
    if resolve is not None:
        from omnigraph.branching.merge_report import conflicts_in  # noqa: PLC0415  few merges have a list

        body["resolve"] = dict(resolve if isinstance(resolve, Mapping) else conflicts_in(resolve))
    return body


@text_checked_methods
class RemoteCommits(Part):
    """The history of a graph behind a server."""

    def list(
        self,
        *,
        branch: str = "main",
        actor: str | None = None,
        limit: int | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
        before: str | None = None,
        merged: bool = False,
        upkeep: bool = True,
        **_limits: Unpack[CallLimits],
    ) -> list[CommitRecord]:
        """Commits of a branch, newest first. As `Graph.commits.list`."""
        found: list[CommitRecord] = []
        while limit is None or len(found) < limit:
            wanted = COMMITS_AT_ONCE if limit is None else min(limit - len(found), COMMITS_AT_ONCE)
            answer = self._link.get(
                "/commits",
                branch=branch,
                actor=actor,
                limit=wanted,
                before=found[-1].id if found else before,
                since=since_us,
                until=until_us,
                # An earlier server knows neither, and refuses what it does not know.
                merged="true" if merged else None,
                upkeep=None if upkeep else "false",
            )
            page = told(answer, lambda said: [commit_of(each) for each in said["commits"]])
            found += page
            if len(page) < wanted:
                break
        return found

    def show(self, reference: str, **_limits: Unpack[CallLimits]) -> CommitRecord:
        """One commit: that of an id, a tag, or the head of a branch."""
        return told(self._link.get(f"/commits/{quote(reference, safe='')}"), commit_of)

    def head(self, *, branch: str = "main", **_limits: Unpack[CallLimits]) -> CommitRecord:
        """The newest commit of a branch."""
        return told(
            self._link.get("/commits", branch=branch, limit=1), lambda said: commit_of(said["commits"][0])
        )


@text_checked_methods
class RemoteTags(Part):
    """The tags of a graph behind a server."""

    def list(self, **_limits: Unpack[CallLimits]) -> dict[str, CommitId]:
        """Every tag and the commit it names."""
        return told(
            self._link.get("/tags"),
            lambda said: {str(name): CommitId(at) for name, at in said["tags"].items()},
        )

    def create(
        self, name: str, *, at: str = "main", actor: str | None = None, **_limits: Unpack[CallLimits]
    ) -> CommitId:
        """Name a commit for good."""
        check_caller(actor)
        answer = self._link.post("/tags", {"name": name, "at": at})
        return told(answer, lambda said: CommitId(said["graph_commit_id"]))

    def delete(self, name: str, *, actor: str | None = None, **_limits: Unpack[CallLimits]) -> None:
        """Forget a name; the commit stays."""
        check_caller(actor)
        self._link.remove(f"/tags/{quote(name, safe='')}")


@text_checked_methods
class RemoteFeed(Part):
    """The commits of a branch behind a server as they come, with what each changed."""

    def start(
        self,
        at: str = "now",
        *,
        branch: str = "main",
        types: Sequence[str] | None = None,
        ops: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        **_limits: Unpack[CallLimits],
    ) -> str:
        """A cursor at the head of the branch (`now`), at the `beginning`, or `after:` a commit."""
        answer = self._link.get("/changes/start", start=at, branch=branch, **_chosen(types, ops, kinds))
        return told(answer, lambda said: str(said["cursor"]))

    def poll(
        self,
        position: str,
        *,
        branch: str = "main",
        types: Sequence[str] | None = None,
        ops: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        changes_max: int = CHANGES_AT_ONCE,
        commits_max: int = COMMITS_PER_PAGE,
        **_limits: Unpack[CallLimits],
    ) -> FeedPage:
        """One page of the commits after a cursor, oldest first. As `Graph.feed.poll`."""
        answer = self._link.get(
            "/changes",
            cursor=position,
            branch=branch,
            limit=changes_max,
            commits=commits_max,
            **_chosen(types, ops, kinds),
        )
        return told(answer, reports.feed_page_of)

    def changes(
        self,
        commit: str,
        *,
        types: Sequence[str] | None = None,
        ops: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        page_token: str | None = None,
        changes_max: int = CHANGES_AT_ONCE,
        **_limits: Unpack[CallLimits],
    ) -> ChangesPage:
        """One page of what a commit changed against its first parent."""
        answer = self._link.get(
            f"/commits/{quote(commit, safe='')}/changes",
            page_token=page_token,
            limit=changes_max,
            **_chosen(types, ops, kinds),
        )
        return told(answer, reports.changes_page_of)

    def baseline(
        self,
        path: str | os.PathLike[str],
        *,
        branch: str = "main",
        types: Sequence[str] | None = None,
        ops: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Baseline:
        """Write the state of a branch as JSON lines and give the cursor that goes on from it.

        The file appears whole or not at all.
        """
        from omnigraph.branching.baseline import write_baseline  # noqa: PLC0415  few programs need it

        lines = self.baseline_lines(branch=branch, types=types, ops=ops, kinds=kinds)
        return write_baseline(path, lines)

    def baseline_lines(
        self,
        *,
        branch: str = "main",
        types: Sequence[str] | None = None,
        ops: Sequence[str] | None = None,
        kinds: Sequence[str] | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Generator[bytes, None, Baseline]:
        """The state of a branch as JSON lines. As `Graph.feed.baseline_lines`."""
        from omnigraph.branching.baseline import Baseline  # noqa: PLC0415  as above

        last = b""
        with self._link.stream(
            "/changes/baseline", {"branch": branch, **_chosen(types, ops, kinds)}
        ) as answer:
            # The last line is no record, and which one that is, is known at the end.
            for chunk in answer.iter_bytes():
                *whole, last = (last + chunk).splitlines(keepends=True)
                yield b"".join(whole)
        return told(
            last,
            lambda said: Baseline(
                CommitId(said["baseline"]["snapshot_commit_id"]), said["baseline"]["resume_cursor"]
            ),
        )


def _chosen(
    types: Sequence[str] | None, ops: Sequence[str] | None, kinds: Sequence[str] | None
) -> dict[str, Any]:
    named = {"type": types, "op": ops, "kind": kinds}
    return {name: list(each) for name, each in named.items() if each}
