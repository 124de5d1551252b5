"""What a process does to a live index until it is killed, or until its disk is full."""

import resource
import signal
import threading

import numpy as np

from tfde.retrieval.live.live_index import LiveIndex
from tfde.types import Document

DIM = 4


def change(number):
    """Change `number` of the endless sequence: ids to delete, or new vectors by id."""
    generator = np.random.default_rng(number)
    if number % 4 == 3:
        return [f"d{i}" for i in generator.integers(1, 60, 4)], None
    doc_ids = [f"d{i}" for i in generator.permutation(60)[:6]]
    return doc_ids, generator.integers(-4, 5, (6, DIM)).astype(np.float32)


def make(index, number):
    """Makes a change."""
    doc_ids, vectors = change(number)
    if vectors is None:
        index.delete(doc_ids)
    else:
        documents = [Document(doc_id, "", f"text {number}") for doc_id in doc_ids]
        index.add(documents, vectors, fingerprint="f")


def replay(expected, number):
    """Makes a change in a dictionary of vectors, whose order is the index's."""
    doc_ids, vectors = change(number)
    for doc_id in doc_ids:
        expected.pop(doc_id, None)
    if vectors is not None:
        expected.update(zip(doc_ids, vectors, strict=True))


def change_and_compact(path, first, acknowledged):
    """Makes changes from `first` on and sends the number of each; compacts all the time."""
    index = LiveIndex.open(path, write=True)

    def compact():
        while True:
            index.compact()

    threading.Thread(target=compact, daemon=True).start()
    number = first
    while True:
        make(index, number)
        acknowledged.send(number)
        number += 1


def fill_the_disk(path, answers):
    """Makes changes with files limited to 300 KB; sends what was refused, then goes on."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    text = "x" * 20_000
    with LiveIndex.open(path, write=True) as index:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, most))
        made = 0
        try:
            while True:
                document = Document(f"n{made}", "", text)
                index.add([document], np.full((1, DIM), made), fingerprint="f")
                made += 1
        except OSError as error:
            refused = (error.filename, error.strerror, index.status().sequence)
        found = index.search(np.ones((1, DIM)), 1)[1].tolist()
        compactions = []
        for limit in (500, 5_000):  # too little for the vectors; enough for them, not for the log
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
            try:
                index.compact()
            except OSError as error:
                compactions.append(error.strerror)
        status = index.status()
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        answers.send((made, refused, found, compactions, (status.generation, status.sequence)))
        index.add([Document("last", "", text)], np.full((1, DIM), made), fingerprint="f")
        index.compact()
