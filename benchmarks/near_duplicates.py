"""Which questions are nearly equal, and what does it cost to find them all?

    python benchmarks/near_duplicates.py DATASET [--thresholds 0.6 0.7 0.8]

Prints one JSON object: for each threshold the groups, how many texts are in one, the largest, the
seconds, and pairs that only this threshold of those given finds, drawn by a seed, for a person to
judge.
"""

import argparse
import json
import platform
import random
import resource
import time
from importlib.metadata import version

import numpy as np

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.near_duplicates import (
    near_duplicate_groups,
    normal_words,
    resemblance,
    shingles,
)

SEED = 0


def pairs_of(groups: np.ndarray) -> set[tuple[int, int]]:
    """Returns each text that is not the first of its group, with the first."""
    return {(int(first), row) for row, first in enumerate(groups) if first != row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.9, 0.8, 0.7, 0.6])
    parser.add_argument("--examples", type=int, default=8)
    args = parser.parse_args()
    texts = [query.text for query in DatasetDirectory(args.dataset).queries()]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = []
    known: set[tuple[int, int]] = set()
    for threshold in sorted(args.thresholds, reverse=True):
        start = time.perf_counter()
        groups = near_duplicate_groups(texts, threshold=threshold)
        seconds = time.perf_counter() - start
        sizes = np.bincount(groups)
        found = pairs_of(groups)
        new = sorted(
            (one, two)
            for one, two in found - known
            if resemblance(*(shingles(normal_words(texts[row])) for row in (one, two)))
            < min([1.1, *(row["threshold"] for row in rows)])
        )
        known |= found
        chosen = random.Random(SEED).sample(new, min(args.examples, len(new)))
        rows.append(
            {
                "threshold": threshold,
                "groups": int((sizes > 1).sum()),
                "texts_in_groups": int(sizes[sizes > 1].sum()),
                "largest": int(sizes.max()),
                "seconds": round(seconds, 2),
                "examples": [[texts[one], texts[two]] for one, two in chosen],
            }
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    about = {
        "texts": len(texts),
        "megabytes_more": (peak - before) // 1024,
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("numpy",)},
    }
    print(json.dumps({**about, "rows": rows}, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
