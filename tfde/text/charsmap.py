"""The precompiled character map of a SentencePiece model, read into a dictionary."""

from __future__ import annotations

import struct

import numpy as np

from tfde.errors import ConfigError


def read_charsmap(content: bytes, *, max_bytes: int) -> dict[str, str]:
    """Returns what each character or short sequence of characters becomes.

    Args:
        content: `normalizer_spec.precompiled_charsmap`: the size of a double-array trie, the
            trie, and the replacements, each ended by a NUL.
        max_bytes: Longer sequences are left out.

    Raises:
        ConfigError: the content is not such a map.

    Source: layout of Darts-clone's double array, which SentencePiece stores.
    """
    if not content:
        return {}
    try:
        (size,) = struct.unpack_from("<I", content)
        units = np.frombuffer(content, "<u4", size // 4, 4).astype(np.int64)
        replacements = content[4 + size :]
        return {
            key.decode(): replacements[place : replacements.index(b"\0", place)].decode()
            for key, place in _leaves(units, max_bytes)
        }
    except (struct.error, ValueError, IndexError) as error:
        raise ConfigError(
            "`precompiled_charsmap` must be a SentencePiece character map of UTF-8 strings."
            f" Received: {len(content)} bytes that are none ({error})"
        ) from error


def _leaves(units: np.ndarray, max_bytes: int) -> list[tuple[bytes, int]]:
    """Returns keys and values of a double array, all nodes of a depth at a time."""
    leaves = []
    keys, bases = [b""], _offsets(units[:1])
    labels = np.arange(1, 256)
    for _ in range(max_bytes):
        children = bases[:, None] ^ labels
        inside = children < len(units)
        found = inside & ((units[np.where(inside, children, 0)] & 0x800000FF) == labels)
        parents, columns = np.nonzero(found)
        places = children[parents, columns]
        keys = [
            keys[parent] + bytes([labels[column]])
            for parent, column in zip(parents, columns, strict=True)
        ]
        bases = places ^ _offsets(units[places])
        for number in np.flatnonzero((units[places] >> 8) & 1):
            leaves.append((keys[number], int(units[bases[number]] & 0x7FFFFFFF)))
    return leaves


def _offsets(units: np.ndarray) -> np.ndarray:
    return (units >> 10) << ((units & (1 << 9)) >> 6)
