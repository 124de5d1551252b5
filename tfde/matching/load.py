"""Whatever scores pairs, from its directory."""

from __future__ import annotations

from pathlib import Path

from tfde.checkpoints.cross_encoder_files import is_sentence_encoder
from tfde.errors import naming
from tfde.matching.cross_encoder import CrossEncoder
from tfde.matching.dual_encoder_as_pair_model import DualEncoderScorer
from tfde.matching.matcher import Matcher
from tfde.matching.pair_model import PairScorer
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.preset import DUAL_ENCODER, preset_class


def load_pair_scorer(path: str | Path) -> PairScorer:
    """Loads a model directory of any class, a sentence encoder, or what `CrossEncoder.load` takes.

    Raises:
        ConfigError: as these, or it is a dual encoder whose document template has `{context}`.
    """
    found = preset_class(path)
    if found == "Matcher":
        return Matcher.from_preset(path)
    if found == DUAL_ENCODER:
        with naming(str(path)):
            return DualEncoderScorer(DualEncoder.from_preset(path))
    if found is None and is_sentence_encoder(path):
        with naming(str(path)):
            return DualEncoderScorer(DualEncoder.load(path))
    return CrossEncoder.load(path)
