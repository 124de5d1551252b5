"""Random numbers and orders that are pure functions of a key.

A pair of an epoch must come out the same on any machine, in any process and without the pairs
before it, so nothing here has a state that goes on from one pair to the next.
"""

from __future__ import annotations

import hashlib
import struct

_WORDS = struct.Struct("<8Q")
_MASK = (1 << 64) - 1
_ROUNDS = 6


class Draws:
    """Uniform random numbers from a key.

    Args:
        key: Numbers and texts; equal keys draw equal numbers.
    """

    def __init__(self, *key: int | str) -> None:
        self._hash = hashlib.blake2b(repr(key).encode(), digest_size=64)
        self._words: list[int] = []
        self._block = 0

    def word(self) -> int:
        """Returns a number of 64 bits."""
        if not self._words:
            block = self._hash.copy()
            block.update(self._block.to_bytes(8, "little"))
            self._block += 1
            self._words = list(_WORDS.unpack(block.digest()))
        return self._words.pop()

    def below(self, bound: int) -> int:
        """Returns a whole number in [0, bound)."""
        return (self.word() * bound) >> 64

    def fraction(self) -> float:
        """Returns a number in [0, 1)."""
        return (self.word() >> 11) * 2.0**-53


class ShuffledRange:
    """A random order of the numbers below `size` that takes no memory.

    A Feistel network permutes the numbers of an even number of bits; one that is too large is
    sent through again, until it is below `size` (cycle walking), which keeps it a permutation.

    Args:
        size: How many numbers.
        key: As `Draws`.

    Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains", methods 2 and 3.
    """

    def __init__(self, size: int, *key: int | str) -> None:
        draws = Draws("shuffled_range", *key)
        self.size = size
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        self._keys = [draws.word() for _ in range(_ROUNDS)]

    def __getitem__(self, place: int) -> int:
        """Returns the number that stands at `place`."""
        if not 0 <= place < self.size:
            raise IndexError(f"`place` must be in [0, {self.size}). Received: {place}")
        half, mask = self._half, (1 << self._half) - 1
        value = place
        while True:
            left, right = value >> half, value & mask
            for key in self._keys:
                # A number's product with an odd constant is well mixed in its upper bits.
                mixed = ((right ^ key) * 0xBF58476D1CE4E5B9) & _MASK
                mixed = ((mixed ^ (mixed >> 31)) * 0x94D049BB133111EB) & _MASK
                left, right = right, left ^ (mixed >> (64 - half))
            value = left << half | right
            if value < self.size:
                return value
