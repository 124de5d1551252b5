import hashlib

import numpy as np

from tfde.data.ids import KnownIds, id_of_text, key_of


def test_keys_are_63_bit_and_stable():
    digest = hashlib.blake2b(b"d1", digest_size=8).digest()
    assert key_of("d1") == int.from_bytes(digest, "little") // 2
    keys = [key_of(str(i)) for i in range(20_000)]
    assert len(set(keys)) == 20_000
    assert min(keys) > 0
    assert 2**62 < max(keys) < 2**63


def test_equal_texts_have_equal_ids():
    assert id_of_text("a", title="t") == id_of_text("a", title="t")
    assert len({id_of_text("bc", title="a"), id_of_text("c", title="ab"), id_of_text("abc")}) == 3


def test_known_ids_knows_what_it_has_seen(monkeypatch):
    monkeypatch.setattr("tfde.data.ids._MIN_RECENT", 16)
    ids = [f"d{number}" for number in np.random.default_rng(0).permutation(500)]
    known = KnownIds()
    assert all(known.add(value) for value in ids)
    assert not any(known.add(value) for value in ids)
    assert len(known) == 500
    assert all(value in known for value in ids)
    assert "d500" not in known
    assert 7 not in known
