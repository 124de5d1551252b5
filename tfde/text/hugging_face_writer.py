"""The files from which Hugging Face's libraries make a tokenizer equal to one of ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tfde.errors import ConfigError, shorten
from tfde.text.hugging_face_reader import NAMED_TOKENS, AddedToken

_NO_LIMIT = int(1e30)  # what transformers writes


def tokenizer_files(
    tokenizer: Mapping[str, Any],
    *,
    added_tokens: Sequence[AddedToken],
    named_tokens: Mapping[str, str | None],
    max_length_tokens: int | None,
    token_types: bool,
) -> dict[str, bytes]:
    """Returns `tokenizer.json`, `tokenizer_config.json` and `special_tokens_map.json`.

    The class is `PreTrainedTokenizerFast`, which every transformers since 4.0 loads as
    `tokenizer.json` says; classes of models rebuild it from options of their own.

    Args:
        tokenizer: `normalizer`, `pre_tokenizer`, `post_processor`, `decoder` and `model`.
        added_tokens: What texts may spell out, each with its id.
        named_tokens: `cls_token` and the like -> token.
        max_length_tokens: `model_max_length`; `None`: no limit.
        token_types: Whether `token_type_ids` go with the ids.

    Raises:
        ConfigError: the pad token is not among `added_tokens`: transformers would find it in
            texts all the same.
    """
    spelled = {token.content for token in added_tokens}
    if named_tokens["pad_token"] not in spelled:
        raise ConfigError(
            "`special_tokens` must hold the pad token, which transformers looks for in texts."
            f" Received: {len(spelled)} tokens without {shorten(named_tokens['pad_token'])}"
        )
    added = [{**token._asdict(), "special": True} for token in added_tokens]
    content = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    # transformers makes each of these special, so one that is not goes unnamed.
    named = {name: named_tokens[name] for name in NAMED_TOKENS if named_tokens.get(name) in spelled}
    inputs = ["input_ids", "attention_mask"]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": _NO_LIMIT if max_length_tokens is None else max_length_tokens,
        "model_input_names": [inputs[0], "token_type_ids", inputs[1]] if token_types else inputs,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(token["id"]): {k: v for k, v in token.items() if k != "id"} for token in added
        },
        **named,
    }
    flags = {
        t["content"]: {k: v for k, v in t.items() if k not in ("id", "special")} for t in added
    }
    special = {name: flags[token] for name, token in named.items() if token is not None}
    return {
        "tokenizer.json": _json({**content, **tokenizer}),
        "tokenizer_config.json": _json(config),
        "special_tokens_map.json": _json(special),
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
