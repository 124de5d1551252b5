"""The words of sentence-transformers, TFRS and keras-hub: taken where they cost nothing, else told.

A person's first guess must not fail, and there is one way to do a thing: an argument that asks for
what is done anyway is taken, and any other word is answered with the line to write.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from tfde.errors import ConfigError, shorten

Function = TypeVar("Function", bound=Callable[..., Any])

_SAVED = "`save_to_preset(directory)`"
_PLACE = (
    "`tf.config.set_visible_devices` before TensorFlow's first operation; a GPU is taken by itself"
)
_UNIT = "`from_backbone(path, normalize=True)`, or divide embeddings by their norms"
_ARRAYS = "NumPy arrays come back; `tf.constant(embeddings)` makes a tensor of one"

# Attribute -> what to write.
OF_ANY_MODEL = {
    "to": _PLACE,
    "device": _PLACE,
    "half": '`load(path, dtype="float16")`',
    "bfloat16": '`load(path, dtype="bfloat16")`',
    "save_pretrained": _SAVED,
    "push_to_hub": _SAVED,
    "tokenizer": "`preprocessor.tokenizer`",
}
OF_DUAL_ENCODER = {
    **OF_ANY_MODEL,
    "encode": "`encode_queries(texts)` or `encode_documents(texts)`",
    "embed": "`encode_queries(texts)` or `encode_documents(texts)`",
    "query_encoder": "`encode_queries(texts)`, or `query_tower` for token ids",
    "document_encoder": "`encode_documents(texts)`, or `document_tower` for token ids",
    "search": "`tfde.retrieve(model, index, queries, k)`, or `index.search(embeddings, k)`",
    "eval": "nothing: dropout is on in `fit` alone",
    "start_multi_process_pool": "nothing: TensorFlow's threads take all cores",
    "get_sentence_embedding_dimension": "`embedding_dim`",
    "get_embedding_dimension": "`embedding_dim`",
    "max_seq_length": "`set_max_lengths(query_max_length_tokens=12, ...)`",
    "get_max_seq_length": "`preprocessor.text_config`",
    "prompts": '`from_backbone(path, text=tfde.TextConfig(query_prompt="..."))`',
    "default_prompt_name": "`encode_queries` or `encode_documents`, each with its own prompt",
    "truncate_dim": "`embeddings[:, :128]`, divided by their norms",
    "similarity_pairwise": "`(query_embeddings * document_embeddings).sum(-1)`",
    "tokenize": "`preprocessor.queries(texts)` or `preprocessor.documents(titles, texts)`",
    "query_model": "`query_tower`",
    "candidate_model": "`document_tower`",
    "backbone": "`query_tower`, `document_tower`, or `towers` for the layers in them",
}
OF_PAIR_SCORER = {
    **OF_ANY_MODEL,
    "max_length": "`from_backbone(path, text=tfde.PairTextConfig(max_length_tokens=...))`",
    "activation_fn": "a function of the logits that `score` returns",
}

# Argument -> the values that ask for what is done anyway, and what to write for others.
_ENCODE: dict[str, tuple[tuple[Any, ...], str]] = {
    "convert_to_numpy": ((True, None), _ARRAYS),
    "convert_to_tensor": ((False, None), _ARRAYS),
    "output_value": (("sentence_embedding",), "a model of `query_tower.get_layer(name).output`"),
    "precision": (("float32", None), "`tfde encode --dtype`, or `embeddings.astype(...)`"),
    "normalize_embeddings": ((False, None), _UNIT),
    "truncate_dim": ((None,), "`embeddings[:, :128]`, divided by their norms"),
    "prompt": ((None,), '`from_backbone(path, text=tfde.TextConfig(query_prompt="..."))`'),
    "device": ((None,), _PLACE),
    "num_workers": ((0, None), "nothing: TensorFlow's threads take all cores"),
    "pool": ((None,), "nothing: TensorFlow's threads take all cores"),
}
_PREDICT: dict[str, tuple[tuple[Any, ...], str]] = {
    "activation_fn": ((None,), "a function of the logits that come back"),
    "activation_fct": ((None,), "a function of the logits that come back"),
    "apply_softmax": ((False, None), "`keras.ops.softmax(logits)`"),
    "convert_to_numpy": ((True, None), _ARRAYS),
    "convert_to_tensor": ((False, None), _ARRAYS),
    "num_workers": ((0, None), "nothing: TensorFlow's threads take all cores"),
}


class OtherWords:
    """Attributes of other libraries are answered with the line to write, read or set."""

    other_words: ClassVar[Mapping[str, str]]

    if not TYPE_CHECKING:  # where a type checker shall find what is not there

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if name in self.other_words:
                raise AttributeError(f"{kind} has no `{name}`; instead: {self.other_words[name]}")
            raise AttributeError(f"{kind!r} object has no attribute {name!r}")

        def __setattr__(self, name: str, value: Any) -> None:
            if name in self.other_words:
                getattr(self, name)
            super().__setattr__(name, value)


def takes_words_of_encode(side: str) -> Callable[[Function], Function]:
    """Makes `encode_queries` or `encode_documents` take the arguments of `encode` elsewhere.

    Raises:
        ConfigError: by the function, for an argument that asks for something else.
    """
    other = "documents" if side == "query" else "queries"
    named = ((side, None), f"`encode_{other}`, or texts with the prompt before them")
    return _takes({**_ENCODE, "prompt_name": named, "task": named})


def takes_words_of_predict(function: Function) -> Function:
    """As `takes_words_of_encode`, for `predict` of a cross-encoder."""
    return _takes(_PREDICT)(function)


def _same(value: Any, one: Any) -> bool:
    """Whether two values are the same; arrays, which compare by element, never are."""
    return value is one or (isinstance(value, bool | int | str) and bool(value == one))


def _takes(words: Mapping[str, tuple[tuple[Any, ...], str]]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if "show_progress_bar" in kwargs:
                kwargs["show_progress"] = bool(kwargs.pop("show_progress_bar"))
            for name in [name for name in kwargs if name in words]:
                value, (taken, write) = kwargs.pop(name), words[name]
                normal = name == "normalize_embeddings" and self._normalizes
                if not normal and not any(_same(value, one) for one in taken):
                    raise ConfigError(
                        f"`{function.__name__}` has no `{name}`; instead: {write}."
                        f" Received: {name}={shorten(value)}"
                    )
            return function(self, *args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate
