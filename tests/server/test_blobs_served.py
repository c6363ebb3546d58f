"""Blobs over HTTP: ranges, conditions, and what HEAD tells."""

from pathlib import Path

import pytest

from graphs import make_graph
from omnigraph.core.permission import WRITERS
from omnigraph.server.served import GraphToServe
from server.conftest import Running, Serve

BYTES = b"hello world"
PATH = "/graphs/papers/blob?type=Paper&property=scan&id="


@pytest.fixture
def server(serve: Serve, tmp_path: Path) -> Running:
    schema = "node Paper { slug: String @key  scan: Blob? }"
    with make_graph(tmp_path / "papers.omni", schema) as graph:
        graph.mutate(
            'query q($b: Blob) { insert Paper { slug: "in", scan: $b } insert Paper { slug: "none" } }',
            {"b": "base64:aGVsbG8gd29ybGQ="},
        )
    return serve(others=[GraphToServe("papers", str(tmp_path / "papers.omni"), WRITERS)])


@pytest.mark.slow
def test_s49_one_range_that_fits_is_served_and_others_are_the_whole(server: Running) -> None:
    for asked, status, content in (
        ("bytes=1-4", 206, b"ello"),
        ("bytes=6-", 206, b"world"),
        ("bytes=-5", 206, b"world"),
        ("bytes=0-1,3-4", 200, BYTES),
        ("lines=1-2", 200, BYTES),
        ("bytes=99-", 416, None),
    ):
        answer = server.ask("GET", f"{PATH}in", headers={"Range": asked})
        assert answer.status_code == status, asked
        if content is not None:
            assert answer.content == content
        else:
            assert answer.headers["content-range"] == f"bytes */{len(BYTES)}"
            assert answer.json()["blob_range"]["length"] == len(BYTES)


@pytest.mark.slow
def test_s50_a_lost_condition_comes_before_all_others(server: Running) -> None:
    etag = server.ask("HEAD", f"{PATH}in").headers["etag"]
    answer = server.ask("GET", f"{PATH}in", headers={"If-Match": '"stale"', "If-None-Match": etag})
    assert (answer.status_code, answer.headers["etag"], answer.json()["code"]) == (412, etag, "conflict")
    assert server.ask("GET", f"{PATH}in", headers={"If-None-Match": etag}).status_code == 304
    assert server.ask("GET", f"{PATH}in", headers={"If-Match": etag}).content == BYTES


def test_s51_head_tells_the_whole_length_whatever_the_range(server: Running) -> None:
    answer = server.ask("HEAD", f"{PATH}in", headers={"Range": "bytes=1-4"})
    assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, "11", b"")


@pytest.mark.slow
def test_a_blob_that_is_not_there_is_not_found(server: Running) -> None:
    for name in ("none", "nobody"):
        assert server.ask("GET", f"{PATH}{name}").status_code == 404
        assert server.ask("HEAD", f"{PATH}{name}").status_code == 404
