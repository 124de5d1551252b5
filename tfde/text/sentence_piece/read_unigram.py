"""Unigram tokenizers in the files of Hugging Face's libraries, read."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfde.errors import ConfigError, shorten
from tfde.storage.json_file import read_binary_file
from tfde.text.hugging_face_reader import TOKENIZER_JSON, AddedToken, HuggingFaceDirectory, Kind
from tfde.text.post_processor import Frame, read_frame
from tfde.text.sentence_piece.model import CONTROL, NORMAL, UNIGRAM, UNKNOWN, new_model, parse_model
from tfde.text.sentence_piece.pipeline import PRECOMPILED, SPLITS, UnigramRules, Words

_T5_MODEL, _XLM_ROBERTA_MODEL = "spiece.model", "sentencepiece.bpe.model"
# transformers writes them into its classes
_UNKNOWN_IDS: dict[Kind | None, int] = {"t5": 2, "xlm_roberta": 3}


def read_unigram(directory: str | Path) -> tuple[bytes, UnigramRules]:
    """Reads the Unigram tokenizer of a Hugging Face or sentence-transformers directory.

    `tokenizer.json` goes before a SentencePiece model. Where `tokenizer_config.json` names T5's
    or XLM-RoBERTa's class, only vocabulary and character map count, as in transformers 5.

    Returns:
        A SentencePiece model, whose ids are the tokenizer's, and the rules of its use.

    Raises:
        ConfigError: there is no such file, or the tokenizer does what tfde does not do.
    """
    files = HuggingFaceDirectory(directory)
    if files.tokenizer is not None:
        where = files.path / TOKENIZER_JSON
        pieces, unknown_id, charsmap, settings = _from_json(files, files.tokenizer, where)
        kind = files.kind
        frame = None if kind else read_frame(files.tokenizer.get("post_processor"), where)
    else:
        where = _model_file(files.path)
        xlm_roberta = where.name == _XLM_ROBERTA_MODEL or files.kind == "xlm_roberta"
        kind, frame = ("xlm_roberta" if xlm_roberta else "t5"), None
        try:
            pieces, unknown_id, charsmap = _from_model(where, kind, files)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        normalizer = (PRECOMPILED,) if charsmap else ()
        settings = {"normalizer": normalizer, "words": "white_space"}
    if kind in _UNKNOWN_IDS and unknown_id != _UNKNOWN_IDS[kind]:
        raise ConfigError(
            f"{where}: `model.unk_id` must be {_UNKNOWN_IDS[kind]}, as in the tokenizer's class."
            f" Received: {shorten(unknown_id)}"
        )
    name = {n: files.named_token(n, kind=kind) for n in ("bos_token", "eos_token", "pad_token")}
    end = str(name["eos_token"])
    if kind == "t5":
        frame = Frame(None, end, (end,))
    elif kind == "xlm_roberta":
        frame = Frame(name["bos_token"], end, (end, end))
    if frame is None or frame.end is None:
        raise ConfigError(f"{where}: `post_processor` must put a token after texts. Received: none")
    ids = {piece: index for index, (piece, _) in enumerate(pieces)}
    tokens, added = files.vocabulary(ids, _added_tokens(files, kind), where)
    pad = name["pad_token"] or "<pad>"
    for option, token in (("pad_token", pad), ("eos_token", frame.end), ("bos_token", frame.start)):
        if token is not None and token not in tokens:
            raise ConfigError(f"{where}: `vocab` must hold the `{option}`. Received: no {token!r}")
    rules = UnigramRules(
        special_tokens=tuple(added),
        pad_token=pad,
        start_token=frame.start,
        end_token=frame.end,
        pair_separators=frame.pair_separators or (frame.end,),
        **settings,
    )
    controls = {token.content for token in added}
    return _model(pieces, unknown_id, charsmap, controls), rules


def _from_json(
    files: HuggingFaceDirectory, value: Mapping[str, Any], where: Path
) -> tuple[list[tuple[str, float]], int, bytes, dict[str, Any]]:
    """Returns pieces, unknown id, character map and the rules that are not of tokens."""
    model = value.get("model") or {}
    for name, received, wanted in (
        ("type", model.get("type", "Unigram"), "Unigram"),
        ("byte_fallback", model.get("byte_fallback", False), False),
    ):
        if received != wanted:
            raise ConfigError(
                f"{where}: `model.{name}` must be {wanted!r}. Received: {shorten(received)}"
            )
    try:
        pieces = [(str(piece), float(score)) for piece, score in model["vocab"]]
        unknown_id = int(model["unk_id"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}: `model` must hold `vocab`, pairs of piece and score, and `unk_id`."
            f" Received: {type(error).__name__} ({shorten(str(error))})"
        ) from error
    normalizer = value.get("normalizer") or {"type": "Sequence", "normalizers": []}
    steps = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    maps = [step for step in steps if step.get("type") == "Precompiled"]
    if len(maps) > 1:
        raise ConfigError(f"{where}: `normalizer` must hold one Precompiled. Received: {len(maps)}")
    try:
        charsmap = base64.b64decode(maps[0]["precompiled_charsmap"], validate=True) if maps else b""
    except (KeyError, TypeError, binascii.Error) as error:
        raise ConfigError(
            f"{where}: `normalizer.precompiled_charsmap` must be base64."
            f" Received: {type(error).__name__} ({error})"
        ) from error
    if files.kind:  # transformers builds the rest anew
        prefix = files.options.get("add_prefix_space", True)
        if files.kind == "xlm_roberta" and not prefix:  # T5's class does not look at it
            raise ConfigError(f"{where}: `add_prefix_space` must be true. Received: {prefix}")
        steps, words = maps, "white_space"
    else:
        words = _words(value.get("pre_tokenizer"), where)
    kept = tuple(PRECOMPILED if s.get("type") == "Precompiled" else s for s in steps)
    return pieces, unknown_id, charsmap, {"normalizer": kept, "words": words}


def _words(value: Mapping[str, Any] | None, where: Path) -> Words:
    """Returns what a pre-tokenizer splits at before it marks words by `▁`."""
    value = value or {}
    parts = value.get("pretokenizers") if value.get("type") == "Sequence" else [value]
    *before, last = parts or [{}]
    old = "always" if last.get("add_prefix_space", True) else "never"
    for words, split in SPLITS.items():
        if (
            before == split
            and last.get("type") == "Metaspace"
            and last.get("replacement") == "▁"
            and last.get("prepend_scheme", old) == "always"
            and last.get("split", True)
        ):
            return words
    raise ConfigError(
        f"{where}: `pre_tokenizer` must be Metaspace (▁, prepend_scheme always, split), or"
        f" WhitespaceSplit and that. Received: {shorten(dict(value))}"
    )


def _model_file(directory: Path) -> Path:
    for name in (_T5_MODEL, _XLM_ROBERTA_MODEL):
        if (directory / name).is_file():
            return directory / name
    others = sorted(directory.glob("*.model"))
    if len(others) != 1:
        raise ConfigError(
            f"{directory}: must hold {TOKENIZER_JSON}, {_T5_MODEL}, {_XLM_ROBERTA_MODEL} or one"
            f" other *.model. Received: {len(others)}"
        )
    return others[0]


def _from_model(
    path: Path, kind: Kind, files: HuggingFaceDirectory
) -> tuple[list[tuple[str, float]], int, bytes]:
    """Returns pieces in the order of T5's or XLM-RoBERTa's ids, unknown id and character map."""
    proto = parse_model(read_binary_file(path))
    if proto.trainer_spec.model_type != UNIGRAM or proto.trainer_spec.byte_fallback:
        raise ConfigError(
            "`model` must be a unigram model without byte fallback."
            f" Received: model_type={proto.trainer_spec.model_type},"
            f" byte_fallback={proto.trainer_spec.byte_fallback}"
        )
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    first = [piece for piece, _ in pieces[:3]]
    wanted = ["<unk>", "<s>", "</s>"] if kind == "xlm_roberta" else ["<pad>", "</s>", "<unk>"]
    if first != wanted:
        raise ConfigError(
            f"`model` must begin with {', '.join(wanted)}, as {kind} has it."
            f" Received: {', '.join(first)}"
        )
    charsmap = proto.normalizer_spec.precompiled_charsmap
    if kind == "xlm_roberta":
        special = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
        return [*special, *pieces[3:], ("<mask>", 0.0)], _UNKNOWN_IDS[kind], charsmap
    # A later file may hold them already.
    known = {piece for piece, _ in pieces}
    extra = [(token, 0.0) for token in reversed(_extra_ids(files)) if token not in known]
    return [*pieces, *extra], _UNKNOWN_IDS[kind], charsmap


def _added_tokens(files: HuggingFaceDirectory, kind: Kind | None) -> list[AddedToken]:
    """Returns what texts may spell out; T5's class has its sentinels whatever the files say."""
    added = files.added_tokens()
    known = {token.content for token in added}
    if files.kind is None and kind is not None:
        defaults = [
            files.named_token(n, kind=kind) for n in ("bos_token", "eos_token", "pad_token")
        ]
        more = [*defaults, "<unk>", *(["<mask>"] if kind == "xlm_roberta" else [])]
        added += [AddedToken(t) for t in dict.fromkeys(more) if t and t not in known]
    if kind == "t5":
        added += [AddedToken(token) for token in _extra_ids(files) if token not in known]
    return added


def _extra_ids(files: HuggingFaceDirectory) -> list[str]:
    return [f"<extra_id_{number}>" for number in range(int(files.options.get("extra_ids", 100)))]


def _model(
    pieces: Sequence[tuple[str, float]], unknown_id: int, charsmap: bytes, controls: Iterable[str]
) -> bytes:
    controls = set(controls)
    model = new_model()
    for index, (piece, score) in enumerate(pieces):
        kind = UNKNOWN if index == unknown_id else CONTROL if piece in controls else NORMAL
        model.pieces.add(piece=piece, score=score, type=kind)
    spec = model.trainer_spec
    spec.model_type, spec.vocab_size, spec.unk_id = UNIGRAM, len(pieces), unknown_id
    spec.unk_piece = pieces[unknown_id][0] if 0 <= unknown_id < len(pieces) else ""
    model.normalizer_spec.precompiled_charsmap = charsmap
    return model.SerializeToString()
