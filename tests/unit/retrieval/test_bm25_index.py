import math

import pytest

from tfde.data.dataset_directory import DatasetDirectory
from tfde.errors import ConfigError, DataError
from tfde.retrieval.bm25_index import Bm25Index
from tfde.types import Document

CORPUS = [
    Document("a", "Cats", "cats chase the mice"),
    Document("b", "", "dogs chase cats and cars"),
    Document("c", "", "running in the rain"),
]


def test_scores_are_those_of_the_formula():
    # Stems after stop words: a = cat cat chase mice, b = dog chase cat car, c = run rain.
    lengths, average = {"a": 4, "b": 4, "c": 2}, 10 / 3
    k1, b = 0.9, 0.4

    def score(doc_id, frequency, documents_with):
        idf = math.log(1 + (3 - documents_with + 0.5) / (documents_with + 0.5))
        norm = k1 * (1 - b + b * lengths[doc_id] / average)
        return idf * frequency / (frequency + norm)

    (results,) = Bm25Index.build(CORPUS).search(["the cat runs"], 10)
    expected = {"a": score("a", 2, 2), "b": score("b", 1, 2), "c": score("c", 1, 1)}
    assert [doc_id for doc_id, _ in results] == sorted(expected, key=expected.get, reverse=True)
    assert dict(results) == pytest.approx(expected, rel=1e-5)


def test_title_counts_and_k_cuts():
    index = Bm25Index.build(CORPUS)
    assert [doc_id for doc_id, _ in index.search(["cat"], 1)[0]] == ["a"]
    assert [doc_id for doc_id, _ in index.search(["chase"], 99)[0]] == ["a", "b"]  # a tie


def test_no_shared_word_no_result():
    index = Bm25Index.build(CORPUS)
    assert index.search(["zebra", "", "the"], 5) == [[], [], []]


def test_language_none_neither_stems_nor_drops():
    index = Bm25Index.build(CORPUS, language=None)
    assert index.search(["run"], 5) == [[]]
    assert [doc_id for doc_id, _ in index.search(["the"], 5)[0]] == ["c", "a"]


def test_other_languages():
    corpus = [Document("1", "", "die Häuser der Stadt"), Document("2", "", "ein Baum im Wald")]
    index = Bm25Index.build(corpus, language="german")
    assert [doc_id for doc_id, _ in index.search(["das Haus"], 5)[0]] == ["1"]
    finnish = Bm25Index.build([Document("1", "", "talossa")], language="finnish")
    assert [doc_id for doc_id, _ in finnish.search(["talo"], 5)[0]] == ["1"]


def test_documents_without_words():
    index = Bm25Index.build([Document("1", "", "!"), Document("2", "", "words here")])
    assert [doc_id for doc_id, _ in index.search(["word"], 5)[0]] == ["2"]


def test_bad_input_is_named():
    with pytest.raises(ConfigError, match="must hold at least one document"):
        Bm25Index.build([])
    with pytest.raises(ConfigError, match=r"`k1` must be at least 0\. Received: -1"):
        Bm25Index.build(CORPUS, k1=-1)
    with pytest.raises(ConfigError, match=r"`b` must be in \[0, 1\]\. Received: 2"):
        Bm25Index.build(CORPUS, b=2)
    with pytest.raises(ConfigError, match=r"`language` must be None or one of .*'klingon'"):
        Bm25Index.build(CORPUS, language="klingon")
    with pytest.raises(DataError, match="unique"):
        Bm25Index.build([CORPUS[0], CORPUS[0]])
    with pytest.raises(ConfigError, match=r"`k` must be at least 1\. Received: 0"):
        Bm25Index.build(CORPUS).search(["cat"], 0)


def test_one_query_alone_and_what_is_none():
    index = Bm25Index.build(CORPUS)
    assert index.search("cat", 2) == index.search(["cat"], 2)[0]
    assert index.search(iter(["cat", "dog"]), 2) == index.search(["cat", "dog"], 2)
    for wrong in (None, ["cat", None], [b"cat"], 7):
        with pytest.raises((ConfigError, TypeError), match=r"`texts` must be a text or"):
            index.search(wrong, 2)


@pytest.mark.parametrize("text", ["? !", "x y z", "the and of"])
def test_a_corpus_without_words_is_refused(text):
    with pytest.raises(ConfigError, match=r"must hold a word of two letters.*none in 1 documents"):
        Bm25Index.build([Document("1", "", text)])


