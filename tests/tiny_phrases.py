"""A tiny phrase encoder, and passages for it."""

import tiny

from tfde.config.model import TextConfig
from tfde.config.phrases import WITH_TITLE
from tfde.phrases.phrase_encoder import PhraseEncoder
from tfde.types import Document

DOCUMENTS = [
    Document("d0", "north", "red green blue. yellow, black white apple pear"),
    Document("d1", "", "plum cherry grape lemon cat dog bird fish horse cow river lake sea hill"),
    Document("d2", "house", ""),
    Document("d3", "tree", "Stone Stone one, two"),
]


def phrase_encoder(seed=1, **options):
    """A phrase encoder with random weights, which reads 8 tokens of queries, 14 of passages."""
    return PhraseEncoder.from_backbone(
        tiny.BERT,
        tokenizer=tiny.tokenizer(),
        text=TextConfig(8, 14, WITH_TITLE),
        max_phrase_tokens=3,
        seed=seed,
        **options,
    )
