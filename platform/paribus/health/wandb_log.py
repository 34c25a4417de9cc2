"""The log of records in a ``.wandb`` file: blocks of 32 KiB, in which a record is one chunk or several.

The format is that of LevelDB's log (https://github.com/google/leveldb, doc/log_format.md) with seven bytes in front and
plain CRC-32 checksums. W&B's library brings no Python code that writes it; its program reads it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

_BLOCK, _CHUNK = 32768, 7
_START = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def recover(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield each record, and where it ends, up to the first that is cut or damaged."""
    data = file.read()
    at = len(_START)
    if data[:at] != _START:
        return
    parts: list[bytes] = []
    while True:
        if _BLOCK - at % _BLOCK < _CHUNK:
            at += _BLOCK - at % _BLOCK
        if len(data) < at + _CHUNK:
            return
        checksum, length, kind = _HEADER.unpack_from(data, at)
        content = data[at + _CHUNK : at + _CHUNK + length]
        if len(content) < length or checksum != _checksum(kind, content):
            return
        if (kind in (_FULL, _FIRST)) == bool(parts):
            return  # a chunk without those before it, or with one too many
        at += _CHUNK + length
        parts.append(content)
        if kind in (_FULL, _LAST):
            yield b"".join(parts), at
            parts = []


def append(file: BinaryIO, at: int, records: Sequence[bytes]) -> list[int]:
    """Write records at the end of a file, which is as before if that fails.

    Args:
        file: opened for reading and writing, without a buffer.
        at: where the last whole record ends; 0 in an empty file.
        records: at least one.

    Returns:
        Where each record ends.

    Raises:
        OSError: the disk is full.
    """
    out = bytearray() if at else bytearray(_START)
    ends = []
    for record in records:
        _add(out, at, record)
        ends.append(at + len(out))
    data = bytes(out)
    file.seek(at)
    try:
        while data:
            data = data[file.write(data) :]
    except OSError:
        file.truncate(at)
        raise
    return ends


def _add(out: bytearray, offset: int, record: bytes) -> None:
    """Add the chunks of a record to what follows ``offset`` bytes."""
    first = True
    while True:
        left = _BLOCK - (offset + len(out)) % _BLOCK
        if left < _CHUNK:
            out += bytes(left)
            left = _BLOCK
        content, record = record[: left - _CHUNK], record[left - _CHUNK :]
        kind = (_FULL if first else _LAST) if not record else (_FIRST if first else _MIDDLE)
        out += _HEADER.pack(_checksum(kind, content), len(content), kind) + content
        first = False
        if not record:
            return


def _checksum(kind: int, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(bytes([kind])))
