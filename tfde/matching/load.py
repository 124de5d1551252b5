"""Whatever scores pairs, from its directory."""

from __future__ import annotations

from pathlib import Path

from tfde.matching.cross_encoder import CrossEncoder
from tfde.matching.matcher import Matcher
from tfde.matching.pair_scorer import PairScorer
from tfde.towers.preset import preset_class


def load_pair_scorer(path: str | Path) -> PairScorer:
    """Loads the model directory of a matcher, or whatever `CrossEncoder.load` takes."""
    if preset_class(path) == "Matcher":
        return Matcher.from_preset(path)
    return CrossEncoder.load(path)
