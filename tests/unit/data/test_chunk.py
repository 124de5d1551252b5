"""Long documents as passages: nothing lost, nothing too long, boundaries that a reader sees."""

import json
from pathlib import Path

import pytest
import tiny
import tokenizers

from tfde.config.model import TextConfig
from tfde.data import chunk
from tfde.data.chunk import chunk_dataset, chunk_documents
from tfde.data.dataset_directory import DatasetDirectory
from tfde.errors import ConfigError
from tfde.text.byte_pair.tokenizer import BytePairTokenizer
from tfde.text.preprocessor import TextPreprocessor
from tfde.types import Document


@pytest.fixture(scope="module")
def preprocessor():
    return tiny.dual_encoder().preprocessor  # 16 tokens, two of them special


def chunks(preprocessor, text, title="", **options):
    passages = chunk_documents([Document("d", title, text)], preprocessor, **options)
    return [passage.text for passage in passages]


def lengths(preprocessor, passages):
    titles, texts = [p.title for p in passages], [p.text for p in passages]
    *_, found = preprocessor.measured_documents(titles, texts)
    return found.numpy()


def test_boundaries(preprocessor):
    text = (
        "# red\n\nOne cat. Two dog.\n\n# blue\n\nThree fish lake hill. Four bird tree road."
        " Five horse sea."
    )
    assert chunks(preprocessor, text) == [
        "# red\n\nOne cat. Two dog.",
        "# blue\n\nThree fish lake hill. Four bird tree road.",
        "# blue\n\nFive horse sea.",
    ]


def test_headings(preprocessor):
    assert chunks(preprocessor, "## red\n## blue\ncat\n#no heading") == [
        "## red",
        "## blue\n\ncat\n#no heading",
    ]
    fenced = "cat\n```\n# red\ndog\n```\n"
    assert chunks(preprocessor, f"{fenced}## blue\ncat") == [fenced.strip(), "## blue\n\ncat"]
    long = "# " + " ".join(tiny.WORDS[:10])
    assert chunks(preprocessor, f"cat\n{long}\ndog") == ["cat", f"{long}\ndog"]


def test_ids_titles_and_what_is_short(preprocessor):
    long = " ".join(tiny.WORDS[:20])
    documents = [
        Document("1.5", "red", long),
        Document("b", "blue", "cat"),
        Document("c", "empty", " \n"),
    ]
    passages = list(chunk_documents(documents, preprocessor, separator="#"))
    assert [p.doc_id for p in passages] == ["1.5#0", "1.5#1", "b#0", "c#0"]
    assert [p.title for p in passages] == ["red", "red", "blue", "empty"]
    assert passages[2].text == "cat"
    # The title takes 1 of 14 tokens.
    assert passages[0].text.split() == tiny.WORDS[:13]
    assert passages[1].text.split() == tiny.WORDS[13:20]


def test_overlap(preprocessor):
    words = tiny.WORDS[:30]
    first, second, *_ = chunks(preprocessor, " ".join(words), overlap_tokens=4)
    assert first.split() == words[:14]
    assert second.split() == words[10:24]


def test_a_title_longer_than_the_model_leaves_room(preprocessor):
    title = " ".join(tiny.WORDS[:30])
    assert chunks(preprocessor, "one two three four five red", title) == [
        "one two three four",
        "five red",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length_tokens": 17}, r"`max_length_tokens` must be in \[8, 16\], the model's."),
        ({"max_length_tokens": 7}, r"Received: 7"),
        ({"overlap_tokens": 9}, r"`overlap_tokens` must be in \[0, 8\], half of the length."),
        (
            {"separator": ""},
            r"a text without white space and digits. Received: ''",
        ),
        ({"separator": "1"}, r"and digits. Received: '1'"),
    ],
)
def test_impossible_options(preprocessor, options, message):
    with pytest.raises(ConfigError, match=message):
        chunks(preprocessor, "red", **options)


@pytest.mark.peers
@pytest.mark.parametrize("name", ["stackexchange_bev", "xquad_multi"])
def test_real_texts_of_many_scripts(minilm, data_dir, name):
    from tfde.towers.checkpoint_rules import load_preprocessor

    preprocessor = load_preprocessor(minilm)
    documents = list(DatasetDirectory(data_dir / name).documents())[:600:3]
    passages = list(chunk_documents(documents, preprocessor, max_length_tokens=128))
    found = {}
    for passage in passages:
        found.setdefault(passage.doc_id.rpartition(".")[0], []).append(passage)
    assert list(found) == [document.doc_id for document in documents]
    for document in documents:
        joined = "".join(passage.text for passage in found[document.doc_id])
        assert "".join(joined.split()) == "".join(document.text.split())
    assert lengths(preprocessor, passages)[:, 0].max() <= 126
    assert len(passages) > 1.5 * len(documents)


def test_a_dataset(tmp_path, preprocessor):
    data = tiny.write_dataset(tmp_path / "data", documents=3)
    lines = (data / "corpus.jsonl").read_text().splitlines()
    record = {**json.loads(lines[1]), "text": " ".join(tiny.WORDS[:20])}
    (data / "corpus.jsonl").write_text("\n".join([lines[0], json.dumps(record), lines[2]]) + "\n")
    (data / "pairs").mkdir()
    (data / "pairs" / "train.jsonl").write_text("{}\n")
    counts = chunk_dataset(data, tmp_path / "out", preprocessor)
    assert counts == (3, 1, 4, ("train",))
    out = DatasetDirectory(tmp_path / "out")
    assert [d.doc_id for d in out.documents()] == ["d0.0", "d1.0", "d1.1", "d2.0"]
    source = DatasetDirectory(data)
    assert list(out.queries()) == list(source.queries())
    assert out.qrels("dev") == source.qrels("dev")
    out.validate(parent_separator=".")
    with pytest.raises(ConfigError, match="the output must not be the dataset that is cut"):
        chunk_dataset(data, data, preprocessor, overwrite=True)


def test_byte_pairs_of_code_and_prose_fit():
    """Whose tokens know the white space before a word, and count indentation."""
    texts = [path.read_text() for path in sorted(Path(chunk.__file__).parent.glob("*.py"))[:8]]
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    trained.pre_tokenizer = byte_level(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=byte_level.alphabet(),
    )
    trained.train_from_iterator(texts, trainer)
    model = json.loads(trained.to_str())["model"]
    tokenizer = BytePairTokenizer(
        sorted(model["vocab"], key=model["vocab"].get),
        merges=[tuple(merge) for merge in model["merges"]],
        special_tokens=["<s>", "</s>", "<pad>"],
        unknown_token="<unk>",
    )
    preprocessor = TextPreprocessor(tokenizer, TextConfig(16, 64, "{title} [SEP] {text}"))
    numbers = " ".join(str(number**3) for number in range(500))
    documents = [Document(str(n), "a title", text) for n, text in enumerate([*texts, numbers])]
    passages = list(chunk_documents(documents, preprocessor))
    cut = lengths(preprocessor, passages)[:, 1]
    assert len(passages) > 200
    assert not cut.any()
