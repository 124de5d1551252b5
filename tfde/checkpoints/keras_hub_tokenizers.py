"""The tokenizers of keras-hub's presets, as ours on the same vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfde.checkpoints.checkpoint_files import CheckpointFiles
from tfde.checkpoints.families.family import FieldsOfConfig
from tfde.errors import ConfigError, DataError, shorten
from tfde.text.byte_pair.tokenizer import BytePairTokenizer
from tfde.text.hugging_face_reader import AddedToken
from tfde.text.sentence_piece.model import CONTROL, UNIGRAM, UNKNOWN, new_model, parse_model
from tfde.text.sentence_piece.pipeline import UnigramRules
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.tokenizer import Tokenizer
from tfde.text.word_piece.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer

_FILE = "tokenizer.json"
_ASSETS = "assets/tokenizer"
# What RobertaTokenizer recognises in texts; "<unk>" is not among them.
_ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<mask>")
# The first ids, which stand otherwise in the SentencePiece model.
_XLM_ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


def read_keras_hub_tokenizer(files: CheckpointFiles) -> Tokenizer:
    """Returns our tokenizer on a preset's vocabulary.

    Raises:
        ConfigError: the preset has no tokenizer, one of another kind, or one with an option that
            ours does not have.
        DataError: a file of the vocabulary is not what its name says.
    """
    kind = files.json_object(_FILE).get("class_name")
    if not isinstance(kind, str) or kind not in _TOKENIZERS:
        raise ConfigError(
            f"{files}/{_FILE}: `class_name` must be one of {', '.join(_TOKENIZERS)}."
            f" Received: {shorten(kind)}"
        )
    fields = FieldsOfConfig(f"{files}/{_FILE}", files.json_object(_FILE, "config"))
    return _TOKENIZERS[kind](files, fields)


def _word_piece(files: CheckpointFiles, fields: FieldsOfConfig) -> WordPieceTokenizer:
    for name, wanted in (("split", True), ("suffix_indicator", "##"), ("oov_token", "[UNK]")):
        fields.require(name, wanted)
    lowercase, strip_accents = _flag(fields, "lowercase"), _flag(fields, "strip_accents")
    # What a text spells out is text, unless the preset says otherwise.
    special = SPECIAL_TOKENS if _flag(fields, "special_tokens_in_strings") else ()
    vocabulary = _read_lines(files, "vocabulary.txt")
    try:
        return WordPieceTokenizer(
            vocabulary, lowercase=lowercase, strip_accents=strip_accents, special_tokens=special
        )
    except ConfigError as error:
        raise ConfigError(f"{files}/{_ASSETS}/vocabulary.txt: {error}") from error


def _byte_pair(files: CheckpointFiles, fields: FieldsOfConfig) -> BytePairTokenizer:
    ids = files.json_object(f"{_ASSETS}/vocabulary.json")
    by_id = {index: token for token, index in ids.items() if isinstance(index, int)}
    if sorted(by_id) != list(range(len(ids))):
        rule = "ids must be 0, 1, 2 ... without a gap."
        raise DataError(f"{files}/{_ASSETS}/vocabulary.json", None, rule, f"{len(ids)} ids")
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(_read_lines(files, "merges.txt"), start=1):
        if line.startswith("#version"):
            continue
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            where = f"{files}/{_ASSETS}/merges.txt"
            raise DataError(where, number, "a merge must be two tokens with a blank between.", line)
        merges.append((left, right))
    try:
        return BytePairTokenizer(
            [by_id[index] for index in range(len(by_id))],
            merges=merges,
            special_tokens=_ROBERTA_SPECIAL,
            add_prefix_space=_flag(fields, "add_prefix_space"),
        )
    except ConfigError as error:
        raise ConfigError(f"{files}/{_ASSETS}: {error}") from error


def _sentence_piece(files: CheckpointFiles, fields: FieldsOfConfig) -> SentencePieceTokenizer:
    return SentencePieceTokenizer.from_file(files.path(f"{_ASSETS}/vocabulary.spm"))


def _xlm_roberta(files: CheckpointFiles, fields: FieldsOfConfig) -> SentencePieceTokenizer:
    """The model in keras-hub's file begins with other pieces than the ids do."""
    path = files.path(f"{_ASSETS}/vocabulary.spm")
    try:
        proto = parse_model(path.read_bytes())
        first = [piece.piece for piece in proto.pieces[:3]]
        if first != ["<unk>", "<s>", "</s>"] or proto.trainer_spec.model_type != UNIGRAM:
            raise ConfigError(
                "`model` must be a unigram model that begins with <unk>, <s>, </s>."
                f" Received: model_type={proto.trainer_spec.model_type}, {', '.join(first)}"
            )
        model = new_model()
        model.CopyFrom(proto)
        del model.pieces[:]
        for token in _XLM_ROBERTA_SPECIAL:
            kind = UNKNOWN if token == "<unk>" else CONTROL
            model.pieces.add(piece=token, score=0.0, type=kind)
        model.pieces.extend(proto.pieces[3:])
        model.pieces.add(piece="<mask>", score=0.0, type=CONTROL)
        spec = model.trainer_spec
        spec.bos_id, spec.pad_id, spec.eos_id, spec.unk_id = range(4)
        spec.vocab_size = len(model.pieces)
        ids = {piece.piece: index for index, piece in enumerate(model.pieces)}
        rules = UnigramRules(
            normalizer=(
                ({"type": "Precompiled"},) if proto.normalizer_spec.precompiled_charsmap else ()
            ),
            words="white_space",
            special_tokens=tuple(
                AddedToken(token, ids[token]) for token in (*_XLM_ROBERTA_SPECIAL, "<mask>")
            ),
            pad_token="<pad>",
            start_token="<s>",
            end_token="</s>",
            pair_separators=("</s>", "</s>"),
        )
        return SentencePieceTokenizer(model.SerializeToString(), rules=rules)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _read_lines(files: CheckpointFiles, name: str) -> list[str]:
    """The lines of a vocabulary; not splitlines(): U+2028 and U+0085 can be tokens."""
    path = files.path(f"{_ASSETS}/{name}")
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(path, None, "must be UTF-8.", str(error)) from error
    while lines and not lines[-1].rstrip("\r"):
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _flag(fields: FieldsOfConfig, name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        fields.refuse(name, "true or false", value)
    return bool(value)


_TOKENIZERS: dict[str, Callable[[CheckpointFiles, FieldsOfConfig], Any]] = {
    "BertTokenizer": _word_piece,
    "DistilBertTokenizer": _word_piece,
    "RobertaTokenizer": _byte_pair,
    "XLMRobertaTokenizer": _xlm_roberta,
    "T5Tokenizer": _sentence_piece,
}
