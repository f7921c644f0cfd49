"""Records of event files, against what TensorFlow's own writer and reader say."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import numpy as np

from trainvitals.trackers.tensorboard.framing import (
    CHECKSUM,
    HEADER,
    OVERHEAD,
    encode_record,
    find_header,
    masked_crc32c,
    masked_crc32c_of_spans,
)


def test_checksums_are_those_of_the_standard() -> None:
    crc = 0xE3069283  # the check value of CRC-32C for "123456789"
    assert masked_crc32c(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_tensorflow_reads_the_records_that_we_write(tmp_path: Path) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    payloads = [os.urandom(size) for size in (0, 1, 7, 8, 300, 70_000)]
    path = tmp_path / "records"
    path.write_bytes(b"".join(map(encode_record, payloads)))
    assert [bytes(record.numpy()) for record in tf.data.TFRecordDataset(str(path))] == payloads


def test_checksums_of_many_spans_are_those_of_each() -> None:
    random.seed(1)
    data = np.frombuffer(os.urandom(5000), dtype=np.uint8)
    spans = [(random.randrange(4000), random.randrange(60)) for _ in range(500)]
    starts, lengths = (np.array(column, dtype=np.int64) for column in zip(*spans, strict=True))
    found = masked_crc32c_of_spans(data, starts, lengths)
    assert found.tolist() == [masked_crc32c(data[start : start + length].tobytes()) for start, length in spans]


def test_the_next_record_is_found_behind_damage() -> None:
    record = encode_record(b"payload")
    data = np.frombuffer(b"\0" * 37 + record + b"\xff" * 5, dtype=np.uint8)
    assert find_header(data, 0) == 37
    assert find_header(data, 38) == -1
    assert OVERHEAD == HEADER.size + CHECKSUM.size == len(record) - len(b"payload")
    assert struct.unpack("<Q", record[:8]) == (7,)
