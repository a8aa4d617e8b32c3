"""Blobs: they come back as they were, and one that lies about itself is refused before it is expanded."""

from __future__ import annotations

import tracemalloc

import pytest
import zstandard

from compcache.cache import Part, decoded, digest_of, encoded
from compcache.entry import BlobRef
from compcache.errors import Damaged

DATA = b"machine code that compresses well " * 100


@pytest.mark.parametrize("data", [b"", b"x", b"x" * 511, b"x" * 512, DATA, bytes(range(256)) * 4])
def test_blobs_come_back(data: bytes) -> None:
    ref, stored = encoded(Part("artifact", data, "name"))
    assert decoded(ref, stored) == data
    assert (ref.digest, ref.size, ref.raw_size) == (digest_of(stored), len(stored), len(data))
    assert len(stored) <= len(data)
    assert (ref.encoding == "zstd") is (len(stored) < len(data))


def stored_as(data: bytes, raw_size: int) -> BlobRef:
    return BlobRef(digest_of(data), len(data), raw_size, "zstd", "artifact")


def frame(data: bytes, *, says_size: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=says_size).compress(data)


@pytest.mark.parametrize("raw_size", [0, 1, len(DATA) - 1, len(DATA) + 1, 8 << 30])
def test_a_blob_that_claims_another_size_is_refused(raw_size: int) -> None:
    """Its digest is right: the entry lies, or the frame does."""
    data = frame(DATA)
    assert decoded(stored_as(data, len(DATA)), data) == DATA
    with pytest.raises(Damaged):
        decoded(stored_as(data, raw_size), data)


def test_a_blob_that_holds_more_or_less_than_it_claims_is_refused() -> None:
    data = frame(DATA)
    size_at = 5  # after the magic number and the frame's descriptor: two bytes that hold the size less 256
    assert int.from_bytes(data[size_at : size_at + 2], "little") + 256 == len(DATA)
    for claimed in (len(DATA) - 1, len(DATA) + 1, 300, 60_000):
        lying = data[:size_at] + (claimed - 256).to_bytes(2, "little") + data[size_at + 2 :]
        assert zstandard.frame_content_size(lying) == claimed
        for raw_size in (claimed, len(DATA)):
            with pytest.raises(Damaged):
                decoded(stored_as(lying, raw_size), lying)


@pytest.mark.parametrize("says_size", [True, False])
def test_a_blob_that_holds_too_much_is_not_expanded(says_size: bool) -> None:
    data = frame(b"\0" * (64 << 20), says_size=says_size)
    ref = stored_as(data, 1000)
    tracemalloc.start()
    try:
        with pytest.raises(Damaged):
            decoded(ref, data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("data", [b"", b"not zstd at all", frame(DATA)[:-1], frame(DATA)[:5]])
def test_a_blob_that_cannot_be_decoded_is_refused(data: bytes) -> None:
    with pytest.raises(Damaged):
        decoded(stored_as(data, len(DATA)), data)


@pytest.mark.parametrize("encoding", ["raw", "zstd"])
def test_a_blob_with_other_bytes_is_refused(encoding: str) -> None:
    ref, data = encoded(Part("artifact", DATA if encoding == "zstd" else b"short"))
    assert ref.encoding == encoding
    for other in (data[:-1], data + b"x", data[:-1] + bytes([data[-1] ^ 1]), b""):
        with pytest.raises(Damaged):
            decoded(ref, other)
