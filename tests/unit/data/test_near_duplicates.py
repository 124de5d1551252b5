"""Near duplicates against a brute force that knows nothing of prefixes."""

import itertools
import random

import pytest

from tfde.data.dataset_directory import DatasetDirectory
from tfde.data.near_duplicates import (
    NEARLY_EQUAL,
    near_duplicate_groups,
    normal_words,
    resemblance,
    shingles,
)

WORDS = "red green blue black white apple pear plum cat dog".split()  # noqa: SIM905


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Who wrote “Hamlet”?", ["who", "wrote", "hamlet"]),
        ("  STRASSE\tStraße ", ["strasse", "strasse"]),
        ("ｆｕｌｌ １２", ["full", "12"]),
        ("东京abc是", ["东", "京", "abc", "是"]),
        ("ไทย", ["ไ", "ท", "ย"]),
        ("दिन का काम", ["दिन", "का", "काम"]),
        ("বাংলা", ["বাংলা"]),
        ("x\u0302y", ["x\u0302y"]),
        ("?! …", ["?!", "…"]),
        ("", []),
    ],
)
def test_normal_words(text, words):
    assert normal_words(text) == words


def test_resemblance_by_hand():
    one, two = shingles(["a", "b", "c"]), shingles(["a", "b", "d"])
    assert one == {"a", "b", "c", ("a", "b"), ("b", "c")}
    # a, b, ab are shared; 5 + 5 - 3 together.
    assert resemblance(one, two) == 3 / 7
    assert resemblance(one, one) == 1
    assert resemblance(one, shingles(["x"])) == 0
    assert resemblance(shingles([]), shingles([])) == 1


def sets_of(text):
    """Words and neighbours of an ASCII text, written down anew."""
    words = text.lower().split()
    return {(word,) for word in words} | {tuple(words[i : i + 2]) for i in range(len(words) - 1)}


def brute_force(texts, threshold):
    """The first of each one's group, by comparing all with all until nothing changes."""
    sets = [sets_of(text) for text in texts]
    group = list(range(len(texts)))
    near = [
        (i, j)
        for i, j in itertools.combinations(range(len(texts)), 2)
        if len(sets[i] & sets[j]) >= threshold * len(sets[i] | sets[j]) - 1e-9
    ]
    changed = True
    while changed:
        changed = False
        for i, j in near:
            low = min(group[i], group[j])
            changed |= group[i] != low or group[j] != low
            group[i] = group[j] = low
    return group


@pytest.mark.parametrize("threshold", [0.4, 0.5, 0.7, 0.9, 1.0])
def test_groups_are_those_of_all_comparisons(threshold):
    generator = random.Random(7)
    texts = [" ".join(generator.choices(WORDS[:6], k=generator.randint(1, 7))) for _ in range(150)]
    found = near_duplicate_groups(texts, threshold=threshold).tolist()
    assert found == brute_force(texts, threshold)
    assert len(set(found)) < len(texts)


def test_the_order_of_the_texts_does_not_matter():
    generator = random.Random(3)
    texts = [" ".join(generator.choices(WORDS, k=6)) for _ in range(300)]
    order = list(range(300))
    generator.shuffle(order)

    def together(texts):
        groups = {}
        for text, group in zip(texts, near_duplicate_groups(texts, threshold=0.4), strict=True):
            groups.setdefault(int(group), set()).add(text)
        return sorted(sorted(group) for group in groups.values())

    assert together(texts) == together([texts[i] for i in order])


def test_a_chain_is_one_group_and_the_threshold_itself_counts():
    # Neighbours share 5 of 9: "a b c" and one more word on either side.
    texts = ["a b c d", "a b c e", "x y", "A, b. C? E!"]
    assert resemblance(*(shingles(text.split()) for text in texts[:2])) == 5 / 9
    assert near_duplicate_groups(texts, threshold=5 / 9).tolist() == [0, 0, 2, 0]
    assert near_duplicate_groups(texts, threshold=5 / 9 + 1e-6).tolist() == [0, 1, 2, 1]
    chain = ["a b c d e f g h", "a b c d e f g i", "z b c d e f g i"]
    assert near_duplicate_groups(chain, threshold=0.7).tolist() == [0, 0, 0]
    assert near_duplicate_groups([chain[0], chain[2]], threshold=0.7).tolist() == [0, 1]
    assert near_duplicate_groups([]).tolist() == []


def test_real_questions_against_all_comparisons(data_dir):
    queries = DatasetDirectory(data_dir / "squad_sent").queries("dev")
    texts = [query.text for query in itertools.islice(queries, 1000)]
    plain = [" ".join(normal_words(text)) for text in texts]
    assert near_duplicate_groups(texts).tolist() == brute_force(plain, NEARLY_EQUAL)


@pytest.mark.parametrize(
    ("template", "groups"),
    [("who is the author of {}", 20_000), ("what is the current price of product number {}", 1)],
)
def test_questions_of_one_form_are_not_compared_pair_by_pair(template, groups):
    """200 million comparisons would take some ten minutes."""
    texts = [template.format(f"x{number}") for number in range(20_000)]
    assert len(set(near_duplicate_groups(texts).tolist())) == groups
