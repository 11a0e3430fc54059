"""What leaves the process travels in an envelope, so that what comes back is what was sent or nothing.

::

    magic  version  key length  payload length  checksum    key          payload
    4      2        2           8               16          1 to 64      payload length         bytes, big-endian

The checksum is BLAKE2b of 16 bytes over the key, the payload's length and the payload; the other fields are compared. It
protects against accidents, not against somebody who can write to the medium: there is no secret in it.
"""

from __future__ import annotations

import re
import struct
from hashlib import blake2b

from kvsan.harness.tiers import Damage
from kvsan.harness.verdict import UsageError

MAGIC = b"KVSc"
VERSION = 1

_FIXED = struct.Struct(">4sHHQ16s")
_LENGTH = struct.Struct(">Q")
_CHECKSUM_BYTES = 16
_KEY = re.compile(r"[0-9a-f]{1,64}")


def is_key(text: str) -> bool:
    """Whether a text can be a chunk's key: 1 to 64 characters of ``0-9a-f``."""
    return _KEY.fullmatch(text) is not None


def header_bytes(key: str) -> int:
    """Length in bytes of what stands before the payload."""
    return _FIXED.size + len(key)


def seal(key: str, data: bytes) -> bytes:
    """Envelope around ``data``; UsageError if the key is none."""
    return b"".join((_header(key, len(data), _checksum(key, data)), data))


def open_sealed(key: str, raw: bytes) -> bytes | None:
    """Give back the ``data`` that was sealed under ``key``, or None if a single bit differs from that envelope."""
    start = header_bytes(key)
    data = raw[start:]
    if raw[:start] != _header(key, len(data), _checksum(key, data)):
        return None
    return data


def _header(key: str, length: int, checksum: bytes) -> bytes:
    if not is_key(key):
        raise UsageError(f"key {key!r} of a chunk: expected 1 to 64 characters of 0-9a-f")
    return _FIXED.pack(MAGIC, VERSION, len(key), length, checksum) + key.encode()


def _checksum(key: str, data: bytes) -> bytes:
    digest = blake2b(key.encode(), digest_size=_CHECKSUM_BYTES)
    digest.update(_LENGTH.pack(len(data)))
    digest.update(data)
    return digest.digest()


def damaged(key: str, raw: bytes, how: Damage) -> bytes:
    """Fault: one bit of an envelope is the other one, or its end is gone; ``raw`` must not be empty.

    Where is decided by the key and the bytes, so that a run can be repeated. A second accident never undoes the first: what
    comes out is no intact envelope. Half of the accidents befall the header: it is short, and would hardly ever be hit.
    """
    assert raw, "there is nothing to damage"
    draw = int.from_bytes(blake2b(raw, digest_size=16, key=key.encode()).digest(), "big")
    in_header, draw = draw % 2, draw // 2
    reach = min(len(raw), header_bytes(key)) if in_header else len(raw)
    position, bit = draw % reach, (draw // reach) % 8
    if how == "truncate":
        return raw[:position]
    flipped = _flip(raw, position, bit)
    return flipped if open_sealed(key, flipped) is None else _flip(raw, position, (bit + 1) % 8)


def _flip(raw: bytes, position: int, bit: int) -> bytes:
    return raw[:position] + bytes((raw[position] ^ (1 << bit),)) + raw[position + 1 :]
