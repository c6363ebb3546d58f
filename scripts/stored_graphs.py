"""Writes the stored graphs of `tests/graphs`, which every later version has to open, read and write.

    python scripts/stored_graphs.py NAME

Run once for a release or for a new format, under a name that is not taken: `<name>-<stamp>.tar.xz` per
stamp, and `<name>.json` with what every state holds. Files that are there stay as they are: they are what an
earlier program wrote. A graph has branches that inherit, branches that forked and one that grew out of a
fork, a tag, merges, an older schema on a branch, a load that died half-way and a write that died before it
was visible.
"""

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import omnigraph
from omnigraph.core.settings import Settings
from omnigraph.engine.session import connect_storage
from omnigraph.manifest.state import STAMP, manifest_schema
from omnigraph.manifest.store import ManifestStore

PLACE = Path(__file__).resolve().parent.parent / "tests" / "graphs"
FAST = Settings(durability="os")
STAMPS = range(1, STAMP + 1)

SCHEMA = """
node Person { name: String @key  age: I32? @index  about: String? @index  place: Vector(2)? }
node Photo { slug: String @key  file: Blob? }
edge Knows: Person -> Person { since: Date? }
"""
WIDER = SCHEMA.replace("age: I32? @index", "age: I32? @index  mood: enum(calm, tense)?")
PERSON = 'insert Person { name: "%s", age: %d, about: "knows about %s" }'
LOADER = """
import io, json, sys, omnigraph
from omnigraph.core.settings import Settings
rows = [json.dumps({"type": "Person", "data": {"name": f"loaded{n}", "age": n}}) for n in range(20)]
with omnigraph.open(sys.argv[1], settings=Settings(durability="os")) as graph:
    graph.load(io.BytesIO("\\n".join(rows).encode()), mode="append", engine="local")
"""
WRITER = """
import sys, omnigraph
from omnigraph.core.settings import Settings
with omnigraph.open(sys.argv[1], settings=Settings(durability="os")) as graph:
    graph.mutate('query q() { insert Person { name: "pending" } }', actor="pat")
"""


def main() -> None:
    """Write one graph per stamp, and what they hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name")
    name = parser.parse_args().name
    PLACE.mkdir(exist_ok=True)
    if list(PLACE.glob(f"{name}*")):
        sys.exit(f"there are files of '{name}' in {PLACE}: they are kept as an earlier program wrote them")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "graph"
        make(root)
        states = states_of(root)
        die_half_way(root)
        for stamp in STAMPS:
            place = Path(directory) / f"stamp{stamp}"
            shutil.copytree(root, place)
            if stamp < STAMP:
                restamp(place, stamp)
            pack(place, PLACE / f"{name}-{stamp}.tar.xz")
    (PLACE / f"{name}.json").write_text(
        json.dumps(states, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    )


def make(root: Path) -> None:
    """A graph with a history."""
    with omnigraph.init(root, schema=SCHEMA, settings=FAST) as graph:
        write(graph, *(PERSON % (name, age, "maps") for name, age in (("ada", 36), ("ben", 41), ("cyd", 29))))
        write(graph, 'insert Knows { from: "ada", to: "ben", since: date("2020-05-01") }', actor="ines")
        write(graph, 'insert Photo { slug: "cat", file: "base64:AG5vdCBhIGNhdP8=" }')
        graph.ensure_indices()
        graph.tags.create("v1")
        for branch in ("inherits", "forked", "merged", "forwarded"):
            graph.branches.create(branch)
        write(graph, 'update Person set { age: 37 } where name = "ada"', branch="forked")
        graph.branches.create("grandchild", from_branch="forked")
        write(graph, 'delete Person where name = "cyd"', branch="grandchild")
        write(graph, PERSON % ("dov", 50, "ships"), branch="forwarded")
        graph.branches.merge("forwarded")
        write(graph, 'update Person set { place: [1.0, 0.5] } where name = "ben"', branch="merged")
        graph.branches.merge("merged", actor="ines")
        graph.apply_schema(WIDER)
        write(graph, 'update Person set { mood: "calm" } where name = "ada"')
        graph.branches.delete("forwarded")
        graph.optimize()


def write(graph: omnigraph.Graph, *statements: str, branch: str = "main", actor: str | None = None) -> None:
    """Run statements as one mutation."""
    graph.mutate(f"query q() {{ {' '.join(statements)} }}", branch=branch, actor=actor)


def states_of(root: Path) -> dict[str, dict[str, str]]:
    """Every commit of every branch, every branch and every tag, as exported lines."""
    with omnigraph.open_read_only(root, settings=FAST) as graph:
        branches = {name: graph.export(branch=name) for name in graph.branches.list()}
        commits = {each.id for name in branches for each in graph.commits.list(branch=name)}
        return {
            "branches": branches,
            "tags": {each: graph.export(at=each) for each in graph.tags.list()},
            "commits": {each: graph.export(at=each) for each in sorted(commits)},
        }


def restamp(root: Path, stamp: int) -> None:
    """Give every branch the manifest that a program of an earlier format wrote."""
    place, settings, adapter = connect_storage(os.fspath(root), settings=FAST, storage_options=None)
    store = ManifestStore(place, settings, adapter)
    for branch in (None, *store.branches()):
        head = store.head(branch)
        rows = store.dataset.read(head.handle).cast(manifest_schema(stamp))
        written = store.dataset.write_rows(head.handle, branch, rows, replacing=True)
        store.dataset.commit_overwrite(head.handle, branch, manifest_schema(stamp), written)


def die_half_way(root: Path) -> None:
    """Leave a load that staged everything, then a write whose tables moved and that nobody sees."""
    for program, window in (
        (LOADER, "load.post_stage"),
        (WRITER, "mutation.post_finalize_pre_publisher"),
    ):
        died = subprocess.run(
            [sys.executable, "-c", program, root],
            env={**os.environ, "OMNIGRAPH_FAILPOINTS": f"{window}=kill"},
            check=False,
        )
        if died.returncode != -9:
            sys.exit(f"the writer did not die at {window}")
    shutil.rmtree(root / "__cache", ignore_errors=True)


def pack(root: Path, target: Path) -> None:
    """The directory as one archive; times are kept to the nanosecond by a list beside the files."""
    times = {
        path.relative_to(root).as_posix(): path.stat().st_mtime_ns
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
    with tarfile.open(target, "w:xz") as archive:
        archive.add(root, arcname="graph", filter=_nobodys)
        text = json.dumps(times).encode()
        entry = tarfile.TarInfo("times.json")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main()