SCRIPTS = {
    "zh1": "北京是中华人民共和国的首都。",
    "zh2": "上海是一个港口城市。",
    "zh3": "猫喜欢吃鱼。",
    "ja": "東京は日本の首都です。データベースの検索",
    "th": "กรุงเทพเป็นเมืองหลวงของประเทศไทย",
    "lo": "ວຽງຈັນເປັນນະຄອນຫຼວງຂອງປະເທດລາວ",
    "km": "ភ្នំពេញជារាជធានីនៃប្រទេសកម្ពុជា",
    "hi": "दिल्ली भारत की राजधानी है",
    "bn": "ঢাকা বাংলাদেশের রাজধানী",
    "ta": "சென்னை தமிழ்நாட்டின் தலைநகரம்",
    "he": "שָׁלוֹם עוֹלָם",
    "ar": "مَدرَسة كبيرة",
    "tr": "İzmir Ege kıyısında",
    "ko": "서울은 대한민국의 수도이다",
    "de": "Straße und Fluß",
    "latin": "naïve café C++ and C# .NET",
    "dots": "don't can't 3.14 U.S.A. e-mail",
}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("中国首都", ["zh1", "ja"]),  # both hold 首都; only one has 中 and 国, too
        ("港口", ["zh2"]),
        ("猫", ["zh3"]),
        ("日本", ["ja"]),
        ("ﾃﾞｰﾀﾍﾞｰｽ", ["ja"]),  # half width
        ("เมืองหลวง", ["th"]),
        ("ນະຄອນຫຼວງ", ["lo"]),
        ("រាជធានី", ["km"]),
        ("대한민국의", ["ko"]),
        ("दिल्ली", ["hi"]),  # words with vowel signs are whole, and no others share a letter of them
        ("राजा", []),
        ("রাজধানী", ["bn"]),
        ("தமிழ்நாட்டின்", ["ta"]),
        ("שלום", ["he"]),  # points and short vowels may be left out
        ("مدرسة", ["ar"]),
        ("izmir", ["tr"]),
        ("İZMİR", ["tr"]),
        ("STRASSE", ["de"]),
        ("C++", ["latin"]),
        ("c#", ["latin"]),
        ("cafe", ["latin"]),
        ("CAFÉ", ["latin"]),
        ("cafe\u0301", ["latin"]),
        ("USA", ["dots"]),
        ("U.S.A", ["dots"]),
    ],
)
def test_words_of_every_script(query, found):
    index = Bm25Index.build(Document(name, "", text) for name, text in SCRIPTS.items())
    assert [doc_id for doc_id, _ in index.search([query], 3)[0]] == found


def test_accents_are_kept_for_the_stemmers_that_know_them():
    index = Bm25Index.build([Document("d", "", "Häuser am Fluß")], language="german")
    assert all(index.search(["Haus", "HÄUSER", "fluss"], 1))


def test_queries_without_a_known_word_are_told(caplog):
    index = Bm25Index.build([Document("d", "", "bread and wine")])
    index.search(["bread", "хлеб"], 1)
    assert "no word" not in caplog.text
    index.search(["bread", "хлеб", "вино"], 1)
    assert "2 of 3 queries have no word that a document has" in caplog.text


def test_hindi_is_found_as_by_bm25s_alone(data_dir):
    """bm25s with words of letters and marks, which is no code of ours."""
    import bm25s
    import regex
    import Stemmer

    dataset = DatasetDirectory(data_dir / "xquad_multi")
    documents = [d for d in dataset.documents() if d.doc_id.startswith("hi")]
    queries = [q for q in dataset.queries("test") if q.query_id.startswith("hi")][:200]
    word = regex.compile(r"[\w\p{M}]{2,}")
    texts = [[document.text for document in documents], [query.text for query in queries]]
    stem = Stemmer.Stemmer("hindi").stemWords
    corpus, asked = ([stem(word.findall(text.lower())) for text in part] for part in texts)
    theirs = bm25s.BM25(k1=0.9, b=0.4, method="lucene")
    theirs.index(corpus, show_progress=False)
    index = Bm25Index.build(documents, language="hindi")
    found = index.search([query.text for query in queries], 1)
    best = [documents[int(theirs.get_scores(words).argmax())].doc_id for words in asked]
    same = [row[0][0] == doc_id for row, doc_id in zip(found, best, strict=True)]
    assert sum(same) >= 0.98 * len(same)  # Latin words in the texts are cut otherwise
