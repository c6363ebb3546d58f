"""External blobs: who may name them, how they are read, what is stored."""

import http.server
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import obstore
import pytest

import omnigraph
from blob_loads import CHECKS, PICTURE, SCHEMA, Place, b64, bodies, doc
from graphs import FAST, hear, make_graph, reopen, run, unchanged
from omnigraph.catalog.blobs import MARK
from omnigraph.core import limits
from omnigraph.core.errors import (
    BadRequest,
    BlobNull,
    BlobPolicyError,
    BlobRange,
    BlobSourceError,
    EntityNotFound,
    OmnigraphError,
    PropertyValueError,
    ResourceLimit,
    TypeNotFound,
)
from omnigraph.core.events import StorageCall
from omnigraph.storage import blob_sources
from omnigraph.storage.layout import GraphRoot
from stores import s3_store


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_external_blobs_in_a_local_load(check, tmp_path: Path) -> None:
    check(Place(tmp_path), "local")


def test_a_mutation_copies_the_bytes(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.open(place.pictures) as graph:
        run(graph, f'insert Doc {{ name: "a", body: "{place.address("a.png")}" }}')
        run(graph, 'insert Doc { name: "b", body: $p }', {"p": place.address("a.png")}, types="$p: String")
        run(graph, f'update Doc set {{ body: "{place.address("b%20b.png")}" }} where name = "b"')
        run(graph, 'update Doc set { note: "n" } where name = "a"')
        assert bodies(graph) == {"a": b64(PICTURE), "b": "base64:"}


def test_only_the_value_that_a_mutation_leaves_is_judged(tmp_path: Path, monkeypatch) -> None:
    place = Place(tmp_path)
    asked: list[str] = []
    allowed = blob_sources.BlobSources.allowed

    def counted(self, text):
        asked.append(text)
        return allowed(self, text)

    monkeypatch.setattr(blob_sources.BlobSources, "allowed", counted)
    gone = "s3://nobody/gone.png"
    with place.open(place.pictures) as graph:
        run(
            graph,
            f'insert Doc {{ name: "a", body: "{gone}" }} insert Doc {{ name: "b", body: "{gone}" }}'
            f' update Doc set {{ body: "{place.address("a.png")}" }} where name = "a"'
            ' update Doc set { note: "n" } where name = "a"'
            f' insert Doc {{ name: "b", body: "{b64(PICTURE)}" }}',
        )
        assert bodies(graph) == {"a": b64(PICTURE), "b": b64(PICTURE)}
        assert asked == [place.address("a.png")]
        with unchanged(graph), pytest.raises(BlobPolicyError, match=r"^Doc\.body: "):
            run(
                graph,
                f'update Doc set {{ body: "{place.address("a.png")}" }} where name = "a"'
                f' update Doc set {{ body: "{gone}" }} where name = "a"',
            )


def test_a_mutation_is_refused_before_any_effect(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (place.pictures / "out").symlink_to(place.secret)
    cases: list[tuple[str, type[OmnigraphError]]] = [
        (f"file://{place.secret}/s.png", BlobPolicyError),
        (place.address("../pics2/s.png"), BlobPolicyError),
        (place.address("%2e%2e/pics2/s.png"), BlobPolicyError),
        (place.address("out/s.png"), BlobPolicyError),
        ("s3://user:pw@b/x", BlobPolicyError),
        ("any other text", BlobPolicyError),
        (place.address("none.png"), BlobSourceError),
        (place.address("x" * 65_536), ResourceLimit),
        ("base64:!!", PropertyValueError),
    ]
    with place.open(place.pictures) as graph:
        for text, kind in cases:
            with unchanged(graph), pytest.raises(kind) as caught:
                run(
                    graph,
                    'insert Doc { name: "x" } insert Doc { name: "a", body: $p }',
                    {"p": text},
                    types="$p: String",
                )
            assert "pw" not in caught.value.message
    with place.open() as graph, unchanged(graph), pytest.raises(BlobPolicyError):
        run(graph, f'insert Doc {{ name: "a", body: "{place.address("a.png")}" }}')


@pytest.mark.parametrize("moment", range(12))
def test_a_directory_exchanged_for_a_link_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """The exchange happens after the address was judged, before each step of the opening in turn."""
    place = Place(tmp_path)
    inner = place.pictures / "inner"
    inner.mkdir()
    (inner / "s.png").write_bytes(b"allowed")
    secret = (place.secret / "s.png").read_bytes()
    opened = os.open
    left = moment

    def opening(path: str, flags: int, *named: int, dir_fd: int | None = None) -> int:
        nonlocal left
        if left == 0:
            inner.rename(tmp_path / "aside")
            inner.symlink_to(place.secret)
        left -= 1
        return opened(path, flags, *named, dir_fd=dir_fd)

    sources = blob_sources.BlobSources([str(place.pictures)], GraphRoot(str(tmp_path / "g")))
    address = sources.allowed(place.address("inner/s.png"))
    monkeypatch.setattr(blob_sources.os, "open", opening)
    try:
        content = sources.contents([address])[address]
    except (BlobPolicyError, BlobSourceError):
        assert left < 0, "nothing else may refuse it"
    else:
        assert content == b"allowed" != secret


def test_several_spellings_of_one_source_are_read_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    spellings = [place.address(name) for name in ("a.png", "./a.png", "%61.png", "x/../a.png")]
    records = [doc(f"d{n}", each) for n, each in enumerate([*spellings, *spellings])]
    with place.open(place.pictures) as graph:
        with hear(everywhere=True) as heard:
            graph.load(place.file(*records), mode="append", engine="local")
        calls = [call.kind for call in heard.of(StorageCall) if call.kind.startswith("blob_")]
        assert sorted(calls) == ["blob_read", "blob_size"]
        with hear(everywhere=True) as heard:
            run(
                graph,
                " ".join(
                    f'insert Doc {{ name: "m{n}", body: "{each}" }}' for n, each in enumerate(spellings)
                ),
            )
        calls = [call.kind for call in heard.of(StorageCall) if call.kind.startswith("blob_")]
        assert sorted(calls) == ["blob_read", "blob_size"]
        assert set(bodies(graph).values()) == {b64(PICTURE)}


def test_a_load_holds_few_blobs_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    for n in range(8):
        (place.pictures / f"{n}.bin").write_bytes(bytes([n]) * 1_000)
    monkeypatch.setattr("omnigraph.pipeline.load.blobs.EXTERNAL_BLOB_BATCH_BYTES_MAX", 2_500)
    asked: list[int] = []
    contents = blob_sources.BlobSources.contents

    def counted(self, uris):
        wanted = list(uris)
        asked.append(len(wanted))
        return contents(self, wanted)

    monkeypatch.setattr(blob_sources.BlobSources, "contents", counted)
    with place.open(place.pictures) as graph:
        graph.load(
            place.file(*(doc(f"d{n}", place.address(f"{n}.bin")) for n in range(8))),
            mode="append",
            engine="local",
        )
        assert asked == [2, 2, 2, 2]
        assert bodies(graph) == {f"d{n}": b64(bytes([n]) * 1_000) for n in range(8)}


def test_one_blob_has_a_ceiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_sources, "EXTERNAL_BLOB_OBJECT_BYTES_MAX", len(PICTURE) - 1)
    place = Place(tmp_path)
    with place.open(place.pictures) as graph:
        for write in (
            lambda: run(graph, f'insert Doc {{ name: "a", body: "{place.address("a.png")}" }}'),
            lambda: graph.load(place.file(doc("a", place.address("a.png"))), mode="append", engine="local"),
        ):
            with unchanged(graph), pytest.raises(ResourceLimit) as caught:
                write()
            assert caught.value.details["resource_limit"]["resource"] == "external_blob_object_bytes"
    assert limits.EXTERNAL_BLOB_URI_BYTES_MAX == 65_536


def test_a_source_that_goes_away_while_records_are_staged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rejects some splits are staged twice; what was found the first time must still hold."""
    from omnigraph.pipeline.load.run import Load

    place = Place(tmp_path)
    again = Load._stage_again

    def lose(self, staged, left_out):
        (place.pictures / "a.png").unlink()
        again(self, staged, left_out)

    monkeypatch.setattr(Load, "_stage_again", lose)
    records = [doc("a", place.address("a.png")), doc("twice", None), doc("twice", None)]
    with place.open(place.pictures) as graph, unchanged(graph), pytest.raises(BlobSourceError):
        graph.load(place.file(*records), mode="append", engine="local", rejects=tmp_path / "rejects")


def test_bad_sources_are_refused_when_the_graph_is_opened(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for bad in (["s3://u:p@b/"], [""], ["ftp://h/"]):
        with pytest.raises(BadRequest):
            omnigraph.open(place.uri, blob_sources=bad)
    with pytest.raises(BadRequest):
        omnigraph.open(place.uri, blob_sources="s3://b/")


def test_a_long_value_is_not_repeated_beyond_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omnigraph.engine.write import prepare

    graph = make_graph(tmp_path / "g", "node Note { text: String }")
    run(graph, " ".join(f'insert Note {{ text: "{n}" }}' for n in range(5)))
    made: list[int] = []
    constant = prepare.constant
    monkeypatch.setattr(prepare, "constant", lambda *words: made.append(words[-1]) or constant(*words))
    small = reopen(graph, settings=replace(FAST, mutation_bytes=4_000))
    with small:
        with unchanged(graph), pytest.raises(ResourceLimit) as caught:
            run(
                small,
                'update Note set { text: $t } where text != "x"',
                {"t": "a" * 1_000},
                types="$t: String",
            )
        assert (caught.value.resource, caught.value.actual, made) == ("mutation_bytes", 5_000, [])
        run(small, 'update Note set { text: $t } where text = "1"', {"t": "a" * 1_000}, types="$t: String")
    assert made == [1]
    graph.close()


# --- one cell ---


def test_a_cell_is_read_by_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnigraph.engine.entities.blob_cells.BLOB_RANGE_BYTES_MAX", 4)
    place = Place(tmp_path)
    with place.open(place.pictures) as graph:
        records = [doc("a", b64(b"0123456789")), doc("e", "base64:"), doc("n", None), doc("m", b64(MARK))]
        edge = {"edge": "Cites", "from": "a", "to": "e", "data": {"id": "c1", "scan": b64(b"scan")}}
        graph.load(place.file(*records, edge), mode="append", engine="local")
        before = graph.commits.list()[0].id
        blob = graph.blob("Doc", "a", "body")
        assert (blob.size, blob.uri, blob.entity_kind, blob.commit_id) == (10, None, "node", before)
        assert (blob.read(2, 5), blob.read(10, 10), blob.read(6)) == (b"234", b"", b"6789")
        assert list(blob.chunks()) == [b"0123", b"4567", b"89"]
        assert list(blob.chunks(3, 9)) == [b"3456", b"78"]
        for start, end in ((5, 4), (0, 11), (11, 11), (-1, 2), (11, None)):
            for read in (blob.read, blob.chunks):
                with pytest.raises(BlobRange) as caught:
                    read(start, end)
                assert caught.value.details["blob_range"]["length"] == 10
        with pytest.raises(ResourceLimit) as limited:
            blob.read(0, 5)
        assert limited.value.details["resource_limit"]["resource"] == "blob_range_bytes"
        empty = graph.blob("Doc", "e", "body")
        assert (empty.size, empty.read(), list(empty.chunks())) == (0, b"", [])
        assert b"".join(graph.blob("Doc", "m", "body").chunks()) == MARK
        assert graph.blob("cites", "c1", "scan", kind="edge").read() == b"scan"
        run(graph, f'update Doc set {{ body: "{b64(b"other")}" }} where name = "a"')
        assert graph.blob("Doc", "a", "body").etag != blob.etag
        assert graph.at(before).blob("Doc", "a", "body").etag == blob.etag
        for arguments, kind in (
            (("Doc", "n", "body"), BlobNull),
            (("Doc", "zed", "body"), EntityNotFound),
            (("Dok", "a", "body"), TypeNotFound),
            (("Doc", "a", "name"), BadRequest),
            (("Doc", "a", "nothing"), BadRequest),
        ):
            with pytest.raises(kind):
                graph.blob(*arguments)
        with pytest.raises(TypeNotFound):
            graph.blob("Doc", "a", "body", kind="edge")
        with pytest.raises(BadRequest):
            graph.blob("Doc", "a", "body", kind="tree")


def test_a_reference_is_named_and_not_followed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.open(place.pictures) as graph:
        graph.load(place.file(doc("a", place.address("a.png"))), mode="overwrite", engine="local")
        (place.pictures / "a.png").unlink()
        blob = graph.blob("Doc", "a", "body")
        assert (blob.uri, blob.size, blob.etag) == (place.address("a.png"), None, None)
        with pytest.raises(BadRequest, match=r"a\.png"):
            blob.read()


# --- other kinds of places ---


class _Pictures(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/pics/away"):
            self.send_response(302)
            self.send_header("Location", "/other/a.png")
            self.end_headers()
        elif self.path in {"/pics/a.png", "/other/a.png", "/pics/a.png?v=2"}:
            self.send_response(200)
            self.send_header("Content-Length", str(len(PICTURE)))
            self.end_headers()
            self.wfile.write(PICTURE)
        elif self.path == "/pics/open-ended":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PICTURE)
        elif self.path == "/pics/short":
            self.send_response(200)
            self.send_header("Content-Length", "99")
            self.end_headers()
            self.wfile.write(PICTURE)
        else:
            self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pictures)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_blobs_of_a_web_server(tmp_path: Path, web: str) -> None:
    place = Place(tmp_path)
    with place.open(f"{web}/pics/") as graph:
        good = [
            doc("a", f"{web}/pics/a.png"),
            doc("b", f"{web}/pics/a.png?v=2"),
            doc("c", f"{web}/pics/open-ended"),
        ]
        graph.load(place.file(*good), mode="append", engine="local")
        assert bodies(graph) == dict.fromkeys("abc", b64(PICTURE))
        for path, kind in (
            ("pics/away", BlobSourceError),
            ("pics/none", BlobSourceError),
            ("pics/short", BlobSourceError),
            ("other/a.png", BlobPolicyError),
        ):
            with unchanged(graph), pytest.raises(kind):
                graph.load(place.file(doc("x", f"{web}/{path}")), mode="append", engine="local")
    with place.open("http://127.0.0.1:9/") as graph, unchanged(graph), pytest.raises(BlobSourceError):
        graph.load(place.file(doc("x", "http://127.0.0.1:9/a")), mode="append", engine="local")


@pytest.mark.s3
def test_blobs_of_an_object_store(tmp_path: Path) -> None:
    store = s3_store()
    bucket, _, prefix = store.uri.removeprefix("s3://").partition("/")
    from omnigraph.storage.objects import open_store

    client = open_store(f"s3://{bucket}", store.storage_options)
    for name in ("a.png", "ü b%.png"):
        obstore.put(client, f"{prefix}-pics/{name}", PICTURE)
    uri, place = f"s3://{bucket}/{prefix}-pics", tmp_path / "in.jsonl"
    import json

    def file(*records: object) -> Path:
        place.write_text("".join(json.dumps(each) + "\n" for each in records))
        return place

    made = omnigraph.init(
        store.uri, schema=SCHEMA, settings=FAST, storage_options=store.storage_options, blob_sources=[uri]
    )
    with made as graph:
        graph.load(
            file(doc("a", f"{uri}/a.png"), doc("b", f"{uri}/%C3%BC%20b%25.png")),
            mode="append",
            engine="local",
        )
        assert bodies(graph) == dict.fromkeys("ab", b64(PICTURE))
        with unchanged(graph), pytest.raises(BlobSourceError):
            graph.load(file(doc("x", f"{uri}/none.png")), mode="append", engine="local")
        with unchanged(graph), pytest.raises(BlobPolicyError):
            graph.load(file(doc("x", f"{uri}2/a.png")), mode="append", engine="local")


def test_blame_tells_how_large_a_blob_is_or_where(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.open(place.pictures) as graph:
        run(graph, f'insert Doc {{ name: "a", body: "{b64(PICTURE)}" }}')
        assert graph.blame("Doc", "a")["body"].to_dict()["value"] == f"{len(PICTURE)} bytes"
        graph.load(place.file(doc("a", place.address("a.png"))), mode="overwrite", engine="local")
        assert graph.blame("Doc", "a")["body"].said == place.address("a.png")
