import itertools
import json
from collections import Counter

import pytest
from scipy import stats

from tfde.data.pages import Page, Section, read_pages, write_pages
from tfde.data.pairs.read_pairs import read_pairs
from tfde.data.sentences import split_sentences
from tfde.errors import ConfigError
from tfde.pretraining.build_store import build_store
from tfde.pretraining.pair_stream import ROUND, PairStream
from tfde.pretraining.tasks import MIN_CROP_WORDS
from tfde.pretraining.write_pair_file import TaskStatistics, format_statistics, write_pair_file

PAGES = [
    Page("a", "A", (Section("", ("A one. A two.", "A three.")),), ("b",)),
    Page("b", "B", (Section("", ("B one. B two.",)), Section("S", ("B three. B four.",))), ("a",)),
    Page("c", "C", (Section("", ("C one.",)),), ("a",)),
]


@pytest.fixture
def store(tmp_path):
    write_pages(tmp_path / "pages.jsonl", PAGES)
    return build_store(tmp_path / "pages.jsonl", tmp_path / "store")


def test_places_and_what_gives_no_pair(store):
    stream = PairStream(store)
    assert stream.places == {"ict": 3, "bfs": 4, "wlp": 4}
    assert stream.without_pair == {
        "ict": {"passages of one sentence": 2},
        "bfs": {"pages of one passage": 1},
        "wlp": {"pages without a link to them": 1},
    }
    assert len(stream) == 11


def test_a_pass_visits_each_place_once(store):
    stream = PairStream(store, ["ict"])
    for epoch in range(3):
        titles = [(pair.positive.title, pair.query.text[:1]) for pair in stream.pairs_of(epoch)]
        assert sorted(titles) == [("A", "A"), ("B", "B"), ("B", "B")]
        queries = {pair.query.text for pair in stream.pairs_of(epoch)}
        assert len(queries & {"B one.", "B two."}) == len(queries & {"B three.", "B four."}) == 1


def test_any_pair_can_be_asked_for(store):
    stream, again = PairStream(store, seed=3), PairStream(store, seed=3)
    pairs = list(itertools.islice(stream.pairs(), 40))
    assert [again.pair(number) for number in reversed(range(40))] == pairs[::-1]
    assert list(again.pairs(17, 23)) == pairs[17:23]
    assert list(again.pairs_of(1)) == pairs[11:22]


def test_epochs_and_seeds_differ(store):
    streams = [PairStream(store, seed=seed) for seed in (0, 1)]
    epochs = [tuple(stream.pairs_of(epoch)) for stream in streams for epoch in range(3)]
    assert len(set(epochs)) == 6


@pytest.mark.parametrize(
    ("tasks", "shares"),
    [
        (("ict", "bfs", "wlp"), {"ict": 333, "bfs": 333, "wlp": 333}),
        ({"ict": 2, "wlp": 6.0}, {"ict": 250, "wlp": 750}),
        ({"ict": 999, "bfs": 1}, {"ict": 999, "bfs": 1}),
    ],
)
def test_each_round_holds_the_tasks_by_their_weights(store, tasks, shares):
    stream = PairStream(store, tasks)
    orders = set()
    for turn in range(2):
        found = [stream.task(number) for number in range(turn * ROUND, (turn + 1) * ROUND)]
        counts = Counter(found)
        assert sum(counts.values()) == ROUND
        assert all(0 <= counts[task] - share <= 1 for task, share in shares.items())
        orders.add(tuple(found))
    assert len(orders) == 2


def test_small_tasks_come_round_more_often(store):
    stream = PairStream(store, {"ict": 1, "bfs": 3})
    queries = Counter(
        stream.pair(number).query.text for number in range(ROUND) if stream.task(number) == "ict"
    )
    # 250 pairs of 3 places: each place 83 or 84 times, whichever of its sentences.
    pages = [queries["A one."] + queries["A two."], queries["B one."] + queries["B two."]]
    assert set(pages) <= {83, 84}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": []}, r"`tasks` must be one or several of ict, bfs, .*\. Received: none"),
        ({"tasks": ["icd"]}, r"`tasks` must be of ict, bfs, wlp, span_crop, .* Received: 'icd'"),
        ({"titles": ["all"]}, r"`titles` must be of ict, .* Received: 'all'"),
        ({"tasks": {"ict": 0}}, r"`tasks\.ict` must be above 0\. Received: 0"),
        ({"tasks": {"ict": float("nan")}}, r"`tasks\.ict` must be above 0\. Received: nan"),
        ({"tasks": {"ict": 1, "bfs": 1e6}}, r"at least 1/1000 of their sum\. Received: ict=1 of"),
        ({"seed": -1}, r"`seed` must be at least 0\. Received: -1"),
        (
            {"tasks": ["ict", "question"]},
            r"must leave out question, .* no pair of it\. Received: 3 pages without a question",
        ),
        ({"tasks": ["span_crop"]}, r"must leave out span_crop, .* 5 passages of too few words"),
    ],
)
def test_impossible_mixtures_are_refused(store, options, message):
    with pytest.raises(ConfigError, match=message):
        PairStream(store, **options)


