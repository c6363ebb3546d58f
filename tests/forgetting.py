"""A person with values that nobody else has, and every file of a graph searched for them, decoded."""

import base64
from pathlib import Path

import lance.file

from graphs import run
from omnigraph.api.graph import Graph
from stores import Store

SUBJECT = "zqx-handle"
BLOB = b"zqxblob" * 64
VALUES = {
    "handle": SUBJECT,
    "name": "Zqxname",
    "bio": "zqxbioword",
    "nick": "zqxnick",
    "age": "913572468",
    "face": "0.40625",
    "photo": BLOB[:49].decode(),
    "changed": "zqxafterwards",
}
"""Texts by which each value is known once a file is decoded."""


def add_subject(graph: Graph, branch: str = "main") -> None:
    """The person with edges both ways and to a city, then changed: older files hold deleted rows of it."""
    run(
        graph,
        f'insert Person {{ handle: "{SUBJECT}", name: "Zqxname", age: 913572468, bio: "zqxbioword maps",'
        ' face: [0.40625, 0.0, 0.0, 0.0], nick: "zqxnick", photo: $p }'
        f' insert Knows {{ from: "{SUBJECT}", to: "p2" }} insert Knows {{ from: "p4", to: "{SUBJECT}" }}'
        f' insert LivesIn {{ from: "{SUBJECT}", to: "c1" }}'
        # Beside it in the same files, and here to stay.
        ' insert Person { handle: "beside", nick: "beside" } insert Knows { from: "beside", to: "p2" }'
        ' insert LivesIn { from: "beside", to: "c1" }',
        {"p": "base64:" + base64.b64encode(BLOB).decode()},
        types="$p: Blob",
        branch=branch,
    )
    graph.ensure_indices(branch=branch)
    changed = f'update Person set {{ name: "zqxafterwards" }} where handle = "{SUBJECT}"'
    run(graph, changed, branch=branch)


def spread(graph: Graph) -> None:
    """The person on main, on branches that inherit, own and forked it, in tags and in states between."""
    add_subject(graph)
    graph.branches.merge("main", into="kid", on_conflict="theirs")
    run(graph, f'update Person set {{ age: 17 }} where handle = "{SUBJECT}"', branch="kid")
    graph.branches.create("inherits")
    graph.branches.create("other")
    run(graph, 'insert City { name: "elsewhere" }', branch="other")
    graph.branches.create("deleted")
    run(graph, f'delete Person where handle = "{SUBJECT}"', branch="deleted")
    graph.optimize()
    graph.tags.create("v3")
    run(graph, 'insert Person { handle: "after" }')


def downloaded(store: Store, place: Path) -> Path:
    """Every object of a graph as a file."""
    adapter = store.adapter()
    for name in adapter.stored():
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"".join(adapter.read_chunks(name)))
    return place


def found(top: Path) -> dict[str, set[str]]:
    """Which values are in which files, decoded where Lance wrote them: rows, deleted ones too, and indexes."""
    hits: dict[str, set[str]] = {}
    for file in sorted(each for each in top.rglob("*") if each.is_file()):
        content = file.read_bytes()
        text = content.decode("latin-1")
        if file.suffix in {".lance", ".idx"}:
            text += _decoded(file)
        values = {name for name, value in VALUES.items() if value in text}
        if values:
            hits[str(file.relative_to(top))] = values
    return hits


def _decoded(file: Path) -> str:
    names = lance.file.LanceFileReader(str(file)).metadata().schema.names
    texts: list[str] = []
    for name in names:
        rows = lance.file.LanceFileReader(str(file), columns=[name]).read_all().to_table()
        texts.append(str(rows.to_pylist()))
    return "".join(texts)
