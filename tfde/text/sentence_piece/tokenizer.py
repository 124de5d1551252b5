"""SentencePiece as graph ops: as the library uses a model, or as Hugging Face's tokenizers do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import sentencepiece
import tensorflow as tf

from tfde.errors import ConfigError
from tfde.storage.json_file import read_binary_file
from tfde.text.sentence_piece.model import UNKNOWN, parse_model, sentence_piece_op
from tfde.text.sentence_piece.pipeline import UnigramPipeline, UnigramRules
from tfde.text.sentence_piece.read_unigram import read_unigram
from tfde.text.sentence_piece.write_unigram import write_unigram
from tfde.text.tokenizer import Tokenizer, Untracked, read_settings

MODEL_FILE = "vocabulary.spm"
END_TOKEN = "</s>"
# Where a directory may keep the model: ours, Hugging Face's T5, keras-hub's preset.
_PLACES = (MODEL_FILE, "spiece.model", f"assets/tokenizer/{MODEL_FILE}", f"tokenizer/{MODEL_FILE}")


class SentencePieceTokenizer(Tokenizer):
    """Turns texts into the token ids of a SentencePiece model.

    Without `rules` it does what the sentencepiece library does with a model in T5's layout:
    nothing goes before a text, `</s>` goes after it and between segments, special tokens that a
    text spells out stay ordinary text, and each byte that is not UTF-8 becomes U+FFFD.

    With `rules` (from `from_hugging_face`) it does what Hugging Face's tokenizers do with T5's,
    XLM-RoBERTa's and other Unigram vocabularies, special tokens in texts included.

    Args:
        model: The serialized SentencePiece model: what its `.model` file holds.
        rules: How Hugging Face's tokenizers use it, or `None`.

    Raises:
        ConfigError: `model` is no SentencePiece model, or lacks an unknown piece, a padding id or
            `</s>`; or `rules` ask for what tfde does not do.
    """

    is_equal_in_ascii = False  # scores are sums, which two programs round in two ways

    def __init__(self, model: bytes, *, rules: UnigramRules | None = None) -> None:
        super().__init__(name="sentence_piece_tokenizer")
        self._model, self._rules = bytes(model), rules
        if rules is None:
            self._use_as_library()
        else:
            self._use_as_hugging_face(rules)

    def _use_as_library(self) -> None:
        pieces = sentencepiece.SentencePieceProcessor()
        try:
            pieces.LoadFromSerializedProto(self._model)
        except RuntimeError as error:
            raise ConfigError(
                "`model` must be a serialized SentencePiece model."
                f" Received: {len(self._model)} bytes that are none"
            ) from error
        self.vocabulary_size = pieces.vocab_size()
        self.pad_id = pieces.pad_id()
        if self.pad_id < 0:
            raise ConfigError("`model` must have a padding id (T5: 0). Received: a model without")
        self.start_id = None
        self.end_id = self.separator_id = pieces.PieceToId(END_TOKEN)
        if pieces.IdToPiece(self.end_id) != END_TOKEN:
            raise ConfigError(f"`model` must have the piece {END_TOKEN}. Received: a model without")
        self.pair_separator_ids = (self.end_id,)
        self._op: Any = sentence_piece_op(self._model)
        self._tokens = Untracked([pieces.IdToPiece(i) for i in range(self.vocabulary_size)])

    def _use_as_hugging_face(self, rules: UnigramRules) -> None:
        proto = parse_model(self._model)
        unknown = [i for i, piece in enumerate(proto.pieces) if piece.type == UNKNOWN]
        if len(unknown) != 1:
            raise ConfigError(
                f"`model` must have one unknown piece. Received: {len(unknown)} of them"
            )
        ids = {piece.piece: index for index, piece in enumerate(proto.pieces)}
        ids |= {t.content: t.id for t in rules.special_tokens if t.id is not None}
        if sorted(ids.values()) != list(range(len(ids))):
            raise ConfigError(
                "`rules` must give ids without a gap."
                f" Received: {len(ids)} tokens with ids up to {max(ids.values(), default=-1)}"
            )
        self.vocabulary_size = len(ids)
        self.pad_id = ids[rules.pad_token]
        self.start_id = None if rules.start_token is None else ids[rules.start_token]
        self.end_id = self.separator_id = ids[rules.end_token]
        self.pair_separator_ids = tuple(ids[token] for token in rules.pair_separators)
        self._op = UnigramPipeline(
            [(piece.piece, piece.score) for piece in proto.pieces],
            unknown_id=unknown[0],
            charsmap=proto.normalizer_spec.precompiled_charsmap,
            normalizer=rules.normalizer,
            words=rules.words,
            special_tokens=rules.special_tokens,
        )
        self._tokens = Untracked(sorted(ids, key=ids.__getitem__))

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Reads a `.model` file.

        Raises:
            ConfigError: the file cannot be read or is no fit SentencePiece model.
        """
        try:
            return cls(read_binary_file(Path(path)))
        except OSError as error:
            raise ConfigError(
                f"{path}: must be a readable SentencePiece model. Received: {error}"
            ) from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def from_directory(cls, directory: str | Path) -> Self:
        """Reads the model in a Hugging Face T5 directory or a keras-hub preset.

        Raises:
            ConfigError: the directory holds no SentencePiece model.
        """
        for place in _PLACES:
            if (Path(directory) / place).is_file():
                return cls.from_file(Path(directory) / place)
        raise ConfigError(
            f"{directory}: must hold a SentencePiece model ({', '.join(_PLACES)}). Received: none"
        )

    @classmethod
    def from_hugging_face(cls, directory: str | Path) -> Self:
        """Reads the Unigram tokenizer of a Hugging Face or sentence-transformers directory.

        `tokenizer.json` goes before `spiece.model` (T5), `sentencepiece.bpe.model` (XLM-RoBERTa)
        and other `*.model` files. The ids are those of transformers 5.

        Raises:
            ConfigError: there is none, or the tokenizer does what tfde does not do.
        """
        model, rules = read_unigram(directory)
        try:
            return cls(model, rules=rules)
        except ConfigError as error:
            raise ConfigError(f"{directory}: {error}") from error

    @classmethod
    def from_assets(cls, directory: str | Path) -> Self:  # noqa: D102
        _, settings = read_settings(directory, cls.__name__)
        if not settings:
            return cls.from_file(Path(directory) / MODEL_FILE)
        path = Path(directory) / MODEL_FILE
        try:
            return cls(read_binary_file(path), rules=UnigramRules.from_json(settings["rules"]))
        except OSError as error:
            raise ConfigError(
                f"{path}: must be a readable SentencePiece model. Received: {error}"
            ) from error
        except KeyError as error:
            raise ConfigError(
                f"{directory}: must hold the setting `rules`. Received: {', '.join(settings)}"
            ) from error
        except ConfigError as error:
            raise ConfigError(f"{directory}: {error}") from error

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._op.tokenize(texts)

    def id_to_token(self, token_id: int) -> str:  # noqa: D102
        return self._tokens.value[self._check_id(token_id)]

    def assets(self) -> dict[str, bytes]:  # noqa: D102
        return {MODEL_FILE: self._model}

    def settings(self) -> dict[str, Any]:  # noqa: D102
        return {} if self._rules is None else {"rules": self._rules.to_json()}

    def hugging_face_files(self, *, max_length_tokens: int | None) -> dict[str, bytes]:  # noqa: D102
        return write_unigram(self._model, self._rules, max_length_tokens=max_length_tokens)
