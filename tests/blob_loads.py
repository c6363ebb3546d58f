"""What a load does with external blobs: the same checks for every engine."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from graphs import FAST, rows_of, unchanged
from omnigraph.catalog.blobs import CONTENT, MARK, REFERENCE
from omnigraph.core.errors import BlobPolicyError, BlobSourceError, OmnigraphError, ResourceLimit

SCHEMA = """
node Doc { name: String @key  note: String?  body: Blob? }
edge Cites: Doc -> Doc { scan: Blob? }
"""
PICTURE = b"\x89PNG picture"


def b64(content: bytes) -> str:
    import base64

    return "base64:" + base64.b64encode(content).decode()


class Place:
    """A graph, and a directory of blobs that its handle may read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pictures = path / "pics"
        self.pictures.mkdir()
        (self.pictures / "a.png").write_bytes(PICTURE)
        (self.pictures / "b b.png").write_bytes(b"")
        self.secret = path / "pics2"
        self.secret.mkdir()
        (self.secret / "s.png").write_bytes(b"secret")
        self.uri = str(path / "g")
        omnigraph.init(self.uri, schema=SCHEMA, settings=FAST).close()

    def open(self, *sources: Any) -> Any:
        return omnigraph.open(self.uri, settings=FAST, blob_sources=sources or None)

    def address(self, name: str) -> str:
        return f"file://{self.pictures}/{name}"

    def file(self, *records: dict[str, Any]) -> Path:
        path = self.path / "in.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path


def doc(name: str, body: Any, **more: Any) -> dict[str, Any]:
    return {"type": "Doc", "data": {"name": name, "body": body, **more}}


def bodies(graph: Any) -> dict[str, Any]:
    return {key: row["body"] for key, row in rows_of(graph, "Doc").items()}


def refused(graph: Any, source: Path, engine: str, **words: Any) -> OmnigraphError:
    with unchanged(graph), pytest.raises(OmnigraphError) as caught:
        graph.load(source, mode="append", engine=engine, **words)
    return caught.value


def copied_in(place: Place, engine: str) -> None:
    """Append, merge and patch copy the bytes; rows of one source get the same bytes."""
    with place.open(place.pictures) as graph:
        records = [doc("a", place.address("a.png")), doc("b", place.address("b%20b.png")), doc("c", None)]
        edge = {"edge": "Cites", "from": "a", "to": "b", "data": {"scan": place.address("./%61.png")}}
        graph.load(place.file(*records, edge), mode="append", engine=engine)
        assert bodies(graph) == {"a": b64(PICTURE), "b": "base64:", "c": None}
        assert [row["scan"] for row in rows_of(graph, "Cites").values()] == [b64(PICTURE)]
        graph.load(place.file(doc("c", place.address("a.png"))), mode="merge", engine=engine)
        graph.load(place.file(doc("b", place.address("a.png"))), mode="patch", engine=engine)
        unmentioned = {"type": "Doc", "data": {"name": "a", "note": "patched"}}
        graph.load(place.file(unmentioned), mode="patch", engine=engine)
        assert bodies(graph) == dict.fromkeys("abc", b64(PICTURE))
    (place.pictures / "a.png").unlink()
    with place.open() as graph:
        assert bodies(graph) == dict.fromkeys("abc", b64(PICTURE))


def kept_as_reference(place: Place, engine: str) -> None:
    """Overwrite stores the address in its one spelling; it survives patches, merges of branches and export."""
    with place.open(place.pictures) as graph:
        spelled = f"FILE://localhost{place.pictures}/x/../%61.png"
        records = [doc("a", spelled), doc("b", b64(b"bytes")), doc("c", b64(REFERENCE + b"s3://b/x"))]
        graph.load(place.file(*records), mode="overwrite", engine=engine)
        assert bodies(graph) == {
            "a": place.address("a.png"),
            "b": b64(b"bytes"),
            "c": b64(REFERENCE + b"s3://b/x"),
        }
        assert graph.entity("Doc", "a").properties["body"] == omnigraph.BlobReference(place.address("a.png"))
        assert graph.entity("Doc", "c").properties["body"] == REFERENCE + b"s3://b/x"
        graph.load(
            place.file({"type": "Doc", "data": {"name": "a", "note": "n"}}), mode="patch", engine=engine
        )
        assert bodies(graph)["a"] == place.address("a.png")
        assert graph.blame("Doc", "a")["body"].said == place.address("a.png")
        before = graph.export()
        (place.path / "out.jsonl").write_text(before)
        (place.pictures / "a.png").rename(place.pictures / "gone")
        with pytest.raises(BlobSourceError):
            graph.load(place.path / "out.jsonl", mode="overwrite", engine=engine)
        (place.pictures / "gone").rename(place.pictures / "a.png")
        graph.load(place.path / "out.jsonl", mode="overwrite", engine=engine)
        assert graph.export() == before


