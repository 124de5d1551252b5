"""Unigram tokenizers in the files of Hugging Face's libraries, written."""

from __future__ import annotations

import base64
from typing import Any

from tfde.errors import ConfigError
from tfde.text.hugging_face_reader import AddedToken
from tfde.text.hugging_face_writer import tokenizer_files
from tfde.text.post_processor import Frame, template
from tfde.text.sentence_piece.model import CONTROL, UNIGRAM, UNKNOWN, USER_DEFINED, parse_model
from tfde.text.sentence_piece.normalizer import read_charsmap
from tfde.text.sentence_piece.pipeline import PRECOMPILED, SPLITS, UnigramRules

_METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def write_unigram(
    model: bytes, rules: UnigramRules | None, *, max_length_tokens: int | None
) -> dict[str, bytes]:
    """Returns the files from which `transformers.AutoTokenizer` makes an equal tokenizer.

    Args:
        model: A SentencePiece model.
        rules: Those of its use; `None`: as the sentencepiece library uses it. Hugging Face's
            tokenizers differ from that library on combining marks (see `CharsmapNormalizer`) and
            on special tokens that texts spell out.
        max_length_tokens: `model_max_length`; `None`: no limit.

    Raises:
        ConfigError: the model does what Hugging Face's tokenizers cannot do.
    """
    proto = parse_model(model)
    charsmap = proto.normalizer_spec.precompiled_charsmap
    rules = rules or _rules_of_library(proto, charsmap)
    pieces = [[piece.piece, piece.score] for piece in proto.pieces]
    ids = {piece: index for index, (piece, _) in enumerate(pieces)}
    ids |= {t.content: t.id for t in rules.special_tokens if t.id is not None}
    unknown_id = _unknown_id(proto)
    steps = [dict(step) for step in rules.normalizer]
    for step in steps:
        if step == PRECOMPILED:
            step["precompiled_charsmap"] = base64.b64encode(charsmap).decode()
    spelled = {token.content for token in rules.special_tokens}
    start, end = rules.start_token, rules.end_token
    named = {
        "pad_token": rules.pad_token,
        "unk_token": pieces[unknown_id][0],
        "eos_token": end,
        **({"bos_token": start, "cls_token": start, "sep_token": end} if start else {}),
        "mask_token": "<mask>",
    }
    return tokenizer_files(
        {
            "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [*SPLITS[rules.words], _METASPACE],
            },
            "post_processor": template(Frame(start, end, rules.pair_separators), ids),
            "decoder": _METASPACE,
            "model": {
                "type": "Unigram",
                "unk_id": unknown_id,
                "vocab": pieces,
                "byte_fallback": False,
            },
        },
        added_tokens=sorted(rules.special_tokens, key=lambda token: token.id or 0),
        named_tokens={k: v for k, v in named.items() if v in spelled},
        max_length_tokens=max_length_tokens,
        token_types=False,
    )


def _unknown_id(proto: Any) -> int:
    return next(i for i, piece in enumerate(proto.pieces) if piece.type == UNKNOWN)


def _rules_of_library(proto: Any, charsmap: bytes) -> UnigramRules:
    """Returns the rules that come nearest to the sentencepiece library's.

    Raises:
        ConfigError: none come near.
    """
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    for rule, holds in (
        ("be a unigram model", trainer.model_type == UNIGRAM),
        ("have no byte fallback", not trainer.byte_fallback),
        ("have no user-defined pieces", all(p.type != USER_DEFINED for p in proto.pieces)),
        (
            "add a prefix, and remove and escape blanks",
            normalizer.add_dummy_prefix
            and normalizer.remove_extra_whitespaces
            and normalizer.escape_whitespaces,
        ),
        ("turn ▁ into a blank", read_charsmap(charsmap, max_bytes=3).get("▁") == " "),
    ):
        if not holds:
            raise ConfigError(
                f"`model` must {rule}, or Hugging Face's tokenizers cannot follow it."
                " Received: a model that does not"
            )
    special = tuple(
        AddedToken(piece.piece, index)
        for index, piece in enumerate(proto.pieces)
        if piece.type in (CONTROL, UNKNOWN)
    )
    return UnigramRules(
        normalizer=(PRECOMPILED,) if charsmap else (),
        words="blanks",
        special_tokens=special,
        pad_token=proto.pieces[trainer.pad_id].piece,
        start_token=None,
        end_token="</s>",
        pair_separators=("</s>",),
    )
