"""Writes an archive of files as users have them, and what they answer, with the tfde of a commit.

git worktree add /tmp/COMMIT COMMIT && cd /tmp/COMMIT
cp OF_AN_INSTALLATION/tfde/protos/*_pb2.py tfde/protos
PYTHONPATH=.:tests python PATH_OF_THIS_FILE PATH/COMMIT.tar.xz
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path

import sentencepiece
import tiny

import tfde

DOCUMENTS = [tfde.Document(f"d{i}", "", text) for i, text in enumerate(tiny.document_texts()[:64])]
IDS = [document.doc_id for document in DOCUMENTS]
QUERIES = ["red apple", "cat and dog", "the north sea, four miles"]
SHARINGS = ("sde", "ade", "ade_ste", "ade_fte", "ade_spl")
MATCHERS = {"siamese": {}, "late_interaction": {"embedding_dim": 6}}


def t5_tokenizer(folder: Path) -> tfde.SentencePieceTokenizer:
    """Without rules of normalisation, which would take 237 KB."""
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(tiny.document_texts()),
        model_prefix=str(folder / "t5"),
        vocab_size=60,
        normalization_rule_name="identity",
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    return tfde.SentencePieceTokenizer((folder / "t5.model").read_bytes())


def presets(output: Path, scratch: Path, answers: dict) -> None:
    """One of each sharing, and one of each backbone beside the bag of words."""
    models = {sharing: tiny.dual_encoder(sharing=sharing, embedding_dim=6) for sharing in SHARINGS}
    models["parts"] = tiny.dual_encoder(
        tiny.BERT,
        sharing=tfde.Sharing(encoder="shared", projection="separate", token_embedder="shared"),
        embedding_dim=8,
        text=tfde.TextConfig(8, 16, query_prompt="query: ", document_prompt="passage: "),
    )
    models["t5"] = tfde.DualEncoder.from_backbone(
        tiny.T5,
        tokenizer=t5_tokenizer(scratch),
        text=tfde.TextConfig(8, 16),
        pooling=("mean", "first"),
        seed=1,
    )
    for name, model in models.items():
        model.save_to_preset(output / name)
        answers[name] = {
            "fingerprint": model.fingerprint(),
            "queries": model.encode_queries(QUERIES).tolist(),
            "documents": model.encode_documents(DOCUMENTS[:3]).tolist(),
        }
    pairs = [(query, document) for query in QUERIES for document in DOCUMENTS[:2]]
    scorers = {"cross_encoder": tfde.CrossEncoder.from_backbone(
        tiny.BERT, tokenizer=tiny.tokenizer(), num_labels=2, labels=("no", "yes"), seed=1
    )}  # fmt: skip
    for kind, options in MATCHERS.items():
        scorers[kind] = tfde.Matcher.from_backbone(
            tiny.BERT, kind=kind, tokenizer=tiny.tokenizer(), seed=1, **options
        )
    for name, scorer in scorers.items():
        scorer.save_to_preset(output / name)
        answers[name] = {
            "fingerprint": scorer.fingerprint(), "scores": scorer.score(pairs).tolist()
        }  # fmt: skip
    late = scorers["late_interaction"]
    stored = late.store(DOCUMENTS[:8], doc_ids=IDS[:8])
    stored.save(output / "stored_texts")
    tfde.MultiVectorIndex.build(stored).save(output / "multi_vector")
    answers["stored_texts"] = late.score_stored([(q, "d3") for q in QUERIES], stored).tolist()


def indexes(output: Path, model: tfde.DualEncoder, answers: dict) -> None:
    """Embeddings of two kinds of numbers, an index of each kind, one that was changed."""
    kept = {}
    for dtype in ("float32", "int8"):
        name = f"embeddings_{dtype}"
        tfde.encode_corpus(model, DOCUMENTS, output / name, dtype=dtype, shard_size=40)
        kept[dtype] = tfde.Embeddings.open(output / name)
        answers[name] = kept[dtype].read().tolist()
    queries = model.encode_queries(QUERIES)
    answers["index_queries"] = queries.tolist()

    def remember(name: str, index: tfde.LiveIndex) -> None:
        scores, doc_ids = index.search(queries, 5)
        answers[name] = {"scores": scores.tolist(), "doc_ids": doc_ids.tolist()}

    exact = tfde.ExactIndex.from_embeddings(kept["float32"])
    exact.save(output / "exact")
    remember("exact", exact)
    from tfde.retrieval.scann_parameters import ScannParameters

    asked = ScannParameters(kind="tree", num_leaves=4, num_leaves_to_search=4, reorder=20)
    scann = tfde.ScannIndex.from_embeddings(kept["float32"], parameters=asked)
    scann.save(output / "scann")
    remember("scann", scann)
    new = [
        tfde.Document(f"n{i}", "a title", text) for i, text in enumerate(["red cat", "blue sea"])
    ]
    vectors = model.encode_documents(new)
    for name, index in (("exact", exact), ("scann", scann)):
        for form in ("live", "compacted"):
            place = output / f"{form}_{name}"
            index.save(place)
            with tfde.LiveIndex.open(place, write=True) as live:
                live.add(new[:1], vectors[:1], fingerprint=model.fingerprint())
                live.delete(IDS[:3])
                if form == "compacted":
                    live.compact()
                live.add(new[1:], vectors[1:], fingerprint=model.fingerprint())
                live.delete([IDS[40]])
                remember(f"{form}_{name}", live)


def main() -> None:
    archive = Path(sys.argv[1])
    answers: dict = {"tfde": tfde.__version__, "texts": QUERIES}
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as folder:
        output = Path(folder)
        presets(output, Path(scratch), answers)
        indexes(output, tfde.DualEncoder.from_preset(output / "ade_ste"), answers)
        model = tfde.DualEncoder.from_preset(output / "t5")  # the smallest SavedModels
        tfde.export_bundle(
            model,
            tfde.ExactIndex.build(
                model.encode_documents(DOCUMENTS), IDS, fingerprint=model.fingerprint()
            ),
            output / "bundle",
            documents=DOCUMENTS,
            golden_queries=QUERIES,
            scann=False,
        )
        (output / "answers.json").write_text(json.dumps(answers) + "\n")
        with tarfile.open(archive, "w:xz") as file:
            for place in sorted(output.iterdir()):
                file.add(place, place.name)


if __name__ == "__main__":
    main()
