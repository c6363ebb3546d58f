"""External blobs in loads on Spark."""

import pytest

from blob_loads import CHECKS, Place, doc


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_external_blobs_on_spark(check, tmp_path, runtime) -> None:
    check(Place(tmp_path), "spark")


def test_frames_show_bytes_and_refuse_references(tmp_path, runtime) -> None:
    from omnigraph.catalog.blobs import MARK

    place = Place(tmp_path)
    with place.open(place.pictures) as graph:
        graph.load_frames(
            {"Doc": [{"name": "a", "body": MARK}, {"name": "b", "body": b"x"}]}, mode="append", engine="spark"
        )
        frame = graph.frames("Doc", spark=runtime.spark)
        assert {row["name"]: bytes(row["body"]) for row in frame.collect()} == {"a": MARK, "b": b"x"}
        graph.load(place.file(doc("r", place.address("a.png"))), mode="overwrite", engine="local")
        assert [
            row["name"] for row in graph.frames("Doc", columns=["name"], spark=runtime.spark).collect()
        ] == ["r"]
        with pytest.raises(Exception, match="references to external blobs"):
            graph.frames("Doc", spark=runtime.spark).collect()
