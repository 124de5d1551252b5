"""A tokenizer from whatever a user has: a file or a directory of ours or somebody else's."""

from __future__ import annotations

from pathlib import Path

from tfde.errors import ConfigError
from tfde.text.sentence_piece_tokenizer import SentencePieceTokenizer
from tfde.text.tokenizer import Tokenizer, load_tokenizer, read_settings
from tfde.text.word_piece_tokenizer import WordPieceTokenizer


def read_tokenizer(path: str | Path) -> Tokenizer:
    """Reads a tokenizer.

    Args:
        path: A `vocab.txt`, a SentencePiece model, a directory that tfde wrote, or a Hugging Face
            or keras-hub directory with either.

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
        if any(path.rglob("*.model")) or any(path.rglob("*.spm")):
            return SentencePieceTokenizer.from_directory(path)
        return WordPieceTokenizer.from_hugging_face(path)
    return load_tokenizer(path)


def read_hugging_face_tokenizer(directory: str | Path) -> Tokenizer:
    """Reads the tokenizer of a Hugging Face directory.

    Raises:
        ConfigError: there is none.
    """
    directory = Path(directory)
    if any(directory.glob("*.model")):
        return SentencePieceTokenizer.from_directory(directory)
    return WordPieceTokenizer.from_hugging_face(directory)
