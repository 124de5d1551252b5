"""A tokenizer from whatever a user has: a file or a directory of ours or somebody else's."""

from __future__ import annotations

from pathlib import Path

from tfde.errors import ConfigError, first_line, shorten
from tfde.text.byte_pair.tokenizer import BytePairTokenizer
from tfde.text.hugging_face_reader import TOKENIZER_JSON, read_json
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.tokenizer import TOKENIZER_FILE, Tokenizer, read_settings
from tfde.text.word_piece.tokenizer import WordPieceTokenizer

# By `class_name` in our `tokenizer.json`.
TOKENIZERS: dict[str, type[Tokenizer]] = {
    "WordPieceTokenizer": WordPieceTokenizer,
    "SentencePieceTokenizer": SentencePieceTokenizer,
    "BytePairTokenizer": BytePairTokenizer,
}
_FILES = "vocab.txt, vocab.json with merges.txt, spiece.model, sentencepiece.bpe.model"
_SIGNS = {"merges": "BPE", "unk_id": "Unigram"}


def read_tokenizer(path: str | Path) -> Tokenizer:
    """Reads a tokenizer.

    Args:
        path: A `vocab.txt`, a SentencePiece model, a directory that tfde wrote, or a Hugging Face
            or keras-hub directory.

    Raises:
        ConfigError: there is none.
    """
    path = Path(path)
    if path.is_file():
        if path.suffix == ".txt":
            return WordPieceTokenizer.from_vocabulary_file(path)
        return SentencePieceTokenizer.from_file(path)
    if not path.is_dir():
        raise ConfigError(f"{path}: a tokenizer file or directory must stand here.")
    try:
        read_settings(path)
    except ConfigError:  # not one of ours
        if any(path.rglob("*.spm")):  # keras-hub's
            return SentencePieceTokenizer.from_directory(path)
        return read_hugging_face_tokenizer(path)
    return load_tokenizer(path)


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """Returns the tokenizer that `save_assets` wrote into a directory.

    Raises:
        ConfigError: `tokenizer.json` is missing, is not of tfde, or names an unknown class.
    """
    name, _ = read_settings(directory)
    if name not in TOKENIZERS:
        raise ConfigError(
            f"{Path(directory) / TOKENIZER_FILE}: `class_name` must be one of"
            f" {', '.join(TOKENIZERS)}. Received: {shorten(name)}"
        )
    return TOKENIZERS[name].from_assets(directory)


def read_hugging_face_tokenizer(directory: str | Path) -> Tokenizer:
    """Reads the tokenizer of a Hugging Face or sentence-transformers directory.

    Args:
        directory: Holds `tokenizer.json`, whose model says the kind, or the files of one kind.

    Raises:
        ConfigError: there is none, or it is of a kind that tfde does not have.
    """
    directory = Path(directory)
    try:
        return _read_hugging_face_tokenizer(directory)
    except (AttributeError, LookupError, StopIteration, TypeError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        rule = f"must be as Hugging Face's tokenizers writes it ({reason})."
        raise ConfigError(f"{directory / TOKENIZER_JSON}: {rule}") from error


def _read_hugging_face_tokenizer(directory: Path) -> Tokenizer:
    tokenizer = read_json(directory / TOKENIZER_JSON)
    if tokenizer is not None:
        model = tokenizer.get("model") or {}
        # Files of old libraries name no type.
        kind = model.get("type") or next(
            (kind for sign, kind in _SIGNS.items() if sign in model), "WordPiece"
        )
        if kind == "WordPiece":
            return WordPieceTokenizer.from_hugging_face(directory)
        if kind == "BPE":
            return BytePairTokenizer.from_hugging_face(directory)
        if kind == "Unigram":
            return SentencePieceTokenizer.from_hugging_face(directory)
        raise ConfigError(
            f"{directory / TOKENIZER_JSON}: `model.type` must be WordPiece, BPE or Unigram."
            f" Received: {shorten(kind)}"
        )
    if any(directory.glob("*.model")):
        return SentencePieceTokenizer.from_hugging_face(directory)
    if (directory / "vocab.txt").is_file():
        return WordPieceTokenizer.from_hugging_face(directory)
    if (directory / "vocab.json").is_file():
        return BytePairTokenizer.from_hugging_face(directory)
    raise ConfigError(
        f"{directory}: must hold a tokenizer ({TOKENIZER_JSON} of WordPiece, BPE or Unigram;"
        f" {_FILES}). Received: none"
    )
