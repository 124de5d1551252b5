"""What stands for a tokenizer in a model that was made of its configuration alone.

A configuration names its tokenizer and says what of it the layers depend on; it does not hold the
vocabulary, which may be megabytes. Keras reads that from the assets of a file, after the layers
are made.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from tfde.errors import ConfigError
from tfde.text.tokenizer import Tokenizer, Untracked

_IDS = ("vocabulary_size", "pad_id", "start_id", "end_id", "separator_id", "pair_separator_ids")
_KNOWN: weakref.WeakValueDictionary[str, Tokenizer] = weakref.WeakValueDictionary()


def describe_tokenizer(
    tokenizer: Tokenizer, *, prompts: Iterable[str], tokens: Iterable[str], punctuation: bool
) -> dict[str, Any]:
    """Returns the JSON values from which `tokenizer_of` makes the tokenizer, or what stands for it.

    Args:
        tokenizer: Whatever a model has.
        prompts: Texts of which the layers know how many tokens they are.
        tokens: Those whose ids the preprocessor knows.
        punctuation: Whether the layers know which tokens are punctuation.
    """
    if isinstance(tokenizer, AbsentTokenizer):
        return tokenizer.description.value
    name = hashlib.sha256(tokenizer.fingerprint_bytes()).hexdigest()
    _KNOWN[name] = tokenizer
    return {
        "sha256": name,
        **{field: getattr(tokenizer, field) for field in _IDS},
        "pair_separator_ids": list(tokenizer.pair_separator_ids),
        "lengths": {prompt: tokenizer.length(prompt) for prompt in prompts},
        "ids": {token: tokenizer.token_id(token) for token in tokens},
        "punctuation_ids": tokenizer.punctuation_ids() if punctuation else [],
    }


def tokenizer_of(description: Mapping[str, Any]) -> Tokenizer:
    """Returns the tokenizer that was described, if a model of this process has it.

    Else what stands for it until its files are read.
    """
    return _KNOWN.get(description["sha256"]) or AbsentTokenizer(description)


class AbsentTokenizer(Tokenizer):
    """Knows what layers depend on, and tokenizes nothing."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(name="absent_tokenizer")
        for field in _IDS:
            setattr(self, field, description[field])
        self.pair_separator_ids = tuple(description["pair_separator_ids"])
        self.description = Untracked(dict(description))

    def length(self, text: str) -> int:
        """Returns how many tokens a prompt is."""
        return int(self.description.value["lengths"][text])

    def token_id(self, token: str) -> int | None:
        """Returns the id of a mark."""
        return self.description.value["ids"][token]

    def punctuation_ids(self) -> list[int]:
        """Returns the ids of punctuation marks."""
        return list(self.description.value["punctuation_ids"])

    def fingerprint_bytes(self) -> bytes:
        """Returns other bytes than the tokenizer's own."""
        return f"absent {self.description.value['sha256']}".encode()

    def _absent(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ConfigError(
            "the tokenizer is not here: this model was made of a configuration, which does not hold"
            " it. `keras.saving.load_model` reads it from a .keras file, `from_preset` from a model"
            " directory."
        )

    _tokenize = id_to_token = assets = settings = hugging_face_files = _absent
    save_assets = from_assets = _absent
