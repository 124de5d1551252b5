"""BERT's WordPiece as graph ops, with the ids of Hugging Face's tokenizer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tensorflow as tf
import tensorflow_text as tft

from tfde.errors import ConfigError, shorten
from tfde.text.hugging_face_reader import TOKENIZER_JSON, AddedToken, HuggingFaceDirectory, Kind
from tfde.text.hugging_face_writer import tokenizer_files
from tfde.text.post_processor import Frame, read_frame, template
from tfde.text.special_tokens import SpecialToken, SpecialTokens
from tfde.text.tokenizer import TOKENIZER_FILE, Tokenizer, Untracked, read_settings
from tfde.text.word_piece.files import (
    MAX_CHARACTERS_PER_WORD,
    check_added,
    checked_model,
    numbered,
    options_of_class,
    read_lines,
    read_vocabulary,
)
from tfde.text.word_piece.normalizer import BertNormalizer, vocabulary_of_op

VOCABULARY_FILE = "vocab.txt"
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class WordPieceTokenizer(Tokenizer):
    """Turns texts into the token ids that Hugging Face's BERT tokenizer gives.

    Clean, split off Chinese characters, decompose, strip accents, lowercase, split on white
    space and punctuation, then longest-match-first word pieces; a word of more than 100
    characters is unknown; special tokens spelled out in the raw text are recognised. Bytes that
    are not UTF-8 are dropped (as U+FFFD is, which Python's `decode(errors="replace")` puts
    there).

    Args:
        vocabulary: The tokens in the order of their ids.
        lowercase: Whether the vocabulary is of lower-case words.
        strip_accents: Whether accents are removed. `None`: when `lowercase`.
        special_tokens: Tokens that texts may spell out; those not in `vocabulary` are left out.
        normalized_tokens: Tokens that normalized texts may spell out: `"[NEW]"` is found in
            "[new]" too where letters become lower case.
        pad_token: Its id fills rows up to the batch's length.
        unknown_token: Its id stands for words that no pieces make up.
        start_token: Goes before every text.
        end_token: Goes after every text and between segments.
        pair_separators: Go between the two texts of a pair. `None`: the end token.

    Raises:
        ConfigError: the vocabulary lacks one of the tokens above, repeats a token, or holds an
            empty token or one with a line break.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        special_tokens: Sequence[str] = SPECIAL_TOKENS,
        normalized_tokens: Sequence[str] = (),
        pad_token: str = "[PAD]",
        unknown_token: str = "[UNK]",
        start_token: str = "[CLS]",
        end_token: str = "[SEP]",
        pair_separators: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name="word_piece_tokenizer")
        self._tokens = Untracked(tuple(vocabulary))
        ids = numbered(self._tokens.value)
        self._settings: dict[str, Any] = {
            "lowercase": bool(lowercase),
            "strip_accents": bool(lowercase if strip_accents is None else strip_accents),
            "special_tokens": tuple(t for t in special_tokens if t in ids),
            "normalized_tokens": tuple(t for t in normalized_tokens if t in ids),
            "pad_token": pad_token,
            "unknown_token": unknown_token,
            "start_token": start_token,
            "end_token": end_token,
            "pair_separators": (end_token,) if pair_separators is None else tuple(pair_separators),
        }
        for name in ("pad_token", "unknown_token", "start_token", "end_token", "pair_separators"):
            tokens = self._settings[name]
            for token in (tokens,) if isinstance(tokens, str) else tokens:
                if token not in ids:
                    raise ConfigError(
                        f"`vocabulary` must hold the `{name}`. Received: {len(ids)} tokens"
                        f" without {shorten(token)}"
                    )
        self.vocabulary_size = len(self._tokens.value)
        self.pad_id = ids[pad_token]
        self.start_id = ids[start_token]
        self.end_id = self.separator_id = ids[end_token]
        self.pair_separator_ids = tuple(ids[t] for t in self._settings["pair_separators"])
        self._special = SpecialTokens(
            {token: SpecialToken(ids[token]) for token in self._settings["special_tokens"]}
        )
        # Of two that are spelled alike once normalized the first one counts.
        self._special_in_normalized = SpecialTokens(
            {
                token.lower() if lowercase else token: SpecialToken(ids[token])
                for token in reversed(self._settings["normalized_tokens"])
            }
        )
        self._normalizer = BertNormalizer(
            lowercase=self._settings["lowercase"],
            strip_accents=self._settings["strip_accents"],
            max_characters_per_word=MAX_CHARACTERS_PER_WORD,
        )
        self._word_pieces = tft.FastWordpieceTokenizer(
            vocabulary_of_op(
                self._tokens.value,
                unknown_token=unknown_token,
                special_tokens={
                    *self._settings["special_tokens"],
                    *self._settings["normalized_tokens"],
                },
            ),
            max_bytes_per_word=4 * MAX_CHARACTERS_PER_WORD,
            unknown_token=unknown_token,
            token_out_type=tf.int32,
        )

    @classmethod
    def from_vocabulary_file(
        cls, path: str | Path, *, lowercase: bool = True, strip_accents: bool | None = None
    ) -> Self:
        """Reads a `vocab.txt`: one token a line.

        Raises:
            ConfigError: the file is missing or not UTF-8, or the vocabulary breaks a rule.
        """
        settings = {"lowercase": lowercase, "strip_accents": strip_accents}
        return cls._from_file(Path(path), settings)

    @classmethod
    def from_hugging_face(cls, directory: str | Path) -> Self:
        """Reads a WordPiece tokenizer from a Hugging Face or sentence-transformers directory.

        `tokenizer.json` goes before `vocab.txt`. Letter case, accents and the tokens around texts
        are those of `AutoTokenizer`: for a class such as `BertTokenizer` what
        `tokenizer_config.json` says, or the class's default; for a general class what
        `tokenizer.json` says; where no class is named the former before the latter.

        Raises:
            ConfigError: neither file is there, or the tokenizer does what BERT's does not.
        """
        files = HuggingFaceDirectory(directory)
        general = files.class_is_known and files.kind is None
        if files.tokenizer is not None:
            where = files.path / TOKENIZER_JSON
            model, settings = checked_model(
                files.tokenizer, where, normalizer_counts=not files.kind
            )
            ids = model["vocab"]
            frame = read_frame(files.tokenizer.get("post_processor"), where)
        elif (files.path / VOCABULARY_FILE).is_file():
            where = files.path / VOCABULARY_FILE
            ids, settings, frame = read_vocabulary(where), {}, Frame(None, None, ())
            general = False
        else:
            raise ConfigError(
                f"{files.path}: must hold tokenizer.json or vocab.txt. Received: neither"
            )
        if not general:
            settings |= options_of_class(files)
        vocabulary, added = files.vocabulary(ids, files.added_tokens(), where)
        check_added(added, ids, where)
        default: Kind | None = None if general else "bert"

        def named(name: str, of_file: str | None) -> str:
            """Returns the token of the class's option, or of the file where that counts."""
            said = files.options.get(name) is not None or files.kind is not None
            token = of_file if general or (of_file and not said) else None
            token = token or files.named_token(name, kind=default)
            if token is None:
                raise ConfigError(f"the files must name a `{name}`. Received: none")
            return token

        try:
            end = named("sep_token", frame.end)
            separators = {"bert": (end,), "mpnet": (end, end)}.get(files.kind or "")
            return cls(
                vocabulary,
                special_tokens=[t.content for t in added if not t.normalized],
                normalized_tokens=[t.content for t in added if t.normalized],
                pad_token=named("pad_token", None),
                unknown_token=named("unk_token", settings.pop("unknown_token", None)),
                start_token=named("cls_token", frame.start),
                end_token=end,
                pair_separators=separators or frame.pair_separators or (end,),
                **settings,
            )
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error

    @classmethod
    def from_assets(cls, directory: str | Path) -> Self:  # noqa: D102
        _, settings = read_settings(directory, cls.__name__)
        known = inspect.signature(cls).parameters
        for name in settings:
            if name not in known:
                raise ConfigError(
                    f"{Path(directory) / TOKENIZER_FILE}: has no setting {shorten(name)}"
                    f" (it has {', '.join(list(known)[1:])})."
                )
        return cls._from_file(Path(directory) / VOCABULARY_FILE, settings)

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._special.tokenize(texts, self._tokenize_chunks)

    def id_to_token(self, token_id: int) -> str:  # noqa: D102
        return self._tokens.value[self._check_id(token_id)]

    def assets(self) -> dict[str, bytes]:  # noqa: D102
        return {VOCABULARY_FILE: "".join(f"{t}\n" for t in self._tokens.value).encode()}

    def settings(self) -> dict[str, Any]:  # noqa: D102
        values = {k: list(v) if isinstance(v, tuple) else v for k, v in self._settings.items()}
        # Named only where they differ, so that fingerprints of older models stay.
        if not values["normalized_tokens"]:
            del values["normalized_tokens"]
        if values["pair_separators"] == [values["end_token"]]:
            del values["pair_separators"]
        return values

    def hugging_face_files(self, *, max_length_tokens: int | None) -> dict[str, bytes]:  # noqa: D102
        ids = {token: index for index, token in enumerate(self._tokens.value)}
        settings = self._settings
        frame = Frame(settings["start_token"], settings["end_token"], settings["pair_separators"])
        added = sorted(
            AddedToken(token, ids[token], normalized=normalized)
            for normalized, tokens in (
                (False, settings["special_tokens"]),
                (True, settings["normalized_tokens"]),
            )
            for token in tokens
        )
        spelled = {token.content for token in added}
        # Added after the vocabulary, as no word may be one of them once normalized.
        size = len(ids)
        while self._tokens.value[size - 1] in spelled - {settings["unknown_token"]}:
            size -= 1
        named = {
            "unk_token": settings["unknown_token"],
            "pad_token": settings["pad_token"],
            "cls_token": frame.start,
            "sep_token": frame.end,
            "mask_token": next((t for t in ("[MASK]", "<mask>") if t in spelled), None),
        }
        return tokenizer_files(
            {
                "normalizer": {
                    "type": "BertNormalizer",
                    "clean_text": True,
                    "handle_chinese_chars": True,
                    "strip_accents": settings["strip_accents"],
                    "lowercase": settings["lowercase"],
                },
                "pre_tokenizer": {"type": "BertPreTokenizer"},
                "post_processor": template(frame, ids),
                "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
                "model": {
                    "type": "WordPiece",
                    "unk_token": settings["unknown_token"],
                    "continuing_subword_prefix": "##",
                    "max_input_chars_per_word": MAX_CHARACTERS_PER_WORD,
                    "vocab": {token: ids[token] for token in self._tokens.value[:size]},
                },
            },
            added_tokens=sorted(added, key=lambda token: token.id or 0),
            named_tokens=named,
            max_length_tokens=max_length_tokens,
            token_types=len(frame.pair_separators) == 1,
        )

    def _tokenize_chunks(self, texts: tf.Tensor) -> tf.RaggedTensor:
        if not self._settings["normalized_tokens"]:
            return self._word_pieces.tokenize(self._normalizer(texts))
        return self._special_in_normalized.tokenize(
            self._normalizer.normalize(texts),
            lambda parts: self._word_pieces.tokenize(self._normalizer.hide_long_words(parts)),
        )

    @classmethod
    def _from_file(cls, path: Path, settings: Mapping[str, Any]) -> Self:
        lines = read_lines(path)
        try:
            return cls(lines, **settings)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
