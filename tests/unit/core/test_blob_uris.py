"""Addresses of external blobs: one spelling each, covered by components."""

import pytest

from omnigraph.core.blob_uris import NotAnAddress, blob_base, blob_bases, blob_uri, shown_address
from omnigraph.core.errors import BadRequest
from omnigraph.core.settings import Settings


@pytest.mark.parametrize(
    ("spelled", "one"),
    [
        ("s3://b/a/x.png", "s3://b/a/x.png"),
        ("S3://b/a/x.png", "s3://b/a/x.png"),
        ("s3://b/a/%78.png", "s3://b/a/x.png"),
        ("s3://b/a/./x.png", "s3://b/a/x.png"),
        ("s3://b/a/c/../x.png", "s3://b/a/x.png"),
        ("s3://b/a/c/%2E%2e/x.png", "s3://b/a/x.png"),
        ("s3://b/a/ü b.png".replace(" ", "%20"), "s3://b/a/%C3%BC%20b.png"),
        ("file:/data/x", "file:///data/x"),
        ("FILE://localhost/data//x", "file:///data/x"),
        ("HTTPS://Example.ORG:443/a?v=1", "https://example.org/a?v=1"),
        ("http://example.org:8080/a", "http://example.org:8080/a"),
    ],
)
def test_an_address_has_one_spelling(spelled: str, one: str) -> None:
    assert str(blob_uri(spelled)) == one
    assert str(blob_uri(one)) == one


@pytest.mark.parametrize(
    "text",
    [
        "",
        "any other text",
        "x.png",
        "/data/x.png",
        "s3:/b/x",
        "s3://",
        "s3://b",
        "s3://b/",
        "s3://b/a/",
        "s3://b//x",
        "s3://b/../x",
        "s3://b/a/../../x",
        "s3://b/a%2fx",
        "s3://b/a%2Fx",
        "s3://b/a/%252e%252e/x",
        "s3://b/a%5cx",
        "s3://b/a\\x",
        "s3://b/a%00x",
        "s3://b/a%zzx",
        "s3://b/a%ffx",
        "s3://b/a\nx",
        "s3://b/a x",
        "s3://user:pw@b/x",
        "s3://b%2e/x",
        "s3://b/x?v=1",
        "s3://b/x#y",
        "https://h/x#y",
        "file://other/x",
        "file:x",
    ],
)
def test_what_is_no_address_of_one_object(text: str) -> None:
    with pytest.raises(NotAnAddress):
        blob_uri(text)


@pytest.mark.parametrize(
    ("base", "uri", "covered"),
    [
        ("s3://b/a/", "s3://b/a/x", True),
        ("s3://b/a", "s3://b/a/x", True),
        ("s3://b/a/", "s3://b/ab/x", False),
        ("s3://b/a", "s3://b/ab", False),
        ("s3://b/a/", "s3://b/a/../c/x", False),
        ("s3://b/a/", "s3://b/a/%2e%2e/c/x", False),
        ("s3://b/a/", "S3://b/%61/x", True),
        ("s3://b/", "s3://c/x", False),
        ("s3://b", "s3://b/x", True),
        ("s3://b/a/", "gs://b/a/x", False),
        ("https://h/a/", "https://h:8443/a/x", False),
        ("https://h:443/a/", "https://H/a/x", True),
        ("http://h/a/", "https://h/a/x", False),
        ("/data/pics", "file:///data/pics/x", True),
        ("/data/pics", "file:///data/pics2/x", False),
        ("/", "file:///data/x", True),
    ],
)
def test_a_base_covers_whole_parts_of_a_path(base, uri, covered) -> None:
    assert blob_uri(uri).lies_in(blob_base(base)) is covered


@pytest.mark.parametrize(
    "base",
    [
        "",
        " ",
        "s3://user:pw@b/a",
        "s3://b/a?x",
        "s3://b/a#x",
        "s3://b/a/../c",
        "s3://b/a/%2e%2e/c",
        "s3://b/a%2fc",
        "ftp://h/a",
        "memory://x/",
    ],
)
def test_a_base_that_could_be_misread_is_refused(base: str) -> None:
    with pytest.raises(BadRequest) as caught:
        blob_base(base)
    assert "pw" not in caught.value.message


def test_bases_are_kept_once_in_their_one_spelling() -> None:
    assert blob_bases(["s3://b/a", "S3://b/%61/", "s3://c/"]) == ("s3://b/a", "s3://c/")


def test_the_setting_comes_from_a_list_or_from_words() -> None:
    read = Settings.from_environment(
        {"OMNIGRAPH_BLOB_SOURCES": "S3://b/a/  /data"}, values={"blob_sources": ["s3://z/"]}
    )
    assert read.blob_sources == ("s3://b/a", "file:///data")
    assert Settings.from_environment({}, values={"blob_sources": ["s3://z/"]}).blob_sources == ("s3://z/",)
    assert Settings.from_environment({}).blob_sources == ()
    with pytest.raises(BadRequest):
        Settings.from_environment({"OMNIGRAPH_BLOB_SOURCES": "s3://u:p@b/"})
    with pytest.raises(BadRequest):
        Settings.from_environment({}, values={"blob_sources": 7})


def test_a_message_shows_no_secret() -> None:
    assert shown_address("s3://user:pw@b/x?token=1#f") == "s3://b/x"
    assert len(shown_address("s3://b/" + "x" * 70_000)) <= 200
