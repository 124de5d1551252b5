"""A candidate is a sentence with its passage: `{context}` in templates, wherever documents go."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.backbones.bert import BertTokenEmbedder
from tfde.config.model import TextConfig
from tfde.data.pairs.mixture import PairMixture, PairTurns
from tfde.data.pairs.read_pairs import read_pairs, write_pairs
from tfde.errors import ConfigError
from tfde.export.saved_encoder import SavedEncoder
from tfde.retrieval.bm25_index import Bm25Index
from tfde.text.preprocessor import TextPreprocessor
from tfde.towers.input_failures import told
from tfde.towers.saved_models import DocumentEncoder, save_encoder
from tfde.towers.string_batches import streamed_strings
from tfde.types import Document, Pair, Query

TEMPLATE = "{title} [SEP] {text} [SEP] {context}"
ROWS = [
    {"title": "river", "text": "red apple", "context": "red apple blue hill"},
    {"title": "", "text": "cat", "context": "dog cat bird"},
    {"title": "lake", "text": "sea", "context": ""},
    {"title": "", "text": "", "context": "one"},
]
DOCUMENTS = [
    Document(f"d{n}", row["title"], row["text"], {"context": row["context"]})
    for n, row in enumerate(ROWS)
]


def text_config(template=TEMPLATE):
    return TextConfig(
        query_max_length_tokens=8, document_max_length_tokens=16, document_template=template
    )


@pytest.fixture(scope="module")
def model():
    return tiny.dual_encoder(tiny.BERT, text=text_config(), second_segment=True, embedding_dim=4)


def pairs_with_contexts():
    return [
        Pair(Query(f"q{n}", row["title"] or "one"), document, (), (document.doc_id,))
        for n, (row, document) in enumerate(zip(ROWS, DOCUMENTS, strict=True))
    ]


def test_tokens_are_those_of_the_parts_with_separators_between():
    tokenizer = tiny.tokenizer()
    columns = [tf.constant([row[name] for row in ROWS]) for name in ("title", "text", "context")]
    token_ids, _ = TextPreprocessor(tokenizer, text_config()).documents(*columns)

    def ids(text):
        return tokenizer.tokenize(tf.constant([text]))[0].numpy().tolist()

    for row, found in zip(ROWS, token_ids.numpy().tolist(), strict=True):
        parts = [ids(text) for text in row.values() if text]
        expected = [tokenizer.start_id]
        for part in parts:  # between two parts stands the separator, which is BERT's end too
            expected += [*part, tokenizer.separator_id]
        assert found == expected + [tokenizer.pad_id] * (len(found) - len(expected))


def test_blanks_around_what_is_absent_are_dropped_in_a_plain_template():
    read = TextPreprocessor(tiny.tokenizer(), text_config("{title}: {text} ({context})"))
    plain = TextPreprocessor(tiny.tokenizer(), text_config("{text}"))
    for row, whole in (
        (ROWS[0], "river: red apple (red apple blue hill)"),
        (ROWS[2], "lake: sea ()"),
    ):
        found = read.documents(*(tf.constant([text]) for text in row.values()))
        expected = plain.documents(tf.constant([""]), tf.constant([whole]))
        np.testing.assert_array_equal(found[0], expected[0])


def test_a_template_and_its_columns_must_agree():
    columns = [tf.constant(["a"])] * 3
    with pytest.raises(ConfigError, match=r"`contexts` must be given where the template has \{con"):
        TextPreprocessor(tiny.tokenizer(), text_config()).documents(*columns[:2])
    with pytest.raises(ConfigError, match=r"only there: '\{text\}'"):
        TextPreprocessor(tiny.tokenizer(), text_config("{text}")).documents(*columns)
    with pytest.raises(ConfigError, match=r"perhaps \{title\} and \{context\}, and no other"):
        text_config("{text} {passage}")
    with pytest.raises(ConfigError, match=r"perhaps \{title\}, and no other"):
        tfde.PairTextConfig(document_template="{text} {context}")


def test_what_follows_the_first_separator_has_segment_1():
    sep = 3
    ids = tf.constant([[2, 9, 8, sep, 7, sep, 6, sep, 0, 0], [2, 9, 8, 7, 6, 5, 4, sep, 0, 0]])
    by_hand = [[0, 0, 0, 0, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]]
    options = {"vocabulary_size": 20, "hidden_dim": 4, "seed": 1, "dropout": 0.0}
    told, counts = (
        BertTokenEmbedder(**options),
        BertTokenEmbedder(**options, separator_id=sep),
    )
    expected = told(ids, tf.constant(by_hand))
    np.testing.assert_allclose(counts(ids), expected, atol=1e-5)
    assert np.abs(told(ids) - expected)[0, 4:].max() > 0.01
    # A pair says its segments itself.
    np.testing.assert_allclose(counts(ids, tf.zeros_like(ids)), told(ids), atol=1e-5)
    again = BertTokenEmbedder.from_config(counts.get_config())
    assert again.separator_id == sep


def test_segments_are_kept_by_a_saved_model_and_change_no_query(model, tmp_path):
    model.save_to_preset(tmp_path / "model")
    again = tfde.DualEncoder.from_preset(tmp_path / "model")
    assert again.config.backbone.separator_id == tiny.tokenizer().separator_id
    assert again.fingerprint() == model.fingerprint()
    np.testing.assert_array_equal(
        again.encode_documents(DOCUMENTS), model.encode_documents(DOCUMENTS)
    )
    other = tiny.dual_encoder(tiny.BERT, text=text_config(), embedding_dim=4)
    assert "separator_id" not in other.description()["backbone"]  # as in older fingerprints
    queries = ["red apple", "cat"]
    sides = other.encode_queries(queries), model.encode_queries(queries)
    np.testing.assert_allclose(*sides, atol=1e-5)
    found = other.encode_documents(DOCUMENTS) - model.encode_documents(DOCUMENTS)
    assert np.abs(found[0]).max() > 1e-3 > 1e-5 > np.abs(found[3]).max()  # has no separator
    with pytest.raises(ConfigError, match="`second_segment` must be False: bag_of_words"):
        tiny.dual_encoder(second_segment=True)


def test_documents_and_mappings_have_contexts_and_none_may_lack_one(model):
    found = model.encode_documents(DOCUMENTS)
    np.testing.assert_array_equal(found, model.encode_documents(ROWS))
    assert np.abs(found[0] - model.encode_documents({**ROWS[0], "context": "blue"})).max() > 1e-6
    for lacking in (Document("d", "", "red"), {"text": "red"}, "red"):
        with pytest.raises(ConfigError, match=r"`documents` must have a `context`, which the mod"):
            model.encode_documents([lacking])
    with pytest.raises(ConfigError, match=r"`documents` must hold tfde\.Document, strings"):
        model.encode_documents([Document("d", "", "red", {"context": 7})])
    plain = tiny.dual_encoder(tiny.BAG_OF_WORDS)  # reads none, and does not care
    np.testing.assert_array_equal(
        plain.encode_documents([d._replace(metadata=None) for d in DOCUMENTS]),
        plain.encode_documents(DOCUMENTS),
    )


def test_batches_have_contexts_where_all_documents_do(model):
    table = tfde.pairs(pairs_with_contexts(), batch_size=4, shuffle=False)
    batch = table.batch(0)
    assert batch["document_context"].tolist() == [row["context"].encode() for row in ROWS]
    assert batch["negative_context"].shape == (4, 0)
    assert list(batch) == list(table.element_spec)
    prepared = model.prepare_batch(
        {name: tf.constant(value, spec.dtype) for (name, value), spec in zip(
            batch.items(), table.element_spec.values(), strict=True)}
    )  # fmt: skip
    expected, _ = model.preprocessor.documents(
        *(tf.constant([row[name] for row in ROWS]) for name in ("title", "text", "context"))
    )
    np.testing.assert_array_equal(prepared["document_token_ids"], expected)
    lacking = [pair._replace(positive=Document("x", "", "y")) for pair in pairs_with_contexts()[:1]]
    some = tfde.pairs(pairs_with_contexts()[1:] + lacking, batch_size=4, shuffle=False)
    assert "document_context" not in some.batch(0)
    for parts in ([table, some], [table, table]):
        whole = "document_context" in parts[1].batch(0)
        for mixture in (PairMixture(parts), PairTurns(parts, [1, 1], seed=0)):
            assert list(mixture.batch(0)) == list(mixture.element_spec)
            assert ("document_context" in mixture.batch(0)) is whole
    model.compile(optimizer=keras.optimizers.SGD(0.0))
    with pytest.raises(ConfigError, match=r"pairs must have a `context` for each document"):
        model.fit(some, epochs=1, verbose=0)


def test_columns_and_datasets_of_strings_may_have_contexts():
    model = tiny.dual_encoder(text=text_config())
    model.compile(optimizer=keras.optimizers.SGD(0.0))
    columns = {
        "query": ["one", "two", "three", "four"],
        "document": [row["text"] or "x" for row in ROWS],
        "title": [row["title"] for row in ROWS],
        "context": [row["context"] or "y" for row in ROWS],
    }
    of_columns = model.evaluate(columns, batch_size=4, verbose=0)
    dataset = tf.data.Dataset.from_tensor_slices(columns).batch(4)
    assert model.evaluate(dataset, verbose=0) == pytest.approx(of_columns)
    one, other = (
        model.evaluate({**columns, "context": [text] * 4}, batch_size=4, verbose=0)
        for text in ("red", "blue hill")
    )
    assert one != pytest.approx(other)
    assert len(model.predict(columns, verbose=0)["document_embeddings"]) == 4
    plain = {name: column for name, column in columns.items() if name != "context"}
    for batches in ([columns, plain], [plain, columns]):
        _, streamed = streamed_strings(iter(batches))
        with pytest.raises(ConfigError, match="all have the columns of the first, query"), told():
            list(streamed)


def test_pair_files_hold_contexts(tmp_path):
    write_pairs(tmp_path / "p.jsonl", pairs_with_contexts()[:3])
    found = read_pairs(tmp_path / "p.jsonl")
    assert [pair.positive.context for pair in found] == [row["context"] for row in ROWS[:3]]
    assert found.has_context
    same = {"title": "", "text": "it sank"}
    lines = [
        {"query": f"q{n}", "positive": {**same, "context": context}}
        for n, context in enumerate(["the red ship", "the blue ship"])
    ]
    (tmp_path / "two.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert len(read_pairs(tmp_path / "two.jsonl").documents) == 2  # two candidates, ReQA says


def test_exported_encoders_take_contexts_and_others_do_not(model, tmp_path):
    save_encoder(DocumentEncoder(model.document_tower, model.preprocessor), tmp_path / "d")
    loaded = tf.saved_model.load(str(tmp_path / "d")).signatures["serving_default"]
    assert set(loaded.structured_input_signature[1]) == {"title", "text", "context"}
    columns = {name: tf.constant([row[name] for row in ROWS]) for name in ROWS[0]}
    expected = model.encode_documents(DOCUMENTS)
    np.testing.assert_allclose(loaded(**columns)["embeddings"], expected, atol=1e-6)
    other = tiny.dual_encoder()
    save_encoder(DocumentEncoder(other.document_tower, other.preprocessor), tmp_path / "o")
    loaded = tf.saved_model.load(str(tmp_path / "o")).signatures["serving_default"]
    assert set(loaded.structured_input_signature[1]) == {"title", "text"}


def test_a_saved_model_of_question_and_answer_reads_the_passage(tmp_path):
    strings = tf.TensorSpec([None], tf.string)
    module = tf.Module()

    def numbers(texts):
        return tf.cast(tf.strings.to_hash_bucket_fast(texts, 1000), tf.float32)

    @tf.function(input_signature=[strings])
    def question(text):
        return {"outputs": tf.stack([numbers(text)] * 2, 1)}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="input"),
            tf.TensorSpec([None], tf.string, name="context"),
        ]
    )
    def response(text, context):
        return {"outputs": tf.stack([numbers(text), numbers(context)], 1)}

    signatures = {"question_encoder": question, "response_encoder": response}
    tf.saved_model.save(module, str(tmp_path / "use_qa"), signatures)
    encoder = SavedEncoder(tmp_path / "use_qa")
    documents = [DOCUMENTS[0], Document("d", "river", "cat"), Document("d", "", "cat")]
    found = encoder.encode_documents(documents)
    expected = numbers(tf.constant(["red apple blue hill", "river", "cat"]))
    np.testing.assert_array_equal(found[:, 1], expected)
    bundle = SavedEncoder(tfde.export_bundle(encoder, None, tmp_path / "bundle"))
    np.testing.assert_array_equal(bundle.encode_documents(documents), found)


def test_bm25_indexes_what_it_is_told():
    corpus = [Document("a", "ship", "it sank", {"context": "red boat it sank"})]
    corpus.append(Document("b", "ship", "nobody saw", {"context": "blue boat"}))

    def found(query, **options):
        return [
            [d for d, _ in row] for row in Bm25Index.build(corpus, **options).search([query], 9)
        ]

    assert found("red") == [[]]
    assert found("red", fields=("text", "context")) == [["a"]]
    assert sorted(found("ship")[0]) == ["a", "b"]
    assert found("ship", fields=("text",)) == [[]]
    with pytest.raises(ConfigError, match=r"`documents` must have texts as text and context\."):
        Bm25Index.build([Document("a", "", "red")], fields=("text", "context"))
    for odd in ((), ("passage",), "text"):
        with pytest.raises(ConfigError, match=r"`fields` must be some of title, text, context"):
            Bm25Index.build(corpus, fields=odd)


def test_transformers_has_no_model_with_a_second_segment(model, tmp_path):
    with pytest.raises(ConfigError, match=r"`separator_id` must be None: transformers' models"):
        tfde.export_sentence_transformers(model, tmp_path / "st")
    assert not (tmp_path / "st").exists()
