"""Byte-level BPE as graph ops, with the ids of Hugging Face's RoBERTa and GPT-2 tokenizers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tensorflow as tf

from tfde.errors import ConfigError, shorten
from tfde.text.byte_pair.files import checked_model, read_merges, read_pair, read_vocabulary
from tfde.text.byte_pair.merges import BytePairMerges
from tfde.text.byte_pair.words import Gpt2Words
from tfde.text.hugging_face_reader import TOKENIZER_JSON, AddedToken, HuggingFaceDirectory
from tfde.text.hugging_face_writer import tokenizer_files
from tfde.text.post_processor import Frame, read_frame, template
from tfde.text.special_tokens import SpecialToken, SpecialTokens
from tfde.text.tokenizer import TOKENIZER_FILE, Tokenizer, Untracked, read_settings

VOCABULARY_FILE = "vocab.json"
MERGES_FILE = "merges.txt"


class BytePairTokenizer(Tokenizer):
    """Turns texts into the token ids that Hugging Face's RoBERTa or GPT-2 tokenizer gives.

    Special tokens spelled out in the text are recognised; what lies between is cut into GPT-2's
    words, and the UTF-8 bytes of each word are merged by rank. Bytes that are not UTF-8 become
    U+FFFD, as Python's `decode(errors="replace")` makes them.

    Args:
        vocabulary: The tokens in the order of their ids, bytes written as GPT-2 writes them.
        merges: Pairs of tokens by rank.
        special_tokens: What texts may spell out: tokens, or mappings of `content` and the options
            `lstrip`, `rstrip`, `single_word`, `normalized` (after those that are not).
        add_prefix_space: Whether a blank goes before a text that has none there.
        unknown_token: Stands for a byte that is no token; `None`: such a byte is left out.
        pad_token: Its id fills rows up to the batch's length.
        start_token: Goes before every text; `None`: nothing does.
        end_token: Goes after every text and between segments.
        pair_separators: Go between the two texts of a pair.

    Raises:
        ConfigError: the vocabulary lacks one of the tokens above or repeats one, or a merge is of
            tokens, or makes one, that it lacks, or of one that is not written in bytes.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        merges: Sequence[tuple[str, str]],
        special_tokens: Sequence[str | Mapping[str, Any]] = (),
        add_prefix_space: bool = False,
        unknown_token: str | None = None,
        pad_token: str = "<pad>",
        start_token: str | None = "<s>",
        end_token: str = "</s>",
        pair_separators: Sequence[str] = ("</s>", "</s>"),
    ) -> None:
        super().__init__(name="byte_pair_tokenizer")
        self._tokens = Untracked(tuple(vocabulary))
        self._merges = Untracked(tuple((left, right) for left, right in merges))
        ids = {token: index for index, token in enumerate(vocabulary)}
        if len(ids) != len(vocabulary):
            twice = next(t for i, t in enumerate(vocabulary) if ids[t] != i)
            raise ConfigError(
                f"`vocabulary` must hold each token once. Received: {shorten(twice)} twice"
            )
        added = [
            AddedToken.from_json({"content": t} if isinstance(t, str) else t)
            for t in special_tokens
        ]
        for name, token in (
            ("unknown_token", unknown_token),
            ("pad_token", pad_token),
            ("start_token", start_token),
            ("end_token", end_token),
            *(("pair_separators", token) for token in pair_separators),
            *(("special_tokens", token.content) for token in added),
        ):
            if token is not None and token not in ids:
                raise ConfigError(
                    f"`vocabulary` must hold the `{name}`. Received: {len(ids)} tokens"
                    f" without {shorten(token)}"
                )
        self._added = Untracked(tuple(token._replace(id=ids[token.content]) for token in added))
        self._frame = Untracked(Frame(start_token, end_token, tuple(pair_separators)))
        self._add_prefix_space = bool(add_prefix_space)
        self._unknown_token, self._pad_token = unknown_token, pad_token
        self.vocabulary_size = len(ids)
        self.pad_id = ids[pad_token]
        self.start_id = None if start_token is None else ids[start_token]
        self.end_id = self.separator_id = ids[end_token]
        self.pair_separator_ids = tuple(ids[token] for token in pair_separators)
        # What is looked for in the normalized text comes second, though nothing is normalized.
        self._special = [
            SpecialTokens(
                {
                    t.content: SpecialToken(ids[t.content], t.lstrip, t.rstrip, t.single_word)
                    for t in added
                    if t.normalized is normalized
                }
            )
            for normalized in (False, True)
        ]
        self._words = Gpt2Words()
        self._pairs = BytePairMerges(
            ids,
            merges=self._merges.value,
            unknown_id=None if unknown_token is None else ids[unknown_token],
        )

    @classmethod
    def from_hugging_face(cls, directory: str | Path) -> Self:
        """Reads a byte-level BPE from a Hugging Face or sentence-transformers directory.

        `tokenizer.json` goes before `vocab.json` and `merges.txt`; what `AutoTokenizer` takes
        from `tokenizer_config.json` instead is taken from there.

        Raises:
            ConfigError: the files are not there, or the tokenizer does what RoBERTa's and GPT-2's
                do not.
        """
        files = HuggingFaceDirectory(directory)
        if files.tokenizer is not None:
            where = files.path / TOKENIZER_JSON
            model, settings = checked_model(files.tokenizer, where)
            ids, merges = model["vocab"], [read_pair(m, where) for m in model["merges"]]
            frame = read_frame(files.tokenizer.get("post_processor"), where)
        elif (files.path / VOCABULARY_FILE).is_file() and (files.path / MERGES_FILE).is_file():
            where = files.path / VOCABULARY_FILE
            ids, merges = read_vocabulary(where), read_merges(files.path / MERGES_FILE)
            settings, frame = {}, None
        else:
            raise ConfigError(
                f"{files.path}: must hold tokenizer.json or vocab.json and merges.txt."
                " Received: neither"
            )
        vocabulary, added = files.vocabulary(ids, files.added_tokens(), where)
        if files.kind in ("roberta", "gpt2") or frame is None:
            settings = {"add_prefix_space": bool(files.options.get("add_prefix_space", False))}
        name = files.named_token
        if files.kind == "roberta" or frame is None:
            end = name("sep_token", kind="roberta") or name("eos_token")
            frame = Frame(name("cls_token", kind="roberta"), end, (end or "",) * 2)
        if frame.end is None:  # GPT-2 puts nothing around texts; but a row may not be empty
            frame = frame._replace(end=name("eos_token") or name("sep_token"))
        if frame.end is None:
            raise ConfigError(f"{where}: must have an end token (`eos_token`). Received: none")
        return cls(
            vocabulary,
            merges=merges,
            special_tokens=[token._asdict() for token in added],
            pad_token=name("pad_token") or frame.end,
            start_token=frame.start,
            end_token=frame.end,
            pair_separators=frame.pair_separators or (frame.end,),
            **settings,
        )

    @classmethod
    def from_assets(cls, directory: str | Path) -> Self:  # noqa: D102
        _, settings = read_settings(directory, cls.__name__)
        known = [name for name in inspect.signature(cls).parameters if name not in _FROM_FILES]
        for name in settings:
            if name not in known:
                raise ConfigError(
                    f"{Path(directory) / TOKENIZER_FILE}: has no setting {shorten(name)}"
                    f" (it has {', '.join(known)})."
                )
        where = Path(directory) / VOCABULARY_FILE
        ids = read_vocabulary(where)
        try:
            return cls(list(ids), merges=read_merges(Path(directory) / MERGES_FILE), **settings)
        except ConfigError as error:
            raise ConfigError(f"{directory}: {error}") from error

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        first, second = self._special
        return first.tokenize(texts, lambda chunks: second.tokenize(chunks, self._tokenize_chunks))

    def id_to_token(self, token_id: int) -> str:  # noqa: D102
        return self._tokens.value[self._check_id(token_id)]

    def assets(self) -> dict[str, bytes]:  # noqa: D102
        ids = {token: index for index, token in enumerate(self._tokens.value)}
        merges = "".join(f"{left} {right}\n" for left, right in self._merges.value)
        return {
            VOCABULARY_FILE: json.dumps(ids, ensure_ascii=False, indent=0).encode(),
            MERGES_FILE: f"#version: 0.2\n{merges}".encode(),
        }

    def settings(self) -> dict[str, Any]:  # noqa: D102
        frame = self._frame.value
        return {
            "special_tokens": [
                {k: v for k, v in token._asdict().items() if v and k != "id"}
                for token in self._added.value
            ],
            "add_prefix_space": self._add_prefix_space,
            "unknown_token": self._unknown_token,
            "pad_token": self._pad_token,
            "start_token": frame.start,
            "end_token": frame.end,
            "pair_separators": list(frame.pair_separators),
        }

    def hugging_face_files(self, *, max_length_tokens: int | None) -> dict[str, bytes]:  # noqa: D102
        ids = {token: index for index, token in enumerate(self._tokens.value)}
        frame, added = self._frame.value, self._added.value
        named = {
            "pad_token": self._pad_token,
            "unk_token": self._unknown_token or "<unk>",
            "bos_token": frame.start,
            "cls_token": frame.start,
            "sep_token": frame.end,
            "eos_token": frame.end,
            "mask_token": "<mask>",
        }
        byte_level = {"add_prefix_space": self._add_prefix_space, "trim_offsets": True}
        return tokenizer_files(
            {
                "normalizer": None,
                "pre_tokenizer": {"type": "ByteLevel", **byte_level, "use_regex": True},
                "post_processor": template(frame, ids),
                "decoder": {"type": "ByteLevel", **byte_level, "use_regex": True},
                "model": {
                    "type": "BPE",
                    "dropout": None,
                    "unk_token": self._unknown_token,
                    "continuing_subword_prefix": "",
                    "end_of_word_suffix": "",
                    "fuse_unk": False,
                    "byte_fallback": False,
                    "ignore_merges": False,
                    "vocab": ids,
                    "merges": [list(pair) for pair in self._merges.value],
                },
            },
            added_tokens=added,
            named_tokens=named,
            max_length_tokens=max_length_tokens,
            token_types=False,
        )

    def _tokenize_chunks(self, texts: tf.Tensor) -> tf.RaggedTensor:
        if self._add_prefix_space:
            ready = (tf.strings.substr(texts, 0, 1) == " ") | (texts == "")
            texts = tf.where(ready, texts, tf.strings.join([" ", texts]))
        words = self._words(texts)
        # A word that stands in a batch many times is merged once.
        distinct, places = tf.unique(words.values)
        tokens = tf.gather(self._pairs(distinct), places)
        return tf.RaggedTensor.from_row_splits(
            tokens.values, tf.gather(tokens.row_splits, words.row_splits), validate=False
        )


_FROM_FILES = ("vocabulary", "merges")
