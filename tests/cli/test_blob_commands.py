"""`blob get` and `blob stat`, and the flag that allows external blobs."""

from pathlib import Path

import pytest

import omnigraph as og
from cli.conftest import Run
from graphs import FAST

STORE = ("--store", "docs.omni")
CELL = ("node", "Doc", "a", "body")


def made(place: Path, body: str, mode: str = "append") -> None:
    (place / "pics").mkdir(exist_ok=True)
    (place / "pics" / "p.txt").write_bytes(b"0123456789")
    (place / "in.jsonl").write_text(
        f'{{"type":"Doc","data":{{"name":"a","body":"{body}"}}}}\n{{"type":"Doc","data":{{"name":"n"}}}}\n'
    )
    schema = "node Doc { name: String @key  body: Blob? }"
    with og.init(place / "docs.omni", schema=schema, settings=FAST, blob_sources=[place / "pics"]) as graph:
        graph.load(place / "in.jsonl", mode=mode, engine="local")


@pytest.mark.slow
def test_the_bytes_of_a_blob(here: Run, tmp_path: Path) -> None:
    made(tmp_path, "base64:MDEyMzQ1Njc4OQ==")
    assert here("blob", "get", *CELL, *STORE).out == "0123456789"
    assert here("blob", "get", *CELL, "--offset", "2", "--length", "3", *STORE).out == "234"
    assert here("blob", "get", *CELL, "--offset", "8", "--length", "99", *STORE).out == "89"
    out = tmp_path / "out.bin"
    out.write_bytes(b"kept")
    behind = here("blob", "get", *CELL, "--offset", "10", "--out", "out.bin", *STORE, "--json", rc=1)
    assert behind.error["kind"] == "blob_range"
    assert out.read_bytes() == b"kept"
    here("blob", "get", *CELL, "--out", "out.bin", *STORE)
    assert out.read_bytes() == b"0123456789"
    null = here("blob", "get", "node", "Doc", "n", "body", "--out", "out.bin", *STORE, "--json", rc=6)
    assert null.error["kind"] == "blob_null"
    assert out.read_bytes() == b"0123456789"
    assert (
        here("blob", "get", "node", "Doc", "a", "name", *STORE, "--json", rc=1).error["kind"] == "bad_request"
    )
    assert (
        here("blob", "get", "edge", "Doc", "a", "body", *STORE, "--json", rc=6).error["kind"]
        == "type_not_found"
    )


@pytest.mark.slow
def test_an_empty_blob_empties_the_file(here: Run, tmp_path: Path) -> None:
    made(tmp_path, "base64:")
    (tmp_path / "out.bin").write_bytes(b"before")
    here("blob", "get", *CELL, "--out", "out.bin", *STORE)
    assert (tmp_path / "out.bin").read_bytes() == b""


@pytest.mark.slow
def test_what_a_blob_is(here: Run, tmp_path: Path) -> None:
    made(tmp_path, "base64:MDEyMzQ1Njc4OQ==")
    found = here("blob", "stat", *CELL, *STORE, "--json").json
    assert found["selector"] == {"entity": "node", "type": "Doc", "id": "a", "property": "body"}
    assert (found["kind"], found["size"], len(found["etag"])) == ("managed", 10, 64)
    assert "uri" not in found
    assert found["target"]["branch"] == "main"
    commit = found["target"]["resolved_snapshot"]
    assert here("blob", "stat", *CELL, "--at", commit, *STORE, "--json").json["target"]["snapshot"] == commit
    assert "10 bytes" in here("blob", "stat", *CELL, *STORE).out


def test_a_reference_is_named(here: Run, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/pics/p.txt"
    made(tmp_path, uri, "overwrite")
    found = here("blob", "stat", *CELL, *STORE, "--json").json
    assert (found["kind"], found["uri"]) == ("external", uri)
    assert found.keys() == {"selector", "kind", "uri", "target"}
    assert uri in here("blob", "get", *CELL, *STORE, "--json", rc=1).error["error"]
    assert here("blob", "stat", *CELL, *STORE).out == f"external  {uri}\n"


@pytest.mark.slow
def test_places_are_allowed_by_flag_environment_and_file(here: Run, tmp_path: Path, monkeypatch) -> None:
    made(tmp_path, "base64:")
    uri = f"file://{tmp_path}/pics/p.txt"
    change = ("mutate", "-e", f'query q() {{ update Doc set {{ body: "{uri}" }} where name = "n" }}', *STORE)
    assert here(*change, "--json", rc=1).error["kind"] == "external_blob_policy"
    assert here(*change, "--blob-source", "other", "--json", rc=1).error["kind"] == "external_blob_policy"
    assert here(*change, "--blob-source", "s3://u:p@b/", "--json", rc=1).error["kind"] == "bad_request"
    here(*change, "--blob-source", "other", "--blob-source", "pics")
    monkeypatch.setenv("OMNIGRAPH_BLOB_SOURCES", f"s3://b/ {tmp_path}/pics")
    here(*change)
    assert here("blob", "get", "node", "Doc", "n", "body", *STORE).out == "0123456789"
    shown = here("config", "show").out
    assert f"s3://b/ file://{tmp_path}/pics" in shown
    monkeypatch.delenv("OMNIGRAPH_BLOB_SOURCES")
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text(f"settings:\n  blob_sources: [{tmp_path}/pics]\n")
    monkeypatch.setenv("OMNIGRAPH_HOME", str(home))
    here(*change)
    assert here(*change, "--blob-source", "other", "--json", rc=1).error["kind"] == "external_blob_policy"
