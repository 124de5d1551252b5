"""Writes an archive of matchers of every kind, as `write.py` does of all else, and their scores."""

import json
import sys
import tarfile
import tempfile
from pathlib import Path

import tiny

import tfde

QUERIES = ["red apple", "cat and dog", "the north sea, four miles"]
MATCHERS = {
    "siamese": {},
    "deformer": {},
    "deformer_t5": {},
    "dipair": {"first_tokens": 3, "second_tokens": 4, "top_layers": 1},
    "poly_encoder": {"num_codes": 5},
    "virt_encoder": {},
}


def main() -> None:
    documents = [tfde.Document(f"d{i}", "", text) for i, text in enumerate(tiny.document_texts())]
    pairs = [(query, document) for query in QUERIES for document in documents[:2]]
    answers: dict = {"tfde": tfde.__version__, "texts": QUERIES}
    with tempfile.TemporaryDirectory() as folder:
        for name, options in MATCHERS.items():
            model = tfde.Matcher.from_backbone(
                tiny.T5 if name.endswith("_t5") else tiny.BERT,
                kind=name.removesuffix("_t5"),
                num_labels=3,
                tokenizer=tiny.tokenizer(),
                seed=1,
                **options,
            )
            # A mark that is zero, as it is at first, would hide where it goes.
            for path, weight in model.named_weights().items():
                if path.endswith("marks"):
                    weight.assign([[0.1 * i for i in range(8)], [0.2] * 8])
            model.save_to_preset(Path(folder) / name)
            model.store(documents[:4]).save(Path(folder) / f"{name}_stored")
            answers[name] = {
                "fingerprint": model.fingerprint(), "scores": model.score(pairs).tolist()
            }  # fmt: skip
        (Path(folder) / "answers.json").write_text(json.dumps(answers) + "\n")
        with tarfile.open(sys.argv[1], "w:xz") as file:
            for place in sorted(Path(folder).iterdir()):
                file.add(place, place.name)


if __name__ == "__main__":
    main()
