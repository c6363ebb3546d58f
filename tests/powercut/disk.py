"""What a file system may keep after a power cut, worked out from the calls that were made.

Only what was synced is sure: the bytes of a file by a sync of the file, the names in a directory by a sync of
the directory. Everything since may be there or not, each name for itself and each file whole, in part, as
zeros or not at all. A rename happens as one step. That is less than any one file system promises.
"""

import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from powercut.shim import Call, Kind

Image = dict[str, bytes | None]
"""Every file below the root with its bytes; None for a directory."""


@dataclass(eq=False)
class File:
    """The bytes of a file: those on the device, and those a reader sees."""

    durable: bytes = b""
    content: bytes = b""

    @property
    def dirty(self) -> bool:
        return self.durable != self.content

    def write(self, offset: int, data: bytes) -> None:
        old = self.content.ljust(offset, b"\0")
        self.content = old[:offset] + data + old[offset + len(data) :]


@dataclass(eq=False)
class Step:
    """One change of names that is on the device as a whole or not at all."""

    durable: bool = False


@dataclass(eq=False)
class Directory:
    """The names in a directory: those on the device, and what was done since."""

    durable: dict[str, "File | Directory"] = field(default_factory=dict)
    changes: list[tuple[Step, str, "File | Directory | None"]] = field(default_factory=list)

    def names(self, keep: Callable[[Step], bool]) -> dict[str, "File | Directory"]:
        found = dict(self.durable)
        for step, name, node in self.changes:
            if step.durable or keep(step):
                if node is None:
                    found.pop(name, None)
                else:
                    found[name] = node
        return found

    def change(self, step: Step, name: str, node: "File | Directory | None") -> None:
        # What is on the device and nothing can undo is not replayed again and again.
        while self.changes and self.changes[0][0].durable:
            _, old, what = self.changes.pop(0)
            if what is None:
                self.durable.pop(old, None)
            else:
                self.durable[old] = what
        self.changes.append((step, name, node))

    def sync(self) -> None:
        for step, _, _ in self.changes:
            step.durable = True


def everything(_step: Step) -> bool:
    return True


def nothing(_step: Step) -> bool:
    return False


class Disk:
    """The files below one root, as the calls of its processes left them. It starts empty."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = Directory()
        self._nodes: dict[int, File | Directory] = {}

    def look(self) -> None:
        """Learn the numbers of the files that are there now, put there by `place`."""
        self._nodes = {}
        for path in (self.root, *self.root.rglob("*")):
            self._nodes[path.lstat().st_ino] = self._find(str(path))

    def apply(self, call: Call) -> None:
        """What a call does. Raises AssertionError for one whose effect is not known."""
        match call.kind:
            case Kind.OPEN:
                self._open(call)
            case Kind.WRITE if isinstance(node := self._nodes.get(call.inode), File):
                node.write(call.offset, call.data)
            case Kind.TRUNCATE if isinstance(node := self._nodes.get(call.inode), File):
                node.content = node.content[: call.offset].ljust(call.offset, b"\0")
            case Kind.MKDIR:
                made = self._nodes[call.inode] = Directory()
                self._change(call.path, made)
            case Kind.LINK:
                self._change(call.other, self._find(call.path))
            case Kind.RENAME:
                step, node = Step(), self._find(call.path)
                if call.path != call.other:
                    self._change(call.path, None, step)
                self._change(call.other, node, step)
            case Kind.UNLINK | Kind.RMDIR:
                self._change(call.path, None)
            case Kind.SYNC if (node := self._nodes.get(call.inode)) is not None:
                _sync(node)
            case Kind.SYNC_ALL:
                for node in _below(self.top):
                    _sync(node)
            case Kind.UNKNOWN:
                raise AssertionError(f"a call whose effect is not known: {call}")
            case Kind.MARK | Kind.WRITE | Kind.TRUNCATE | Kind.SYNC:
                pass  # of a file without a name, which nobody can find after a cut

    def image(self, keep: Callable[[Step], bool], content: Callable[[File], bytes]) -> Image:
        """What is found when these changes of names are kept and the files are as told."""
        found: Image = {}

        def walk(directory: Directory, above: str) -> None:
            for name, node in directory.names(keep).items():
                path = f"{above}{name}"
                if isinstance(node, Directory):
                    found[path] = None
                    walk(node, f"{path}/")
                else:
                    found[path] = content(node)

        walk(self.top, "")
        return found

    def now(self) -> Image:
        """What a process sees, and what is found after a kill without a power cut."""
        return self.image(everything, lambda file: file.content)

    def _open(self, call: Call) -> None:
        found = self._find(call.path, required=False)
        if found is None:
            made = self._nodes[call.inode] = File()
            self._change(call.path, made)
        elif isinstance(found, File) and call.flags & os.O_TRUNC:
            found.content = b""

    def _change(self, path: str, node: File | Directory | None, step: Step | None = None) -> None:
        above = self._find(str(Path(path).parent))
        assert isinstance(above, Directory), path
        above.change(step or Step(), Path(path).name, node)

    def _find(self, path: str, *, required: bool = True) -> "File | Directory | None":
        node: File | Directory | None = self.top
        relative = os.path.relpath(path, self.root)
        for name in relative.split("/") if relative != "." else ():
            node = node.names(everything).get(name) if isinstance(node, Directory) else None
        assert node is not None or not required, path
        return node


def _sync(node: File | Directory) -> None:
    if isinstance(node, File):
        node.durable = node.content
    else:
        node.sync()


def _below(directory: Directory) -> Iterator[File | Directory]:
    yield directory
    for node in directory.names(everything).values():
        if isinstance(node, Directory):
            yield from _below(node)
        else:
            yield node


def _half(file: File) -> bytes:
    whole = len(file.content)
    return file.content[: (len(file.durable) + whole) // 2 if whole > len(file.durable) else whole // 2]


def _zeros(file: File) -> bytes:
    return file.durable + bytes(max(0, len(file.content) - len(file.durable)))


def cuts(disk: Disk, seeds: Iterable[int]) -> Iterator[tuple[str, Image]]:
    """What a power cut at this moment may leave: the extremes, and mixtures by these seeds."""
    yield "only what was synced", disk.image(nothing, lambda file: file.durable)
    yield "names without data", disk.image(everything, lambda file: file.durable)
    yield (
        "names with half the data",
        disk.image(everything, lambda file: _half(file) if file.dirty else file.content),
    )
    yield (
        "names with zeros",
        disk.image(everything, lambda file: _zeros(file) if file.dirty else file.content),
    )
    yield "all names and data", disk.now()
    for seed in seeds:
        yield f"mixture {seed}", _mixture(disk, random.Random(seed))


def _mixture(disk: Disk, chance: random.Random) -> Image:
    steps: dict[Step, bool] = {}
    files: dict[File, bytes] = {}
    share = chance.choice((0.2, 0.5, 0.8))

    def keep(step: Step) -> bool:
        return steps.setdefault(step, chance.random() < share)

    def content(file: File) -> bytes:
        if not file.dirty:
            return file.content
        return files.setdefault(file, chance.choice((file.durable, _half(file), _zeros(file), file.content)))

    return disk.image(keep, content)


def place(image: Image, root: Path) -> None:
    """Make the root look like the image."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for name, content in image.items():
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)


def read(root: Path) -> Image:
    """The root as it is."""
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes()
        for path in sorted(root.rglob("*"))
    }
