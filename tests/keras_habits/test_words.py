"""The words of sentence-transformers, and what NumPy, pandas and Keras users hold texts in."""

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import tiny

import tfde
from tfde.errors import ConfigError, CorruptError, DataError

WORDS = tiny.WORDS[:5]


@pytest.fixture(scope="module")
def model():
    return tiny.dual_encoder()


@pytest.fixture(scope="module")
def expected(model):
    return model.encode_queries(WORDS)


@pytest.mark.parametrize(
    "texts",
    [
        tuple(WORDS),
        (word for word in WORDS),
        np.array(WORDS),
        np.array(WORDS, object),
        np.array([word.encode() for word in WORDS]),
        pd.Series(WORDS, index=[9, 8, 7, 6, 5]),
        pd.DataFrame({"text": WORDS})["text"],
        tf.constant(WORDS),
        tf.data.Dataset.from_tensor_slices(WORDS),
        tf.data.Dataset.from_tensor_slices(WORDS).batch(2),
        [tfde.Query(f"q{row}", word) for row, word in enumerate(WORDS)],
    ],
    ids=lambda texts: type(texts).__name__,
)
def test_texts_come_in_whatever_holds_them(model, expected, texts):
    embeddings = model.encode_queries(texts)
    np.testing.assert_allclose(embeddings, expected, atol=1e-6)
    assert embeddings.dtype == np.float32
    assert embeddings.flags.c_contiguous


def test_documents_come_so_too(model):
    rows = [{"title": "red", "text": word} for word in WORDS]
    expected = model.encode_documents([tfde.Document("d", "red", word) for word in WORDS])
    np.testing.assert_allclose(
        model.encode_documents(pd.DataFrame(rows).to_dict("records")), expected
    )
    plain = model.encode_documents(WORDS)
    for texts in (pd.Series(WORDS), np.array(WORDS), tf.data.Dataset.from_tensor_slices(WORDS)):
        np.testing.assert_allclose(model.encode_documents(texts), plain, atol=1e-6)


def test_no_text_is_no_row_and_one_is_a_vector(model):
    for nothing in ([], (), np.array([], str), pd.Series([], dtype=str)):
        assert model.encode_queries(nothing).shape == (0, model.embedding_dim)
        assert model.encode_documents(nothing).shape == (0, model.embedding_dim)
    for one in ("red", b"red", np.str_("red"), np.array("red"), tf.constant("red")):
        assert model.encode_queries(one).shape == (model.embedding_dim,)
        assert model.encode_documents(one).shape == (model.embedding_dim,)


@pytest.mark.parametrize(
    "texts",
    [
        None,
        3,
        {"a": "b"},
        {"a", "b"},
        pd.DataFrame({"text": ["a"]}),
        np.array([["a", "b"]]),
        [None],
        ["a", float("nan")],
        [["a", "b"]],
        [b"\xff"],
        tf.data.Dataset.range(3),
        tf.constant([1.0]),
        object,
    ],
    ids=lambda texts: type(texts).__name__,
)
def test_what_is_no_text_is_told_in_one_line(model, texts):
    with pytest.raises(ConfigError, match=r"^`texts` must (be|hold)[^\n]* Received: [^\n]*$"):
        model.encode_queries(texts)
    if not isinstance(texts, dict | pd.DataFrame):  # a document, or a table of documents
        with pytest.raises(ConfigError, match=r"^`documents` must (be|hold)[^\n]*$"):
            model.encode_documents(texts)


def test_encode_query_and_encode_document_with_their_arguments(model, expected):
    found = model.encode_query(
        WORDS,
        prompt_name="query",
        batch_size=2,
        show_progress_bar=False,
        convert_to_numpy=True,
        normalize_embeddings=True,
        truncate_dim=None,
        device=None,
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)
    documents = model.encode_document(WORDS, prompt_name="document", convert_to_tensor=False)
    np.testing.assert_allclose(documents, model.encode_documents(WORDS), atol=1e-6)
    raw = tiny.dual_encoder(normalize=False)
    assert raw.encode_query(WORDS, normalize_embeddings=False).shape == expected.shape


