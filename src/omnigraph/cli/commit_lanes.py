"""The history drawn as lines: a column for each line of commits that is under way."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from omnigraph.core.ids import CommitId
    from omnigraph.manifest.commit_record import CommitRecord


def lanes_of(
    commits: "Sequence[CommitRecord]", *, passed_over: "Sequence[CommitRecord]" = ()
) -> "Iterator[tuple[str, CommitRecord | None]]":
    """The lines of the drawing: the marks of a commit and the commit, or marks between two commits.

    Every commit must come before its parents. The line to a parent that is not among the commits goes on to
    the end: there is more history than is drawn. A line leads through commits of upkeep in `passed_over`.
    """
    lanes: list[CommitId] = []
    hidden = {each.id: each.parents[0] for each in passed_over if each.is_upkeep and each.parents}

    def drawn(parent: "CommitId") -> "CommitId":
        while parent in hidden:
            parent = hidden[parent]
        return parent

    for commit in commits:
        if commit.id not in lanes:
            lanes.append(commit.id)
        at = lanes.index(commit.id)
        yield " ".join("*" if number == at else "|" for number in range(len(lanes))), commit
        if not commit.parents:
            del lanes[at]
            continue
        parents = [drawn(parent) for parent in commit.parents]
        lanes[at], merged = parents[0], parents[-1]
        if merged not in lanes:
            lanes.insert(at + 1, merged)
            yield "| " * at + "|\\" + " \\" * (len(lanes) - at - 2), None
        ends = [number for number, lane in enumerate(lanes) if lane == parents[0]]
        if len(ends) > 1:
            left, right = ends
            del lanes[right]
            yield "| " * left + "|" + "_|" * (right - left - 1) + "/" + " /" * (len(lanes) - right), None