def test_a_pair_file_is_the_same_from_one_worker_and_from_two(store, tmp_path):
    stream = PairStream(store, seed=1)
    one = write_pair_file(stream, tmp_path / "one.jsonl", limit=4500)
    two = write_pair_file(stream, tmp_path / "two.jsonl", limit=4500, workers=2)
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    assert one == two
    assert sum(row.pairs for row in one.values()) == 4500
    read = read_pairs(tmp_path / "one.jsonl")
    pairs = stream.pairs(0, 4500)
    assert [(pair.query, pair.positive) for pair in read] == [
        (pair.query, pair.positive) for pair in pairs
    ]
    records = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text().splitlines()]
    assert [record["task"] for record in records] == [stream.task(n) for n in range(4500)]


def test_statistics_count_what_they_are_told_to(store, tmp_path):
    stream = PairStream(store, ["ict"])
    # "B one." of "B one. B two.", titles "A" and "B": 2 words and 1 + 2 words a pair.
    expected = {"ict": TaskStatistics(3, 6, 9)}
    assert write_pair_file(stream, tmp_path / "f.jsonl") == expected
    letters = write_pair_file(
        stream, tmp_path / "f.jsonl", count_tokens=lambda texts: [len(text) for text in texts]
    )
    records = [json.loads(line) for line in (tmp_path / "f.jsonl").read_text().splitlines()]
    documents = [record["positive"] for record in records]
    assert letters["ict"].query_tokens == sum(len(record["query"]) for record in records)
    assert letters["ict"].document_tokens == sum(len(d["title"] + d["text"]) for d in documents)
    assert format_statistics({"ict": TaskStatistics(4, 10, 1200)}, "tokens").split("\n") == [
        "task  tokens  pairs  query tokens  document tokens",
        "ict    1,210      4          2.50           300.00",
    ]


@pytest.mark.parametrize(("name", "value"), [("limit", 0), ("workers", 0)])
def test_impossible_counts_are_refused(store, tmp_path, name, value):
    with pytest.raises(ConfigError, match=rf"`{name}` must be at least 1\. Received: 0"):
        write_pair_file(PairStream(store), tmp_path / "f.jsonl", **{name: value})


