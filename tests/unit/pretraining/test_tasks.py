from collections import Counter

import pytest
from scipy import stats

from tfde.data.pages import Page, Section
from tfde.pretraining.page_store import Question, split_page
from tfde.pretraining.tasks import (
    Draws,
    bfs_pair,
    has_ict,
    has_span_crop,
    ict_pair,
    question_pair,
    span_crop_pair,
    wlp_pair,
)

PAGE = split_page(
    Page(
        "p",
        "Title",
        (
            Section("", ("It rains. It snows. It hails.", "Only one here.")),
            Section("Is it dry?", ("Dry it is. Not wet.", "Quite dry.")),
            Section("End", ("The end.",)),
        ),
    )
)
OTHER = split_page(Page("o", "Other", (Section("", ("First. Second.", "Third.")),)))


def drawn(make, count=600):
    """How often each pair of query and document came out."""
    pairs = [make(Draws(key)) for key in range(count)]
    return Counter((pair.query.text, pair.positive.text) for pair in pairs)


def is_uniform(counts, kinds):
    assert len(counts) == kinds
    return stats.chisquare(list(counts.values())).pvalue > 0.001


def test_a_page_is_cut():
    first = PAGE.passages[0]
    assert [first.text[a:b] for a, b in first.sentences] == ["It rains.", "It snows.", "It hails."]
    assert [len(passage.sentences) for passage in PAGE.passages] == [3, 1, 2, 1, 1]
    assert PAGE.num_first == 2
    assert PAGE.questions == [Question("Is it dry?", 2, 4)]
    assert [has_ict(passage) for passage in PAGE.passages] == [True, False, True, False, False]


def test_ict_takes_each_sentence_as_often_and_leaves_the_rest():
    counts = drawn(lambda draws: ict_pair(PAGE, 0, draws))
    assert set(counts) == {
        ("It rains.", "It snows. It hails."),
        ("It snows.", "It rains. It hails."),
        ("It hails.", "It rains. It snows."),
    }
    assert is_uniform(counts, 3)


def test_bfs_takes_first_section_and_any_other_passage():
    texts = [passage.text for passage in PAGE.passages]
    first = [("It rains.", 0), ("It snows.", 0), ("It hails.", 0), ("Only one here.", 1)]
    counts = drawn(lambda draws: bfs_pair(PAGE, draws), 3000)
    assert set(counts) == {
        (query, text) for query, own in first for text in texts if text != texts[own]
    }
    assert is_uniform(counts, 16)


@pytest.mark.parametrize(
    ("numbers", "texts"), [([], ["First. Second.", "Third."]), ([1], ["Third."])]
)
def test_wlp_takes_first_section_and_a_linking_passage_or_any(numbers, texts):
    counts = drawn(lambda draws: wlp_pair(PAGE, OTHER, numbers, draws), 1500)
    first = ("It rains.", "It snows.", "It hails.", "Only one here.")
    assert set(counts) == {(q, text) for q in first for text in texts}
    assert is_uniform(counts, 4 * len(texts))


def test_titles_stand_where_they_are_asked_for():
    draws = Draws(0)
    assert ict_pair(PAGE, 0, draws).positive.title == "Title"
    assert ict_pair(PAGE, 0, draws, title=False).positive.title == ""
    assert bfs_pair(PAGE, draws).positive.title == ""
    assert bfs_pair(PAGE, draws, title=True).positive.title == "Title"
    # The title is that of the document's page.
    assert wlp_pair(PAGE, OTHER, [], draws, title=True).positive.title == "Other"
    assert span_crop_pair(words(40), 0, draws, title=True).positive.title == "T"
    assert question_pair(PAGE, 0, title=True).positive.title == "Title"


def test_a_question_is_answered_by_its_section():
    pair = question_pair(PAGE, 0)
    assert (pair.query.text, pair.positive.text) == ("Is it dry?", "Dry it is. Not wet. Quite dry.")


def words(count):
    text = " ".join(f"w{number:03}" for number in range(count))
    return split_page(Page("w", "T", (Section("", (text,)),)))


@pytest.mark.parametrize("count", [20, 100])
def test_spans_have_the_lengths_and_the_noise_of_the_paper(count):
    kept, total = Counter(), Counter()
    lengths, starts = set(), set()
    for key in range(1600):
        pair = span_crop_pair(words(count), 0, Draws(key))
        for text in (pair.query.text, pair.positive.text):
            numbers = [int(word[1:]) for word in text.split()]
            # Words in their order: some of the span may be missing.
            if numbers == sorted(set(numbers)) and numbers[-1] - numbers[0] < count // 2:
                reach = numbers[-1] - numbers[0] + 1
                # Deleted words at the ends do not show.
                lengths.add(reach)
                starts.add(numbers[0])
                if reach > len(numbers):
                    kept["deleted"] += len(numbers) - 2
                    total["deleted"] += reach - 2
            else:  # words replaced: most of the others stand where the first tells
                offsets = Counter(number - place for place, number in enumerate(numbers))
                assert len(numbers) <= count // 2
                kept["replaced"] += offsets.most_common(1)[0][1]
                total["replaced"] += len(numbers)
    assert max(lengths) == count // 2
    assert min(starts) == 0
    assert min(total.values()) > 2000
    # These spans have at least one word of noise.
    assert all(0.6 < kept[kind] / total[kind] < 0.93 for kind in total)
    queries = {span_crop_pair(words(count), 0, Draws(key)).query.text for key in range(50)}
    assert len(queries) > 25


def test_a_short_passage_is_not_cropped():
    assert not has_span_crop(words(19).passages[0])
    assert has_span_crop(words(20).passages[0])


def test_equal_texts_have_equal_ids():
    one, two = ict_pair(PAGE, 0, Draws(0)), ict_pair(PAGE, 0, Draws(0))
    assert one == two
    assert one.positive_doc_ids == (one.positive.doc_id,)
    assert one.positive.doc_id != ict_pair(PAGE, 0, Draws(0), title=False).positive.doc_id


def test_the_rest_of_a_passage_without_spaces_has_none():
    page = split_page(Page("p", "", (Section("", ("一。二。三。",)),)), language="zh")
    documents = {ict_pair(page, 0, Draws(key)).positive.text for key in range(50)}
    assert documents == {"二。三。", "一。三。", "一。二。"}
