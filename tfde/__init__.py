"""Dual-encoder text retrieval on Keras and TensorFlow.

Names are imported on first use, so that `import tfde` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

from tfde.version import __version__

_WHERE = {
    "DualEncoder": "tfde.towers.dual_encoder",
    "average_models": "tfde.towers.average",
    "CrossEncoder": "tfde.matching.cross_encoder",
    "Matcher": "tfde.matching.matcher",
    "MatcherConfig": "tfde.config.matching",
    "MatchTrainer": "tfde.matching.match_trainer",
    "Teaching": "tfde.matching.match_trainer",
    "StoredTexts": "tfde.matching.stored_texts",
    "rerank": "tfde.retrieval.rerank",
    "MultiVectorIndex": "tfde.retrieval.multi_vector_index",
    "DualEncoderScorer": "tfde.matching.dual_encoder_as_pair_model",
    "Task": "tfde.tasks.task",
    "RetrievalTask": "tfde.tasks.retrieval_task",
    "GuidedTask": "tfde.tasks.guided",
    "MatryoshkaTask": "tfde.tasks.matryoshka",
    "adafactor": "tfde.training.optimizers",
    "adamw": "tfde.training.optimizers",
    "pairs": "tfde.data.pairs.dataset",
    "DatasetDirectory": "tfde.data.dataset_directory",
    "Document": "tfde.types",
    "Query": "tfde.types",
    "Pair": "tfde.types",
    "Sharing": "tfde.config.model",
    "T5Config": "tfde.config.backbones",
    "BertConfig": "tfde.config.backbones",
    "BackboneConfig": "tfde.config.backbones",
    "register_backbone": "tfde.backbones.registry",
    "BagOfWordsConfig": "tfde.config.backbones",
    "CrossEncoderConfig": "tfde.config.model",
    "TextConfig": "tfde.config.model",
    "PairTextConfig": "tfde.config.model",
    "ParentConfig": "tfde.config.model",
    "ValidationConfig": "tfde.config.training",
    "RetrievalValidation": "tfde.training.callbacks",
    "train_sentencepiece": "tfde.text.sentence_piece.train",
    "SentencePieceTokenizer": "tfde.text.sentence_piece.tokenizer",
    "WordPieceTokenizer": "tfde.text.word_piece.tokenizer",
    "encode_corpus": "tfde.retrieval.encode_corpus",
    "Embeddings": "tfde.retrieval.embeddings",
    "ExactIndex": "tfde.retrieval.exact_index",
    "ScannIndex": "tfde.retrieval.scann_index",
    "FaissIndex": "tfde.retrieval.faiss_index",
    "LiveIndex": "tfde.retrieval.live.live_index",
    "Bm25Index": "tfde.retrieval.bm25_index",
    "retrieve": "tfde.retrieval.retrieve",
    "read_run": "tfde.retrieval.runs",
    "write_run": "tfde.retrieval.runs",
    "evaluate": "tfde.evaluation.measures",
    "export_bundle": "tfde.export.bundle",
    "export_sentence_transformers": "tfde.export.sentence_transformers",
    "verify_bundle": "tfde.export.verify",
    "Client": "tfde.serving.client",
    "ShardedClient": "tfde.serving.sharded_client",
}

__all__ = ["__version__", *sorted(_WHERE)]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'tfde' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
