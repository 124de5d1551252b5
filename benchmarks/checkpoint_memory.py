"""How much memory does it take to convert a large T5 encoder into a model directory?

    python benchmarks/checkpoint_memory.py [--dtype bfloat16] [--stored-dtype bfloat16]

Writes a random T5 encoder as sharded safetensors into a temporary folder; the default sizes are
those of T5 3B's encoder, which GTR-XL and Sentence-T5-XL are (1.24 billion parameters). A fresh
process then runs `DualEncoder.from_backbone(DIR, dtype=...)` and `save_to_preset`. Prints one JSON
object; memory is what the kernel counts as resident (VmHWM), mapped pages of files included, the
page cache outside the process not. The baseline is taken after imports, before the checkpoint is
touched. `ratio` is (peak - baseline) / size of the model in the dtype asked for.
"""

import argparse
import io
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import ml_dtypes
import numpy as np
import sentencepiece

SEED = 0
BYTES = {"float32": 4, "bfloat16": 2}
SAFETENSORS_NAMES = {"float32": "F32", "bfloat16": "BF16"}


def shapes(args: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """Returns the arrays of a T5 1.0 encoder, as transformers names them."""
    inner = args.heads * args.key_value_dim
    arrays: dict[str, tuple[int, ...]] = {"shared.weight": (args.vocabulary_size, args.hidden_dim)}
    for i in range(args.layers):
        block = f"encoder.block.{i}"
        attention, feedforward = f"{block}.layer.0", f"{block}.layer.1"
        for part in "qkv":
            arrays[f"{attention}.SelfAttention.{part}.weight"] = (inner, args.hidden_dim)
        arrays[f"{attention}.SelfAttention.o.weight"] = (args.hidden_dim, inner)
        if i == 0:
            table = f"{attention}.SelfAttention.relative_attention_bias.weight"
            arrays[table] = (32, args.heads)
        arrays[f"{attention}.layer_norm.weight"] = (args.hidden_dim,)
        dense = f"{feedforward}.DenseReluDense"
        arrays[f"{dense}.wi.weight"] = (args.intermediate_dim, args.hidden_dim)
        arrays[f"{dense}.wo.weight"] = (args.hidden_dim, args.intermediate_dim)
        arrays[f"{feedforward}.layer_norm.weight"] = (args.hidden_dim,)
    arrays["encoder.final_layer_norm.weight"] = (args.hidden_dim,)
    return arrays


def write_checkpoint(directory: Path, args: argparse.Namespace) -> int:
    """Writes the checkpoint array by array and returns its number of parameters."""
    arrays = shapes(args)
    width = BYTES[args.stored_dtype]
    shards: list[list[str]] = [[]]
    size = 0
    for name, shape in arrays.items():
        size += width * math.prod(shape)
        if size > args.shard_bytes and shards[-1]:
            shards.append([])
            size = width * math.prod(shape)
        shards[-1].append(name)
    rng = np.random.default_rng(SEED)
    # One block again and again: drawing a billion numbers would take longer than the conversion.
    block = 0.02 * rng.standard_normal(2**20 + 7, dtype=np.float32)
    if args.stored_dtype == "bfloat16":
        block = block.astype(ml_dtypes.bfloat16)
    where = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        header, end = {}, 0
        for name in names:
            begin, end = end, end + width * math.prod(arrays[name])
            header[name] = {
                "dtype": SAFETENSORS_NAMES[args.stored_dtype],
                "shape": arrays[name],
                "data_offsets": [begin, end],
            }
            where[name] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (directory / file).open("wb") as output:
            output.write(len(text).to_bytes(8, "little") + text)
            for name in names:
                left = math.prod(arrays[name])
                while left:
                    part = block[:left]
                    output.write(part.tobytes())
                    left -= len(part)
    index = {"metadata": {}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {
        "model_type": "t5",
        "vocab_size": args.vocabulary_size,
        "d_model": args.hidden_dim,
        "d_ff": args.intermediate_dim,
        "d_kv": args.key_value_dim,
        "num_heads": args.heads,
        "num_layers": args.layers,
        "feed_forward_proj": "relu",
    }
    (directory / "config.json").write_text(json.dumps(config))
    write_tokenizer(directory)
    return sum(map(math.prod, arrays.values()))


def write_tokenizer(directory: Path) -> None:
    """Writes a small `spiece.model`: the tokenizer's size is not the question."""
    words = ["how", "much", "memory", "does", "it", "take", "to", "convert", "a", "large", "model"]
    rng = np.random.default_rng(SEED)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(" ".join(rng.permutation(words)) for _ in range(100)),
        model_writer=model,
        vocab_size=60,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    (directory / "spiece.model").write_bytes(model.getvalue())


def memory(field: str) -> int:
    """Returns a field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise KeyError(field)


def convert(source: str, output: str, dtype: str) -> None:
    """Converts and prints what it took; runs in a process of its own."""
    from tfde.towers.dual_encoder import DualEncoder

    baseline, start = memory("VmRSS"), time.perf_counter()
    model = DualEncoder.from_backbone(source, dtype=dtype)
    loaded, peak_of_loading = time.perf_counter(), memory("VmHWM")
    model.save_to_preset(output)
    saved, peak = time.perf_counter(), memory("VmHWM")
    figures = {
        "baseline_bytes": baseline,
        "peak_bytes_of_loading": peak_of_loading,
        "peak_bytes": peak,
        "load_s": round(loaded - start, 1),
        "save_s": round(saved - loaded, 1),
    }
    print(json.dumps(figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden-dim", type=int, default=1024)
    parser.add_argument("--intermediate-dim", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--key-value-dim", type=int, default=128)
    parser.add_argument("--vocabulary-size", type=int, default=32128)
    parser.add_argument("--shard-bytes", type=int, default=10**9)
    parser.add_argument("--dtype", choices=BYTES, default="float32")
    parser.add_argument("--stored-dtype", choices=BYTES, default="float32")
    parser.add_argument("--folder", help="where the temporary folder is made")
    parser.add_argument("--convert", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.convert:
        convert(*args.convert)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        source, output = Path(folder, "source"), Path(folder, "model")
        source.mkdir()
        parameters = write_checkpoint(source, args)
        command = [sys.executable, __file__, "--convert", str(source), str(output), args.dtype]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        figures = json.loads(done.stdout)
        stored = sum(file.stat().st_size for file in source.glob("*.safetensors"))
        written = (output / "model.weights.h5").stat().st_size
    model_bytes = parameters * BYTES[args.dtype]
    about = {
        "seed": SEED,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("tensorflow", "keras", "safetensors")},
        "stored_dtype": args.stored_dtype,
        "dtype": args.dtype,
        "parameters": parameters,
        "checkpoint_bytes": stored,
        "model_bytes": model_bytes,
        "written_bytes": written,
    }
    ratio = (figures["peak_bytes"] - figures["baseline_bytes"]) / model_bytes
    print(json.dumps({**about, **figures, "ratio": round(ratio, 3)}, indent=2))


if __name__ == "__main__":
    main()
