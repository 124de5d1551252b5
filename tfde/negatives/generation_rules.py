"""How many queries a generator writes for a document, how long they are, and how they are drawn."""

from __future__ import annotations

from dataclasses import dataclass

from tfde.errors import require


@dataclass(frozen=True)
class GenerationRules:
    """The rules of query generation, a pure description.

    A SavedModel cuts and draws in its own way; for it only `queries_per_document`,
    `document_prompt` and `seed` count.

    Args:
        queries_per_document: Queries of each document.
        query_max_length_tokens: Longest query, special tokens included.
        document_max_length_tokens: What is read of a document, special tokens included.
        document_prompt: Put before every document, for a model of several tasks.
        top_k: Each token is drawn from the so many most probable; 1 takes the most probable.
        temperature: Divides the logits before the softmax.
        seed: Of the draws; each document has a generator of its own.

    Raises:
        ConfigError: an impossible value.

    Source: top-k sampling with k = 10: Nogueira and Lin 2019 (docT5query).
    """

    queries_per_document: int = 5
    query_max_length_tokens: int = 32
    document_max_length_tokens: int = 256
    document_prompt: str = ""
    top_k: int = 10
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, smallest in (
            ("queries_per_document", 1),
            ("query_max_length_tokens", 3),
            ("document_max_length_tokens", 3),
            ("top_k", 1),
            ("seed", 0),
        ):
            value = getattr(self, name)
            require(value >= smallest, name, f"at least {smallest}", value)
        require(self.temperature > 0, "temperature", "above 0", self.temperature)
