"""Small checkpoints of other libraries, with random weights and vocabularies of real text.

Imported only where torch and transformers are: by the tests marked `peers`.
"""

import gzip
import io
import json
import random
from pathlib import Path

from tfde.text.sentence_piece.model import parse_model

SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 40, "max_position_embeddings": 66}


def real_texts(data_dir: Path, count: int, *, seed: int = 3) -> list[str]:
    """Traps, then sentences, paragraphs in eleven languages and joined paragraphs, in equal parts.

    The joined ones are longer than any limit used here.
    """
    traps = [
        "",
        " ",
        "?",
        "wait… ﬁne ﬂow ½ ② ™",
        "İstanbul and CRÈME BRÛLÉE",
        "日本語。 中文，标点",
    ]
    traps += ["👩‍👩‍👧‍👦 family", "tab\tand\nnewline  two blanks ", "a\u00a0b\u200bc e\u0301"]
    rng = random.Random(seed)
    third = (count - len(traps)) // 3
    sentences = corpus(data_dir / "squad_sent", rng, third)
    paragraphs = corpus(data_dir / "xquad_multi", rng, third)
    rest = count - len(traps) - 2 * third
    english = corpus(data_dir / "squad", rng, 2 * rest)
    joined = [" ".join(english[i : i + 2]) for i in range(0, 2 * rest, 2)]
    return [*traps, *sentences, *paragraphs, *joined]


def corpus(directory: Path, rng: random.Random, count: int) -> list[str]:
    """A sample of the texts of a dataset directory."""
    with gzip.open(directory / "corpus.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = file.readlines()
    return [json.loads(line)["text"] for line in rng.sample(lines, count)]


def word_piece(directory: Path, texts: list[str], *, mpnet: bool = False) -> None:
    """Writes the tokenizer of a BERT, or of an MPNet, trained on the texts."""
    import tokenizers
    import transformers

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if mpnet:
        special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    trainer = tokenizers.BertWordPieceTokenizer(lowercase=True)
    trainer.train_from_iterator(texts, vocab_size=2000, special_tokens=special, show_progress=False)
    cls = transformers.MPNetTokenizer if mpnet else transformers.BertTokenizer
    cls(vocab=trainer.get_vocab()).save_pretrained(directory)


def byte_pair(directory: Path, texts: list[str]) -> None:
    """Writes the tokenizer of a RoBERTa, trained on the texts."""
    import tokenizers
    import transformers

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = tokenizers.ByteLevelBPETokenizer()
    trainer.train_from_iterator(texts, vocab_size=2000, special_tokens=special, show_progress=False)
    trainer.save_model(str(directory))
    vocabulary, merges = (str(directory / name) for name in ("vocab.json", "merges.txt"))
    transformers.RobertaTokenizer(vocab=vocabulary, merges=merges).save_pretrained(directory)


def sentence_piece(directory: Path, texts: list[str], *, xlm: bool = False) -> None:
    """Writes the tokenizer of a T5, or of an XLM-RoBERTa, trained on the texts."""
    import sentencepiece
    import transformers

    model = io.BytesIO()
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    if xlm:
        ids = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(text for text in texts if text.strip()),
        model_writer=model,
        vocab_size=1500,
        character_coverage=0.995,
        model_type="unigram",
        minloglevel=2,
        **ids,
    )
    directory.mkdir(parents=True, exist_ok=True)
    # transformers' own reader of the file wants another protobuf than TensorFlow.
    proto = parse_model(model.getvalue())
    vocabulary = [(piece.piece, piece.score) for piece in proto.pieces]
    options = {"_spm_precompiled_charsmap": proto.normalizer_spec.precompiled_charsmap}
    if xlm:
        special = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
        vocabulary = [*special, *vocabulary[3:], ("<mask>", 0.0)]
        tokenizer = transformers.XLMRobertaTokenizer(vocab=vocabulary, **options)
    else:
        tokenizer = transformers.T5Tokenizer(vocab=vocabulary, **options)
    tokenizer.save_pretrained(directory)


def randomize(model, *, seed: int = 2):
    """Moves every weight off its initial value: zeros and ones would hide a swapped array."""
    import torch

    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape))
    return model.eval()


def write_transformer(
    directory: Path, kind: str, texts: list[str], *, tokenizer: Path | None = None, seed: int = 2
) -> None:
    """Writes a small random model of a kind with its tokenizer, as `transformers` saves them.

    Args:
        directory: Where.
        kind: bert, distilbert, roberta, xlm-roberta, mpnet, t5-1.0 or t5-1.1.
        texts: What the vocabulary is made of.
        tokenizer: A directory whose tokenizer is taken instead.
        seed: Seed of the weights.
    """
    import transformers

    directory.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        transformers.AutoTokenizer.from_pretrained(tokenizer).save_pretrained(directory)
    elif kind in ("bert", "distilbert", "mpnet"):
        word_piece(directory, texts, mpnet=kind == "mpnet")
    elif kind == "roberta":
        byte_pair(directory, texts)
    else:
        sentence_piece(directory, texts, xlm=kind == "xlm-roberta")
    size = len(transformers.AutoTokenizer.from_pretrained(directory))
    shifted = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    match kind:
        case "bert":
            model = transformers.BertModel(transformers.BertConfig(vocab_size=size, **SIZES))
        case "distilbert":
            config = transformers.DistilBertConfig(
                vocab_size=size, dim=24, n_layers=2, n_heads=3, hidden_dim=40,
                max_position_embeddings=66,
            )  # fmt: skip
            model = transformers.DistilBertModel(config)
        case "roberta" | "xlm-roberta":
            name = "XLMRoberta" if kind == "xlm-roberta" else "Roberta"
            config = getattr(transformers, f"{name}Config")(
                vocab_size=size, type_vocab_size=1, **shifted, **SIZES
            )
            model = getattr(transformers, f"{name}Model")(config)
        case "mpnet":
            config = transformers.MPNetConfig(vocab_size=size, **shifted, **SIZES)
            model = transformers.MPNetModel(config)
        case "t5-1.0" | "t5-1.1":
            config = transformers.T5Config(
                vocab_size=size, d_model=24, d_kv=7, d_ff=40, num_layers=2, num_heads=3,
                feed_forward_proj="relu" if kind == "t5-1.0" else "gated-gelu",
            )  # fmt: skip
            model = transformers.T5EncoderModel(config)
    randomize(model, seed=seed).save_pretrained(directory)
