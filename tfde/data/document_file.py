"""A corpus on the disk in which documents are found by id, for corpora larger than memory."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tfde.data.ids import key_of
from tfde.storage.atomic import atomic_directory
from tfde.types import Document

_TEXTS, _KEYS, _OFFSETS = "documents.jsonl", "keys.npy", "offsets.npy"


class DocumentFile:
    """Documents that lie on the disk, found by id; made by `DocumentFile.build`.

    Memory holds nothing but what the operating system caches; 16 bytes a document while building.

    Args:
        directory: What `build` wrote.
    """

    def __init__(self, directory: str | Path) -> None:
        directory = Path(directory)
        self._keys = np.load(directory / _KEYS, mmap_mode="r", allow_pickle=False)
        self._offsets = np.load(directory / _OFFSETS, mmap_mode="r", allow_pickle=False)
        self._file = open(directory / _TEXTS, "rb")  # noqa: SIM115  # closed with the object

    @classmethod
    def build(cls, documents: Iterable[Document], directory: str | Path) -> DocumentFile:
        """Writes the documents to a directory that appears whole or not at all.

        Args:
            documents: With ids that differ; read once.
            directory: A new one, or one that `build` finished earlier, which is taken as it is.
        """
        directory = Path(directory)
        if not directory.exists():
            keys, offsets = array("q"), array("q")
            with atomic_directory(directory) as temporary:
                with open(temporary / _TEXTS, "wb") as file:
                    for document in documents:
                        keys.append(key_of(document.doc_id))
                        offsets.append(file.tell())
                        fields = document if document.metadata else document[:3]
                        file.write(json.dumps(fields, ensure_ascii=False).encode() + b"\n")
                unsorted = np.array(keys, np.int64)
                order = np.argsort(unsorted, kind="stable")
                np.save(temporary / _KEYS, unsorted[order])
                np.save(temporary / _OFFSETS, np.array(offsets, np.int64)[order])
        return cls(directory)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, doc_id: str) -> bool:
        return self.get(doc_id) is not None

    def get(self, doc_id: str) -> Document | None:
        """Returns the document with an id, or `None`."""
        key = key_of(doc_id)
        position = int(np.searchsorted(self._keys, key))
        # Two ids may have one key.
        while position < len(self) and self._keys[position] == key:
            document = self.at(position)
            if document.doc_id == doc_id:
                return document
            position += 1
        return None

    def at(self, position: int) -> Document:
        """Returns one of the documents, in an order that is the same for equal sets of ids."""
        self._file.seek(int(self._offsets[position]))
        return Document(*json.loads(self._file.readline()))

    def close(self) -> None:
        """Closes the file of texts."""
        self._file.close()
