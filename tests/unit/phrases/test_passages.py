"""Tokens know their characters in the raw text; answers are found at them."""

import itertools
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
import tiny
from missing import missing

from tfde.config.model import TextConfig
from tfde.config.phrases import TEXT_ALONE, WITH_TITLE
from tfde.data.formats.squad import read_squad
from tfde.errors import ConfigError
from tfde.phrases.passages import PassageReader, answer_places
from tfde.text.preprocessor import TextPreprocessor
from tfde.text.read_tokenizer import read_tokenizer
from tfde.text.sentence_piece.train import train_sentencepiece
from tfde.text.word_piece.tokenizer import WordPieceTokenizer
from tfde.types import Document

ODD = [
    "",
    "   ",
    "Red  apple,\u00a0plum!",
    "Rédäpple cafe\u0301 dog",
    "ﬁsh ①two 中文cat İx",
    "\ufeffred\u200b green\u00adblue 🐈 cat",
    "[SEP] red [MASK] [red]",
    "x" * 101 + " cat",
    "line\nbreak\tand\rmore cat",
]


def passages(texts, *, limit=64, titles=True, tokenizer=None):
    template = WITH_TITLE if titles else TEXT_ALONE
    text = TextConfig(8, limit, template)
    preprocessor = TextPreprocessor(tokenizer or tiny.tokenizer(), text)
    documents = [Document(str(n), *text) for n, text in enumerate(texts)]
    return preprocessor, PassageReader(preprocessor).read(documents)


def check_ids(preprocessor, read):
    """The ids are those that the graph gives to the same documents."""
    for start in range(0, len(read), 32):
        part = read[start : start + 32]
        titles = tf.constant([passage.document.title for passage in part], tf.string)
        texts = tf.constant([passage.document.text for passage in part], tf.string)
        ids, mask = preprocessor.documents(titles, texts)
        for row, counts, passage in zip(ids.numpy(), mask.numpy(), part, strict=True):
            np.testing.assert_array_equal(row[counts > 0], passage.token_ids)


def check_offsets(tokenizer, read):
    """What stands at a token's characters is the token, after BERT's own rules by `unicodedata`."""
    checked = 0
    for passage in read:
        ids = passage.token_ids[passage.first : passage.first + len(passage.spans)]
        for token_id, (start, end) in zip(ids, passage.spans, strict=True):
            token = tokenizer.id_to_token(int(token_id)).removeprefix("##")
            raw = passage.document.text[start:end]
            lower = unicodedata.normalize("NFD", raw.lower())
            plain = "".join(
                c for c in lower if unicodedata.category(c) not in ("Mn", "Cf", "Cc", "Co")
            )
            if token not in ("[UNK]", "[SEP]", "[MASK]"):
                assert plain == token, (passage.document.text, raw, token)
                checked += 1
        assert passage.cut >= 0
        for (_, end), (start, _) in itertools.pairwise(passage.spans):
            assert end <= start
    return checked


@pytest.mark.parametrize("titles", [True, False])
@pytest.mark.parametrize("limit", [3, 4, 6, 64])
def test_odd_texts_have_the_graphs_ids(titles, limit):
    texts = [(title, text) for text in ODD for title in ("", "red", "one two three four")]
    check_ids(*passages(texts, limit=limit, titles=titles))


def test_odd_texts_have_right_offsets():
    _, read = passages([("", text) for text in ODD])
    assert check_offsets(tiny.tokenizer(), read) > 40
    assert [len(passage.spans) for passage in read[:2]] == [0, 0]
    marked = read[6]
    spelled = [marked.document.text[start:end] for start, end in marked.spans[:3]]
    assert spelled == ["[SEP]", "red", "[MASK]"]


@pytest.mark.peers
def test_real_paragraphs(data_dir, minilm):
    """SQuAD's paragraphs with MiniLM's vocabulary: the ids of the graph, and the right places."""
    file = data_dir / "squad" / "dev-v1.1.squad.json.gz"
    if not file.is_file():
        missing(f"{file} is not there")
    documents = [paragraph.document for paragraph in read_squad(file)][::20]
    texts = [(document.title, document.text) for document in documents]
    tokenizer = WordPieceTokenizer.from_hugging_face(minilm)
    preprocessor, read = passages(texts, limit=192, tokenizer=tokenizer)
    check_ids(preprocessor, read)
    assert check_offsets(tokenizer, read) > 10_000
    assert any(passage.cut for passage in read)


def test_sentence_piece_has_no_blanks_in_its_tokens(tmp_path):
    texts = tiny.document_texts()[:200]
    tokenizer = read_tokenizer(
        train_sentencepiece(texts, tmp_path / "words.model", vocabulary_size=50)
    )
    preprocessor, read = passages(
        [("red", text) for text in (*ODD, "red  apple\ndog")], tokenizer=tokenizer
    )
    check_ids(preprocessor, read)
    passage = read[-1]
    spelled = [passage.document.text[start:end] for start, end in passage.spans]
    assert [token for token in spelled if token != token.strip() or not token] == []
    assert {*"".join(spelled)} == {*"redappledog"}
    (span,) = answer_places(passage, ["apple"], max_tokens=9).spans
    assert passage.document.text[passage.spans[span[0], 0] : passage.spans[span[1], 1]] == "apple"


def test_a_cut_passage_says_so():
    _, (passage,) = passages([("red", "green blue yellow black white")], limit=7)
    # start, title, separator, three of the text's five tokens, end
    assert (passage.first, len(passage.spans), passage.cut) == (3, 3, 2)
    assert passage.document.text[: passage.end] == "green blue yellow"


TEXT = "Red pear, party art; ART the pear tree. Red"


@pytest.mark.parametrize(
    ("answers", "limit", "found", "texts"),
    [
        (["art"], 64, True, {"art"}),  # not the one inside of "party"
        (["arty"], 64, True, {"arty"}),  # only inside
        (["pear"], 64, True, {"pear"}),
        (["pear, part"], 64, True, {"pear, part"}),
        (["violet", " ", ""], 64, False, set()),
        (["violet", "tree"], 64, True, {"tree"}),
        (["tree"], 6, True, set()),  # cut off
        (["Red pear, party art; ART the"], 64, True, set()),  # too long
        (["Red"], 6, True, {"Red"}),  # the second one is cut off
    ],
)
def test_answers(answers, limit, found, texts):
    _, (passage,) = passages([("", TEXT)], limit=limit)
    places = answer_places(passage, answers, max_tokens=7)
    shown = {
        passage.document.text[passage.spans[first, 0] : passage.spans[last, 1]]
        for first, last in places.spans
    }
    assert places.found == found
    assert shown <= texts
    assert bool(shown) == bool(texts)


def test_several_occurrences_count():
    _, (passage,) = passages([("", TEXT)])
    assert len(answer_places(passage, ["pear", "Red"], max_tokens=3).spans) == 4


def test_an_empty_passage_has_no_answer():
    _, (passage,) = passages([("red", "")])
    assert answer_places(passage, ["red"], max_tokens=3) == ((), False)


@pytest.mark.parametrize(
    "options", [{"document_template": "{text} {title}"}, {"document_prompt": "p: "}]
)
def test_templates_without_known_places(options):
    with pytest.raises(ConfigError, match=r"`document_template` must be '\{text\}' or"):
        PassageReader(TextPreprocessor(tiny.tokenizer(), TextConfig(**options)))
