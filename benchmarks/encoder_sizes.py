"""What a question and a document cost by the size of the encoder; prints JSON.

    python benchmarks/encoder_sizes.py [--dtype bfloat16] [--only BERT]

T5 1.1 encoders of the published sizes and BERT encoders of 1 to 12 layers of 384 dimensions, with
random weights (time does not depend on them) and the vocabulary of all-MiniLM-L6-v2 (TFDE_MINILM).
A question is encoded alone, documents in batches of 64; both are SQuAD's, cut at 64 tokens. A query
of 128 tokens, special ones included, is encoded alone too, as Ni et al. 2021 do (17, 34, 96 and 349
ms from base to XXL, on another machine); `cpu_ms` is its processor time on all cores together, less
disturbed by other jobs than the clock.
"""

import argparse
import json
import os
import statistics
import time

from side_by_side import machine

import tfde
from tfde.text.read_tokenizer import read_tokenizer

BERT = {"num_heads": 12, "hidden_dim": 384, "intermediate_dim": 1536}
SIZES = {
    **{f"BERT, {n} x 384": tfde.BertConfig(num_layers=n, **BERT) for n in (1, 2, 3, 6, 12)},
    "T5 small, 8 x 512": tfde.T5Config(),
    "T5 base, 12 x 768": tfde.T5Config(
        num_layers=12, num_heads=12, hidden_dim=768, intermediate_dim=2048
    ),
    "T5 large, 24 x 1024": tfde.T5Config(
        num_layers=24, num_heads=16, hidden_dim=1024, intermediate_dim=2816
    ),
}
QUESTIONS, DOCUMENTS, TOKENS = 60, 512, 128


def milliseconds(model: tfde.DualEncoder, texts: list[str]) -> tuple[float, float]:
    """Returns the median time of a text alone: by the clock, and of the processor."""
    clock, processor = [], []
    for text in [*texts[:10], *texts]:
        start, cpu = time.perf_counter(), time.process_time()
        model.encode_queries([text])
        clock.append(1000 * (time.perf_counter() - start))
        processor.append(1000 * (time.process_time() - cpu))
    return statistics.median(clock[10:]), statistics.median(processor[10:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32", help="or bfloat16, mixed_bfloat16")
    parser.add_argument("--only", default="", help="sizes whose names begin so")
    args = parser.parse_args()
    data = tfde.DatasetDirectory(os.path.join(os.environ["TFDE_DATA"], "multireqa_squad"))
    questions = [query.text for query, _ in zip(data.queries(), range(QUESTIONS), strict=False)]
    documents = [document for document, _ in zip(data.documents(), range(DOCUMENTS), strict=False)]
    long_query = " ".join(questions * 3)  # is cut at TOKENS
    rows = {}
    for name, config in SIZES.items():
        if not name.startswith(args.only):
            continue
        model = tfde.DualEncoder.from_backbone(
            config,
            tokenizer=read_tokenizer(os.environ["TFDE_MINILM"]),
            embedding_dim=768,
            text=tfde.TextConfig(TOKENS, 64),
            dtype=args.dtype,
            seed=1,
        )
        model.encode_documents(documents)  # traces every length
        question_ms, _ = milliseconds(model, questions)
        long_ms, long_cpu_ms = milliseconds(model, [long_query] * QUESTIONS)
        start = time.perf_counter()
        model.encode_documents(documents)
        rows[name] = {
            "parameters": model.count_params(),
            "question_ms": round(question_ms, 2),
            f"tokens_{TOKENS}_ms": round(long_ms, 2),
            f"tokens_{TOKENS}_cpu_ms": round(long_cpu_ms, 2),
            "documents_per_s": round(len(documents) / (time.perf_counter() - start), 1),
        }
        del model
    about = {"dtype": args.dtype, **machine("tfde", "tensorflow", "keras")}
    print(json.dumps({"rows": rows, **about}, indent=1))


if __name__ == "__main__":
    main()