def test_arguments_that_ask_for_something_else_are_told_what_to_write(model):
    for argument, value, rule in (
        ("prompt_name", "document", r"instead: `encode_documents`, or texts"),
        ("prompt", "query: ", r"`from_backbone\(path, text=tfde.TextConfig\(query_prompt"),
        ("truncate_dim", 2, r"`embeddings\[:, :128\]`, divided by their norms"),
        ("convert_to_tensor", True, r"`tf.constant\(embeddings\)`"),
        ("precision", "int8", "`tfde encode --dtype`"),
        ("device", "cuda", "set_visible_devices"),
        ("truncate_dim", np.array([1, 2]), r"Received: truncate_dim=array\(\[1, 2\]\)"),
    ):
        with pytest.raises(ConfigError, match=f"`encode_queries` has no `{argument}`.*{rule}"):
            model.encode_queries(["a"], **{argument: value})
    raw = tiny.dual_encoder(normalize=False)
    with pytest.raises(ConfigError, match=r"instead: `from_backbone\(path, normalize=True\)`"):
        raw.encode_documents(["a"], normalize_embeddings=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        model.encode_queries(["a"], nonsense=1)


def test_other_attributes_say_what_to_write(model):
    for name, rule in (
        ("encode", r"`encode_queries\(texts\)` or `encode_documents\(texts\)`"),
        ("get_sentence_embedding_dimension", "`embedding_dim`"),
        ("max_seq_length", "set_max_lengths"),
        ("tokenizer", "`preprocessor.tokenizer`"),
        ("query_model", "`query_tower`"),
        ("to", "set_visible_devices"),
    ):
        assert not hasattr(model, name)
        with pytest.raises(
            AttributeError, match=f"^DualEncoder has no `{name}`; instead: .*{rule}"
        ):
            getattr(model, name)
    with pytest.raises(AttributeError, match="set_max_lengths"):
        model.max_seq_length = 12  # would be passed over in silence
    with pytest.raises(AttributeError, match="'DualEncoder' object has no attribute 'nonsense'"):
        _ = model.nonsense


def test_similarity_of_what_is_no_embeddings_is_told(model, expected):
    for wrong in (None, WORDS, np.zeros((2, 99), np.float32), np.zeros((1, 1, 6), np.float32)):
        with pytest.raises(ConfigError, match=r"`query_embeddings` must be an array \(N, 6\)"):
            model.similarity(wrong, expected)
        with pytest.raises(ConfigError, match=r"`document_embeddings` must be an array \(N, 6\)"):
            model.similarity(expected, wrong)


def test_predict_gives_what_call_gives(model, expected):
    documents = model.encode_documents(WORDS)
    for texts in (WORDS, np.array(WORDS), tf.data.Dataset.from_tensor_slices(WORDS).batch(2)):
        found = model.predict(texts, verbose=0)
        np.testing.assert_allclose(found["query_embeddings"], expected, atol=1e-6)
        np.testing.assert_allclose(found["document_embeddings"], documents, atol=1e-6)
    pairs = list(zip(WORDS, WORDS[::-1], strict=True))
    frame = pd.DataFrame(pairs, columns=["query", "document"])
    strings = tf.data.Dataset.from_tensor_slices((WORDS, WORDS[::-1]))
    for x in (pairs, frame, strings, strings.batch(3)):
        found = model.predict(x, batch_size=2, verbose=0)
        np.testing.assert_allclose(found["query_embeddings"], expected, atol=1e-6)
        np.testing.assert_allclose(found["document_embeddings"], documents[::-1], atol=1e-6)
    assert len(model.predict(strings.batch(2), steps=1, verbose=0)["query_embeddings"]) == 2
    assert model.predict([])["query_embeddings"].shape == (0, model.embedding_dim)


def test_a_model_called_on_strings_says_what_to_write(model):
    for texts in ("a", ["a"], np.array(["a"]), tf.constant(["a"]), (["a"], ["b"])):
        with pytest.raises(ConfigError, match=r"for texts write `encode_queries\(texts\)` or"):
            model(texts)


def test_a_list_of_pairs_is_no_batch(model):
    with pytest.raises(ConfigError, match=r"`batch` must be one of `tfde\.pairs\(\.\.\.\)"):
        model.prepare_batch([("red", "apple")])
    batch = next(iter(tfde.pairs([("red", "apple")], batch_size=1).dataset()))
    assert model(model.prepare_batch(batch))["query_embeddings"].shape[0] == 1


def test_an_index_takes_one_query_and_tells_texts(model, expected, tmp_path):
    index = tfde.ExactIndex.build(model.encode_documents(WORDS), WORDS)
    scores, doc_ids = index.search(expected, k=3)
    index.save(tmp_path / "index")
    for one in (index, tfde.LiveIndex.open(tmp_path / "index")):
        found, ids = one.search(model.encode_queries(WORDS[0]), k=3)
        np.testing.assert_allclose(found, scores[0], atol=1e-6)
        assert list(ids) == list(doc_ids[0])
        for texts in ("red", ["red"], np.array(["red"])):
            with pytest.raises(ConfigError, match=r"`model.encode_queries\(texts\)` gives them"):
                one.search(texts, k=1)


def test_tables_and_plain_texts_in_the_wrong_place_are_told(model, tmp_path):
    (tmp_path / "qa.csv").write_text("question,answer\na,b\n")
    for table in (tmp_path / "qa.csv", pd.read_csv(tmp_path / "qa.csv")):
        (pair,) = tfde.pairs(table, batch_size=1).table
        assert (pair.query.text, pair.positive.text) == ("a", "b")
    vectors = model.encode_documents(WORDS)
    index = tfde.ExactIndex.build(vectors, WORDS, fingerprint=model.fingerprint())
    with pytest.raises(ConfigError, match=r"`documents` must be tfde.Document. Received: 'red'"):
        tfde.export_bundle(model, index, tmp_path / "bundle", documents=WORDS)
    for kind in (tfde.ExactIndex, tfde.ScannIndex):
        with pytest.raises(
            ConfigError, match=rf"write `{kind.__name__}.build\(embeddings, doc_ids"
        ):
            kind(vectors, WORDS)


def test_labels_of_pairs_are_told(model):
    """Else a label would be a hard negative, or be dropped and the pair be a right one."""
    for rows in ([("a", "b", 0)], [("a", "b", 1.0)], [("a", "b", np.float32(0.5))]):
        with pytest.raises(DataError, match=r"pairs:1: a pair must hold texts: pairs have no lab"):
            tfde.pairs(rows, batch_size=1)
    model.compile("sgd")
    for y in ([1, 0], np.array([1.0, 0.0])):
        with pytest.raises(
            ConfigError, match=r"`y` must be the document of each query: pairs have"
        ):
            model.fit([("a", "b"), ("c", "d")], y)
    (pair,) = tfde.pairs([("a", "b", None)], batch_size=1).table  # no negative
    assert not pair.negatives


def test_words_of_other_libraries_that_load(tmp_path):
    for kind in (tfde.DualEncoder, tfde.CrossEncoder):
        rule = r"from_pretrained` is `from_backbone\(path\)` here.*Received: \('m',\)"
        with pytest.raises(ConfigError, match=rule):
            kind.from_pretrained("m")
        with pytest.raises(CorruptError, match=r"from_backbone reads the checkpoints of other lib"):
            kind.from_preset("bert_tiny_en_uncased")
        (tmp_path / "best_model").mkdir(exist_ok=True)
        for load in (kind.load, kind.from_preset):  # the directory of a run
            with pytest.raises((ConfigError, CorruptError), match=r"did you mean .*/best_model\?"):
                load(tmp_path)


def test_records_are_asked_for_where_ids_are_needed(model):
    index = tfde.ExactIndex.build(model.encode_documents(WORDS), WORDS)
    with pytest.raises(ConfigError, match=r"`queries` must be tfde.Query, with ids. Received: 'a'"):
        tfde.retrieve(model, index, ["a"], 1)
    with pytest.raises(ConfigError, match=r"`documents` must be tfde.Document. Received: 'red'"):
        tfde.Bm25Index.build(WORDS)
    assert tfde.evaluate({"q": {"d": 1.0}}, {"q": {"d": 1}}, "nDCG@10") == {"nDCG@10": 1.0}


def test_a_cross_encoder_predicts_and_ranks():
    scorer = tfde.CrossEncoder.from_backbone(tiny.BERT, tokenizer=tiny.tokenizer(), seed=1)
    pairs = [("red apple", text) for text in WORDS]
    logits = scorer.score(pairs)
    for found in (
        scorer.predict(pairs, verbose=0),
        scorer.predict(pairs, show_progress_bar=False, batch_size=2, activation_fn=None),
        scorer.score(np.array(pairs)),
        scorer.score(zip(["red apple"] * 5, WORDS, strict=True)),
    ):
        np.testing.assert_allclose(found, logits, atol=1e-6)
    best = [int(row) for row in np.argsort(-logits)[:2]]
    ranked = scorer.rank("red apple", WORDS, top_k=2, return_documents=True)
    assert [one["corpus_id"] for one in ranked] == best
    assert [one["text"] for one in ranked] == [WORDS[row] for row in best]
    assert ranked[0]["score"] == pytest.approx(logits.max(), abs=1e-6)
    assert len(scorer.rank("red apple", WORDS)) == 5
    with pytest.raises(ConfigError, match="`predict` has no `apply_softmax`; instead"):
        scorer.predict(pairs, apply_softmax=True)
    with pytest.raises(ConfigError, match=r"for texts write `score\(\[\(first, second\)\]\)`"):
        scorer(["a"])
    with pytest.raises(ConfigError, match="`pairs` must be a list of pairs"):
        scorer.score(None)
    three = tfde.CrossEncoder.from_backbone(
        tiny.BERT, num_labels=3, labels=["no", "yes", "?"], tokenizer=tiny.tokenizer(), seed=1
    )
    ranked = three.rank("red apple", WORDS, label="yes")
    logits = three.score(pairs).astype(np.float64)
    chances = np.exp(logits)[:, 1] / np.exp(logits).sum(1)
    assert [one["corpus_id"] for one in ranked] == np.argsort(-chances).tolist()
    assert ranked[0]["score"] == pytest.approx(np.log(chances.max()), abs=1e-5)
    for label in (None, "maybe"):
        with pytest.raises(ConfigError, match=r"`label` must be one of no, yes, \?, the one that"):
            three.rank("red apple", WORDS, label=label)


def test_documents_come_in_a_frame(model):
    frame = pd.DataFrame({"title": ["red", ""], "text": ["apple", "blue sky"]})
    expected = model.encode_documents([tfde.Document("", "red", "apple"), "blue sky"])
    np.testing.assert_allclose(model.encode_documents(frame), expected, atol=1e-6)
    with pytest.raises(ConfigError, match=r"`documents` must hold .* mappings with a `text`"):
        model.encode_documents(frame[["title"]])


def test_stored_embeddings_are_an_array(model, tmp_path):
    documents = [tfde.Document(f"d{i}", "", text) for i, text in enumerate(["red", "blue sky"])]
    stored = tfde.encode_corpus(model, documents, tmp_path / "e")
    np.testing.assert_array_equal(np.asarray(stored), stored.read())
    assert np.asarray(stored, np.float64).dtype == np.float64
