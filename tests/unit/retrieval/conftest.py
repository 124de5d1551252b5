"""A small real encoder: signed hashing of words, unit norm."""

import hashlib

import numpy as np
import pytest

from tfde.types import Document


class HashingEncoder:
    embedding_dim = 16

    def __init__(self, salt: str = "") -> None:
        self.salt = salt
        self.calls: list[int] = []

    def fingerprint(self) -> str:
        return f"hashing{self.salt}"

    def encode_queries(self, texts, *, batch_size=64):
        return np.stack([self._embed(text) for text in texts])

    def encode_documents(self, documents, *, batch_size=64):
        self.calls.append(len(documents))
        return np.stack([self._embed(f"{d.title} {d.text}") for d in documents])

    def _embed(self, text):
        vector = np.full(self.embedding_dim, 1e-3, np.float32)
        for word in text.split():
            digest = hashlib.sha256((self.salt + word).encode()).digest()
            vector[digest[0] % self.embedding_dim] += 1 if digest[1] % 2 else -1
        return vector / np.linalg.norm(vector)


@pytest.fixture
def encoder_class():
    return HashingEncoder


@pytest.fixture
def encoder():
    return HashingEncoder()


@pytest.fixture
def documents():
    return [Document(f"d{i}", f"title {i}", f"word{i} word{i % 7} ünï {i * i}") for i in range(25)]