def refused_without_effect(place: Place, engine: str) -> None:
    """Each rule, with nothing changed, and the place of the record."""
    good = doc("good", place.address("a.png"))
    with place.open() as graph:
        error = refused(graph, place.file(good), engine)
        assert type(error) is BlobPolicyError
        assert "external blob references are not allowed here" in error.message
        assert (error.exit_status, error.http_status) == (1, 400)
        assert error.details["problems"][0]["line"] == 1
    (place.pictures / "out").symlink_to(place.secret)
    (place.pictures / "file").symlink_to(place.secret / "s.png")
    (place.pictures / "in").symlink_to(place.pictures / "a.png")
    os.mkfifo(place.pictures / "pipe")
    with place.open(place.pictures) as graph:
        outside = [
            f"file://{place.secret}/s.png",
            place.address("../pics2/s.png"),
            place.address("%2e%2e/pics2/s.png"),
            place.address("..%2fpics2/s.png"),
            place.address("%252e%252e/pics2/s.png"),
            place.address("out/s.png"),
            place.address("file"),
            str(place.pictures / "a.png"),
            "s3://user:pw@b/x",
            "any other text",
        ]
        error = refused(
            graph, place.file(good, *(doc(f"d{n}", uri) for n, uri in enumerate(outside))), engine
        )
        assert type(error) is BlobPolicyError
        assert error.details["problem_totals"] == {"blob_policy": len(outside)}
        assert [each["line"] for each in error.details["problems"]] == list(range(2, len(outside) + 2))
        said = json.dumps(error.details) + error.message
        assert "user" not in said
        assert "pw" not in said
        unreadable = [place.address(name) for name in ("none.png", "pipe", "")]
        error = refused(
            graph, place.file(good, *(doc(f"d{n}", uri) for n, uri in enumerate(unreadable))), engine
        )
        assert error.details["problem_totals"] == {"blob_source": 3}
        assert type(error) is BlobSourceError
        assert (error.exit_status, error.http_status, str(error.retry)) == (1, 424, "after_delay")
        error = refused(graph, place.file(doc("a", place.address("x" * 65_536))), engine)
        assert type(error) is ResourceLimit
        assert error.details["resource_limit"]["resource"] == "external_blob_uri_bytes"
        assert error.details["resource_limit"]["limit"] == 65_536
        longest = place.address("x" * (65_536 - len(place.address(""))))
        assert type(refused(graph, place.file(doc("a", longest)), engine)) is BlobSourceError
        graph.load(place.file(doc("a", place.address("in"))), mode="append", engine=engine)
        assert bodies(graph) == {"a": b64(PICTURE)}


def set_aside(place: Place, engine: str) -> None:
    """With rejects the records of refused sources are set aside with their reasons; edges follow them."""
    with place.open(place.pictures) as graph:
        records = [
            doc("a", place.address("a.png")),
            doc("gone", place.address("gone.png")),
            doc("out", f"file://{place.secret}/s.png"),
            {"edge": "Cites", "from": "a", "to": "gone", "data": {}},
        ]
        report = graph.load(
            place.file(*records), mode="append", engine=engine, rejects=place.path / "rejects"
        )
        assert (report.records_read, report.records_refused) == (4, 3)
        assert bodies(graph) == {"a": b64(PICTURE)}
        kept = "".join(path.read_text() for path in sorted((place.path / "rejects").glob("*.jsonl")))
        assert "cannot be read" in kept
        assert "outside the allowed blob sources" in kept


def bytes_of_columns(place: Place, engine: str) -> None:
    """Bytes of Parquet are stored as they are, also bytes that look like a mark of ours."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    contents = [MARK, REFERENCE + b"s3://b/x", CONTENT + b"x", b"", b"plain", None]
    names = [f"d{n}" for n in range(len(contents))]
    path = place.path / "docs.parquet"
    pq.write_table(pa.table({"name": names, "body": pa.array(contents, pa.binary())}), path)
    with place.open(place.pictures) as graph:
        graph.load(path, mode="append", type_name="Doc", engine=engine)
        assert [bodies(graph)[name] for name in names] == [None if c is None else b64(c) for c in contents]
        graph.export_to(place.path / "out.parquet", types=["Doc"])
        assert pq.read_table(place.path / "out.parquet").column("body").to_pylist() == contents
        texts = [place.address("a.png"), b64(b"x"), None]
        pq.write_table(pa.table({"name": ["t0", "t1", "t2"], "body": texts}), place.path / "texts.parquet")
        graph.load(place.path / "texts.parquet", mode="append", type_name="Doc", engine=engine)
        (place.path / "cells.csv").write_text(f"name,body\nc0,{texts[0]}\nc1,{texts[1]}\nc2,\n")
        graph.load(place.path / "cells.csv", mode="append", type_name="Doc", engine=engine)
        for kind in "tc":
            found = [bodies(graph)[f"{kind}{n}"] for n in range(3)]
            assert found == [b64(PICTURE), b64(b"x"), None]
        graph.load(place.file(doc("r", place.address("a.png"))), mode="overwrite", engine=engine)
        with pytest.raises(OmnigraphError, match="references to external blobs"):
            graph.export_to(place.path / "refused.parquet", types=["Doc"])
        assert not (place.path / "refused.parquet").exists()


CHECKS = [copied_in, kept_as_reference, refused_without_effect, set_aside, bytes_of_columns]
