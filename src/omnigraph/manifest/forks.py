"""Whether anything shows a branch's own reference on a table.

A reference with a branch's name may be in the way: another writer made it, or a writer that died did, or an
earlier branch of that name. What branches and tags show decides which; what cannot be read decides nothing.
"""

from enum import StrEnum
from typing import TYPE_CHECKING

from omnigraph.core.errors import OmnigraphError
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import Branch, BranchName, TableKey

if TYPE_CHECKING:
    from omnigraph.manifest.store import ManifestStore


class ForkStatus(StrEnum):
    """What a table's reference of a branch is."""

    LEGITIMATE = "legitimate"
    """A live branch or a tag shows the table there."""
    ORPHAN = "orphan"
    """Nothing shows the table there: nobody can read it."""
    INDETERMINATE = "indeterminate"
    """What could show it could not be read."""


def classify_fork(manifest: "ManifestStore", table_key: TableKey, name: BranchName) -> ForkStatus:
    """Judge the reference `name` of a table by what every live branch and every tag shows now.

    A branch made from another one shows tables under the other one's name, so all of them are asked. A branch
    that cannot be read and did not grow out of `name` cannot show it. Only an orphan may be destroyed.
    """
    try:
        failpoint(Window.CLASSIFY_FRESH_READ)
        for branch, version in _states(manifest):
            try:
                snapshot = (
                    manifest.current(branch) if version is None else manifest.at_version(branch, version)
                )
            except OmnigraphError:
                if _may_show(manifest, branch, name):
                    return ForkStatus.INDETERMINATE
                continue
            entry = snapshot.entries.get(table_key)
            if entry is not None and entry.branch == name:
                return ForkStatus.LEGITIMATE
    except OmnigraphError:
        return ForkStatus.INDETERMINATE
    return ForkStatus.ORPHAN


def _states(manifest: "ManifestStore") -> list[tuple[Branch, int | None]]:
    """The heads of all branches, without a version, and the states that tags name."""
    heads: list[tuple[Branch, int | None]] = [(branch, None) for branch in (None, *manifest.all_branches())]
    return [*heads, *manifest.tags.places().values()]


def _may_show(manifest: "ManifestStore", branch: Branch, name: BranchName) -> bool:
    """Whether a branch is the one of that name, or was made from it or from one that was."""
    seen: set[Branch] = set()
    while branch is not None and branch != name and branch not in seen:
        seen.add(branch)
        try:
            branch = manifest.branch_reference(branch).parent
        except OmnigraphError:
            return True
    return branch == name
