"""A text that is kept compressed, in slices that can be unpacked one by one. No IO."""

import zlib
from collections.abc import Iterable
from struct import pack

SLICE_BYTES = 65_536
"""The most bytes of text in a slice."""

_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""The head of a gzip file without name and time (RFC 1952)."""
_RAW = -zlib.MAX_WBITS
_LEVEL = 1


class PackedText:
    """The slices, one after the other, are a gzip file. No slice refers to an earlier one."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        """Compresses. It takes long for a long text, and may run on a thread. A slice holds no more than one piece."""
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
        slices, checksum, self.text_bytes = list[bytes](), 0, 0
        for piece in pieces:
            for start in range(0, len(piece), SLICE_BYTES):
                part = piece[start : start + SLICE_BYTES]
                slices.append(packer.compress(part) + packer.flush(zlib.Z_FULL_FLUSH))
                checksum = zlib.crc32(part, checksum)
                self.text_bytes += len(part)
        slices = slices or [b""]
        slices[0] = _HEAD + slices[0]
        slices[-1] += packer.flush() + pack("<II", checksum, self.text_bytes & 0xFFFF_FFFF)
        self.slices = slices
        self.gzip_bytes = sum(map(len, slices))

    def unpacked(self, number: int) -> bytes:
        """Returns the text of a slice."""
        packed = self.slices[number].removeprefix(_HEAD) if number == 0 else self.slices[number]
        return zlib.decompressobj(_RAW).decompress(packed)
