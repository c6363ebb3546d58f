"""Sums of files, and the records that keep them."""

import json
import zlib

import pytest

from omnigraph.core.errors import StorageNotFound
from omnigraph.storage.checksums import (
    OWN_SUM,
    DamagedRecordError,
    FileRecord,
    FileSum,
    is_whole,
    record_of,
    record_text,
    sealed,
    sum_file,
)

RECORD = FileRecord(
    (FileSum("nodes/1/data/a.lance", 900, 7), FileSum("nodes/1/data/ä.lance", 0, 0)),
    (FileSum("__manifest/_versions/1.manifest", 12, 2**32 - 1),),
    99,
    "01M7P9ZF40SY797B5MEXPYQXXT",
)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 9 * 1024 * 1024 + 3])
def test_the_sum_of_a_file_is_that_of_its_bytes(tmp_path, size):
    data = (b"omnigraph" * (size // 9 + 1))[:size]
    (tmp_path / "f").write_bytes(data)
    assert sum_file(str(tmp_path / "f"), "x/f") == FileSum("x/f", size, zlib.crc32(data))


def test_a_file_that_is_not_there_has_no_sum(tmp_path):
    with pytest.raises(StorageNotFound):
        sum_file(str(tmp_path / "f"), "f")


def test_a_record_is_read_as_it_was_written():
    assert record_of(record_text(RECORD)) == RECORD
    assert record_of(record_text(FileRecord())) == FileRecord()


def test_a_record_with_a_flipped_bit_is_refused():
    whole = record_text(RECORD).encode()
    for at in range(len(whole)):
        for bit in range(8):
            text = bytearray(whole)
            text[at] ^= 1 << bit
            with pytest.raises(DamagedRecordError):
                record_of(text.decode(errors="replace"))


@pytest.mark.parametrize("body", ["[]", "{}", '{"files":3}', '{"files":{"a":[1]}}', "nonsense"])
def test_a_record_of_another_form_is_refused(body):
    with pytest.raises(DamagedRecordError):
        record_of(f"{zlib.crc32(body.encode()):08x}{body}")


def test_a_sealed_object_tells_every_flipped_bit():
    body = json.dumps({"a": 1, "b": {"c": "größer"}}, ensure_ascii=False)
    text = sealed(body)
    assert {name: value for name, value in json.loads(text).items() if name != OWN_SUM} == json.loads(body)
    assert is_whole(text)
    assert is_whole(body), "an older program wrote it"
    data = text.encode()
    for at in range(len(body.encode()) - 1):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            assert not is_whole(damaged.decode(errors="replace"))
