import hashlib

from tfde.data.ids import SeenIds, id_of_text, key_of


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


def test_seen_ids_finds_a_duplicate():
    seen = SeenIds()
    assert not any(seen.add(str(i)) for i in range(3000))
    assert not seen.has_duplicate()
    seen.add("7")
    assert seen.has_duplicate()
