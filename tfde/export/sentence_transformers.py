"""`export_sentence_transformers`: a model as a directory that `SentenceTransformer(DIR)` loads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfde.argument_types import typed
from tfde.backbones.backbone import Backbone
from tfde.checkpoints.hugging_face_writer import (
    MAX_SHARD_BYTES,
    hugging_face_config,
    write_arrays,
    write_hugging_face,
)
from tfde.checkpoints.sentence_transformers_files import POOLINGS
from tfde.config.model import DenseActivation, Pooling
from tfde.errors import ConfigError
from tfde.export.cards import sentence_transformers_card
from tfde.layers.projection import Projection
from tfde.storage.atomic import atomic_directory, refuse_existing
from tfde.towers.change_sharing import without_adapters
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.model_card import CARD_FILE
from tfde.towers.sharing import PARTS
from tfde.towers.tower import TowerParts

# Old class paths: versions 2 to 5 know no others, and 6 translates them.
_MODULES = "sentence_transformers.models."
_ACTIVATIONS: dict[DenseActivation, str] = {
    "identity": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "silu": "torch.nn.modules.activation.SiLU",
}


@typed
def export_sentence_transformers(
    model: DualEncoder,
    output: str | Path,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    model_card: str | None = None,
) -> Path:
    """Writes a sentence-transformers directory that gives the model's embeddings.

    Towers that share every part become Transformer, Pooling, a Dense for each step of the
    projection, and Normalize; others a Router with these for queries and for documents. A shared
    projection then stands once, after the Router; other shared parts are written twice. Neither
    torch nor transformers is needed.

    Args:
        model: The model; its weights keep their dtype.
        output: A new directory.
        max_shard_bytes: Weights larger than that are spread over several files.
        model_card: `README.md` of the model directory, whose metadata the new card takes over.

    Returns:
        `output`.

    Raises:
        ConfigError: `output` is not empty, or transformers has no model that computes the same
            (bag of words; kinds of T5 and position biases beyond those it knows).
    """
    output = Path(output)
    refuse_existing(output, overwrite=False)
    if model.config.pooling_layer or model.config.projection_layer:
        raise ConfigError(
            "`model` must have pooling and projection of tfde's own: sentence-transformers knows no"
            " layers of Keras."
        )
    text = model.preprocessor.text_config
    if text.query_mark or text.document_mark:
        raise ConfigError(
            "`model` must have no marks: sentence-transformers has prompts, which are texts."
            f" Received: {text.query_mark} {text.document_mark}"
        )
    hugging_face_config(model.config.backbone, model.preprocessor.tokenizer)  # may refuse
    with atomic_directory(output) as directory:
        _Writer(without_adapters(model), directory, max_shard_bytes).write()
        card = sentence_transformers_card(model, limitations(model), model_card)
        (directory / CARD_FILE).write_text(card, "utf-8")
    return output


def is_siamese(model: DualEncoder) -> bool:
    """Returns whether both towers are made of the same layers."""
    query, document = model.towers.query_parts, model.towers.document_parts
    return all(getattr(query, part) is getattr(document, part) for part in PARTS)


def limitations(model: DualEncoder) -> list[str]:
    """Returns what the directory cannot say as the model does, a sentence each."""
    text, result = model.preprocessor.text_config, []
    lengths = {
        "query": text.query_max_length_tokens,
        "document": text.document_max_length_tokens,
    }
    names = {"query": "queries", "document": "documents"}
    if is_siamese(model):
        shorter, longer = sorted(lengths, key=lambda side: lengths[side])
        if lengths[shorter] != lengths[longer]:
            result.append(
                f"sentence-transformers cuts {names[shorter]} at {lengths[longer]} tokens, as"
                f" {names[longer]}; tfde cuts them at {lengths[shorter]} (from version 6 on,"
                f" `model[0].{shorter}_length = {lengths[shorter]}` does so too)."
            )
    else:
        result.append(
            "Queries and documents have encoders of their own: sentence-transformers 5 or later"
            " is needed, and `encode_query` and `encode_document`."
        )
        query, document = model.towers.query_parts, model.towers.document_parts
        twice = [
            part
            for part in ("token_embedder", "encoder")
            if getattr(query, part) is getattr(document, part)
        ]
        if twice:
            result.append(f"Shared by the towers, but written twice: {', '.join(twice)}.")
    if _skips_prompts(model) and "first" in model.config.pooling:
        result.append(
            "Its pooling takes the first token after the prompt: before sentence-transformers 6 it"
            " would take the first of all."
        )
    tokenizer = model.preprocessor.tokenizer
    end = tokenizer.id_to_token(tokenizer.end_id)
    if tokenizer.tokenize([end]).to_list() != [[tokenizer.end_id]]:
        result.append(
            f"A text that spells out a special token, such as {end}, holds plain characters for"
            " tfde and the token for Hugging Face's tokenizers."
        )
    if hugging_face_config(model.config.backbone, tokenizer)["model_type"] == "mpnet":
        pad = tokenizer.id_to_token(tokenizer.pad_id)
        result.append(f"A text that spells out {pad} has other positions in MPNetModel.")
    if not _in_order(model.config.pooling):
        result.append("The order of its poolings needs sentence-transformers 6 or later.")
    return result


class _Writer:
    """Writes one model into a directory that nobody sees yet."""

    def __init__(self, model: DualEncoder, directory: Path, max_shard_bytes: int) -> None:
        self._model = model
        self._directory = directory
        self._max_shard_bytes = max_shard_bytes

    def write(self) -> None:
        """Writes every file."""
        text, config = self._model.preprocessor.text_config, self._model.config
        lengths = (text.query_max_length_tokens, text.document_max_length_tokens)
        towers = self._model.towers
        if is_siamese(self._model):
            modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
            self._transformer("", towers.document_parts, max(lengths))
            self._pooling("1_Pooling")
            modules += self._projection(towers.document_parts.projection, first=2)
        else:
            modules = [("Router", ""), *self._router(lengths)]
        if config.normalize:
            modules.append(("Normalize", f"{len(modules)}_Normalize"))
            self._json(f"{modules[-1][1]}/config.json", {})
        self._json(
            "modules.json",
            [
                {"idx": i, "name": str(i), "path": path, "type": _MODULES + kind}
                for i, (kind, path) in enumerate(modules)
            ],
        )
        self._json(
            "config_sentence_transformers.json",
            {
                "prompts": {"query": text.query_prompt, "document": text.document_prompt},
                "default_prompt_name": None,
                "similarity_fn_name": "cosine" if config.normalize else "dot",
            },
        )

    def _router(self, lengths: tuple[int, int]) -> list[tuple[str, str]]:
        """Writes both routes; returns the modules that follow them."""
        towers = self._model.towers
        parts = {"query": towers.query_parts, "document": towers.document_parts}
        shared = towers.query_parts.projection is towers.document_parts.projection
        types: dict[str, str] = {}
        structure: dict[str, list[str]] = {}
        for (side, tower), length in zip(parts.items(), lengths, strict=True):
            route = [("Transformer", f"{side}_0_Transformer"), ("Pooling", f"{side}_1_Pooling")]
            self._transformer(route[0][1], tower, length)
            self._pooling(route[1][1])
            if not shared:
                route += self._projection(tower.projection, first=2, prefix=f"{side}_")
            types |= {path: _MODULES + kind for kind, path in route}
            structure[side] = [path for _, path in route]
        self._json(
            "router_config.json",
            {
                "types": types,
                "structure": structure,
                "parameters": {"default_route": "document", "allow_empty_key": True},
            },
        )
        return self._projection(towers.query_parts.projection, first=1) if shared else []

    def _transformer(self, folder: str, parts: TowerParts, length: int) -> None:
        directory = self._folder(folder)
        write_hugging_face(
            Backbone(self._model.config.backbone, parts.token_embedder, parts.encoder),
            self._model.preprocessor.tokenizer,
            directory,
            max_length_tokens=length,
            max_shard_bytes=self._max_shard_bytes,
        )
        settings = {"max_seq_length": length, "do_lower_case": False}
        self._json(f"{folder}/sentence_bert_config.json", settings)

    def _pooling(self, folder: str) -> None:
        config = self._model.config
        value: dict[str, Any] = {"word_embedding_dimension": config.backbone.hidden_dim}
        if _in_order(config.pooling):
            value |= {f"pooling_mode_{old}": ours in config.pooling for old, _, ours in POOLINGS}
        else:
            names = {ours: new for _, new, ours in POOLINGS}
            value["pooling_mode"] = [names[mode] for mode in config.pooling]
        self._json(f"{folder}/config.json", {**value, "include_prompt": config.pool_prompts})

    def _projection(
        self, projection: Projection | None, *, first: int, prefix: str = ""
    ) -> list[tuple[str, str]]:
        """Writes one Dense a step; returns kinds and folders."""
        if projection is None or self._model.config.encode_before_projection:
            return []
        modules = []
        weights = iter(projection.get_weights())
        for number, step in enumerate(projection.steps, start=first):
            folder = f"{prefix}{number}_Dense"
            arrays = {"linear.weight": np.ascontiguousarray(next(weights).T)}
            if step.use_bias:
                arrays["linear.bias"] = next(weights)
            write_arrays(iter(arrays.items()), self._folder(folder))
            rows, columns = arrays["linear.weight"].shape
            value = {
                "in_features": columns,
                "out_features": rows,
                "bias": step.use_bias,
                "activation_function": _ACTIVATIONS[step.activation],
            }
            self._json(f"{folder}/config.json", value)
            modules.append(("Dense", folder))
        return modules

    def _folder(self, name: str) -> Path:
        folder = self._directory / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _json(self, name: str, value: Any) -> None:
        path = self._directory / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _skips_prompts(model: DualEncoder) -> bool:
    text = model.preprocessor.text_config
    return not model.config.pool_prompts and bool(text.query_prompt or text.document_prompt)


def _in_order(pooling: Sequence[Pooling]) -> bool:
    return list(pooling) == [ours for _, _, ours in POOLINGS if ours in pooling]
