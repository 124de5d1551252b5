"""Whole shares of a number."""

from __future__ import annotations

from collections.abc import Sequence


def largest_remainders(total: int, weights: Sequence[float]) -> list[int]:
    """Returns whole numbers that sum to `total`, as near to the weights' ratio as can be.

    Args:
        total: What is shared out, at least 0.
        weights: Above 0.

    Source: the largest remainder method (Hamilton); of equal remainders the first goes first.
    """
    exact = [total * weight / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda place: shares[place] - exact[place])
    for place in by_rest[: total - sum(shares)]:
        shares[place] += 1
    return shares
