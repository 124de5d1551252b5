"""A small BERT with random weights, as Hugging Face and sentence-transformers lay it out.

Written with safetensors alone, so that tests without torch have it.
"""

import json

import numpy as np
from safetensors.numpy import save_file

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [chr(97 + i) for i in range(26)]
V, H, I, P, LAYERS = len(VOCABULARY), 8, 12, 20, 2  # noqa: E741
CONFIG = {
    "model_type": "bert",
    "vocab_size": V,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "hidden_size": H,
    "intermediate_size": I,
    "max_position_embeddings": P,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-10,
}


def arrays():
    """The arrays of the model by their names."""
    rng = np.random.default_rng(4)
    shapes = {
        "embeddings.word_embeddings.weight": (V, H),
        "embeddings.position_embeddings.weight": (P, H),
        "embeddings.token_type_embeddings.weight": (2, H),
        "embeddings.LayerNorm.weight": (H,),
        "embeddings.LayerNorm.bias": (H,),
    }
    for i in range(LAYERS):
        prefix = f"encoder.layer.{i}"
        for part, rows, columns in (
            *((f"attention.self.{x}", H, H) for x in ("query", "key", "value")),
            ("attention.output.dense", H, H),
            ("intermediate.dense", I, H),
            ("output.dense", H, I),
        ):
            shapes[f"{prefix}.{part}.weight"] = (rows, columns)
            shapes[f"{prefix}.{part}.bias"] = (rows,)
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{prefix}.{part}.weight"] = shapes[f"{prefix}.{part}.bias"] = (H,)
    return {name: rng.standard_normal(s).astype("float32") for name, s in shapes.items()}


def write(directory, *, weights=None, config=None, prefix=""):
    """Writes a Hugging Face directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY))
    weights = arrays() if weights is None else weights
    save_file({prefix + k: v for k, v in weights.items()}, directory / "model.safetensors")


def write_shards(directory, weights=None):
    """Puts the weights into two shards with an index, the second array in the second and so on."""
    weights = arrays() if weights is None else weights
    (directory / "model.safetensors").unlink(missing_ok=True)
    where = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(weights)}
    for shard in set(where.values()):
        part = {name: value for name, value in weights.items() if where[name] == shard}
        save_file(part, directory / shard)
    index = {"metadata": {}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def write_dense(directory, rows, columns, **config):
    """Writes a Dense module from `columns` numbers to `rows`; returns its weight and bias."""
    rng = np.random.default_rng(rows)
    weight = rng.standard_normal((rows, columns)).astype("float32")
    bias = rng.standard_normal(rows).astype("float32")
    directory.mkdir(exist_ok=True)
    fields = {
        "in_features": columns,
        "out_features": rows,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    (directory / "config.json").write_text(json.dumps({**fields, **config}))
    save_file({"linear.weight": weight, "linear.bias": bias}, directory / "model.safetensors")
    return weight, bias


def write_sentence_transformers(
    directory, kinds=("Transformer", "Pooling"), *, folder="", new=False
):
    """A directory as version 2 to 5 of the library, or from version 6 on, lists its modules."""
    write(directory / folder)
    module = "sentence_transformers.base.modules.{}." if new else "sentence_transformers.models."
    paths = [folder, *(f"{i}_{kind}" for i, kind in enumerate(kinds[1:], 1))]
    modules = [
        {"idx": i, "path": path, "type": module.format(kind.lower()) + kind}
        for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