@pytest.fixture(
    scope="module", params=["peps", pytest.param("wikispeedia", marks=pytest.mark.slow)]
)
def real(request, data_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    # Two pages of wikispeedia have one title; an id tells whose passage a document is.
    pages = [
        page._replace(title=page.page_id)
        for page in read_pages(data_dir / request.param / "pages.jsonl.gz")
    ]
    write_pages(folder / "pages.jsonl", pages)
    return build_store(folder / "pages.jsonl", folder / "store"), pages


def squeezed(text):
    return "".join(text.split())


def rests(whole, part):
    """What is left of a text without one of the occurrences of a part."""
    places = range(len(whole) - len(part) + 1)
    return {
        whole[:place] + whole[place + len(part) :]
        for place in (places if part in whole else ())
        if whole.startswith(part, place)
    }


def passages_of(page):
    return [passage for section in page.sections for passage in section.passages]


def test_every_ict_pair_of_real_pages(real):
    store, pages = real
    stream = PairStream(store, ["ict"])
    total = sum(len(passages_of(page)) for page in pages)
    assert len(stream) + stream.without_pair["ict"]["passages of one sentence"] == total
    by_title = {page.title: [squeezed(p) for p in passages_of(page)] for page in pages}
    seen = Counter()
    for pair in stream.pairs_of(0):
        query, title = squeezed(pair.query.text), pair.positive.title
        document = squeezed(pair.positive.text)
        # Put back where it stood, the sentence makes a passage of the page.
        passage = next(p for p in by_title[title] if document in rests(p, query))
        seen[title, passage] += 1
        # It has left the document, unless the passage says it twice.
        assert query not in document or passage.count(query) > 1
    assert seen == Counter(
        (page.title, squeezed(passage))
        for page in pages
        for passage in passages_of(page)
        if len(split_sentences(passage)) > 1
    )


def test_every_bfs_pair_of_real_pages(real):
    store, pages = real
    stream = PairStream(store, ["bfs"], titles=["bfs"])
    by_title = {page.title: page for page in pages}
    counts = Counter()
    for pair in stream.pairs_of(0):
        page = by_title[pair.positive.title]
        texts = passages_of(page)
        assert pair.positive.text in texts
        own = [p for p in page.sections[0].passages if pair.query.text in p]
        assert own
        assert pair.positive.text not in own or len(own) > 1
        counts[page.title] += 1
    assert counts == {
        page.title: len(passages_of(page)) for page in pages if len(passages_of(page)) > 1
    }


def test_every_wlp_pair_of_real_pages(real):
    store, pages = real
    stream = PairStream(store, ["wlp"], titles=["wlp"])
    by_title = {page.title: page for page in pages}
    asked = {}
    for page in pages:
        for passage in page.sections[0].passages:
            for start, stop in split_sentences(passage):
                asked.setdefault(passage[start:stop], set()).add(page.page_id)
    linked = {link for page in pages for link in page.links if link != page.page_id}
    assert len(stream) == sum(len(passages_of(p)) for p in pages if p.page_id in linked)
    for pair in stream.pairs_of(0):
        linking = by_title[pair.positive.title]
        assert pair.positive.text in passages_of(linking)
        # A page that this sentence opens is linked from the page of the document.
        assert asked[pair.query.text] & set(linking.links) - {linking.page_id}


def test_every_span_and_question_of_real_pages(real):
    store, pages = real
    spans = PairStream(store, ["span_crop"])
    assert len(spans) == sum(
        len(passage.split()) >= MIN_CROP_WORDS for page in pages for passage in passages_of(page)
    )
    assert all(pair.query.text and pair.positive.text for pair in spans.pairs(0, 10_000))
    questions = PairStream(store, ["question"])
    expected = Counter(
        (section.heading, " ".join(section.passages))
        for page in pages
        for section in page.sections
        if section.heading.endswith("?")
    )
    assert expected == Counter(
        (pair.query.text, pair.positive.text) for pair in questions.pairs_of(0)
    )
    assert len(questions) > 100


def test_each_sentence_of_real_passages_is_drawn_as_often(real, tmp_path):
    pages = [page._replace(links=()) for page in real[1][:3]]
    write_pages(tmp_path / "pages.jsonl", pages)
    stream = PairStream(build_store(tmp_path / "pages.jsonl", tmp_path / "store"), ["ict"])
    epochs = 120
    drawn = Counter(pair.query.text for e in range(epochs) for pair in stream.pairs_of(e))
    statistic = degrees = 0
    for page in pages:
        for passage in passages_of(page):
            sentences = [passage[a:b] for a, b in split_sentences(passage)]
            counts = [drawn[sentence] for sentence in sentences]
            if len(sentences) > 1 and sum(counts) == epochs:  # no sentence stands elsewhere too
                statistic += stats.chisquare(counts).statistic
                degrees += len(sentences) - 1
    assert degrees > 50
    assert 0.001 < stats.chi2.sf(statistic, degrees) < 0.999


def test_each_linking_page_is_drawn_as_often(tmp_path):
    def page(name, *links):
        return Page(
            name, name, (Section("", (f"{name} one. {name} two.", f"{name} three.")),), links
        )

    pages = [page("t"), *(page(name, "t") for name in "abcde"), page("f")]
    write_pages(tmp_path / "pages.jsonl", pages)
    stream = PairStream(build_store(tmp_path / "pages.jsonl", tmp_path / "store"), ["wlp"])
    counts = Counter((p.query.text, p.positive.text) for p in stream.pairs(0, 3000))
    expected = {
        (query, document)
        for query in ("t one.", "t two.", "t three.")
        for name in "abcde"
        for document in (f"{name} one. {name} two.", f"{name} three.")
    }
    assert set(counts) == expected
    assert stats.chisquare(list(counts.values())).pvalue > 0.001
