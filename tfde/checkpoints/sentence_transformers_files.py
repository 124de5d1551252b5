"""sentence-transformers directories: `modules.json` and what it names, versions 2 to 6."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfde.checkpoints.checkpoint_files import (
    CheckpointFiles,
    EncoderSteps,
    length_setting,
    transformer_settings,
)
from tfde.checkpoints.safetensors_arrays import SafetensorsArrays
from tfde.config.model import DenseActivation, DenseConfig, Pooling
from tfde.errors import ConfigError, DataError, shorten

_TASK, _EMBEDDING = "feature-extraction", "sentence_embedding"
_LOG = logging.getLogger(__name__)
# Name in versions up to 5 (`pooling_mode_...`, in the order in which they are put side by side),
# name in version 6, ours.
POOLINGS: tuple[tuple[str, str, Pooling], ...] = (
    ("cls_token", "cls", "first"),
    ("max_tokens", "max", "max"),
    ("mean_tokens", "mean", "mean"),
    ("mean_sqrt_len_tokens", "mean_sqrt_len_tokens", "mean_sqrt_length"),
    ("weightedmean_tokens", "weightedmean", "weighted_mean"),
    ("lasttoken", "lasttoken", "last"),
)
_ACTIVATIONS: dict[str, DenseActivation] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "Sigmoid": "sigmoid",
    "SiLU": "silu",
}
_PROMPTS = ("query", "document")
_ORDER = "Transformer, Pooling, any number of Dense and, optionally, Normalize"

Modules = list[tuple[str, CheckpointFiles]]


def read_sentence_transformers(
    files: CheckpointFiles,
) -> list[tuple[CheckpointFiles, EncoderSteps]]:
    """Returns the transformer's files and the steps of one encoder, or of query and document.

    Raises:
        ConfigError: a module or an option that our towers do not have; a file lacks what it must
            hold.
        DataError: a file is not JSON; weights do not agree with their `config.json`.
    """
    settings = files.json_or_empty("config_sentence_transformers.json")
    sides = _sides(files, read_modules(files))
    encoders = [_read_side(files, modules, settings) for modules in sides]
    if len(encoders) == 2 and sides[0] == sides[1]:
        return encoders[:1]
    return encoders


def read_modules(files: CheckpointFiles) -> Modules:
    """Returns the last part of each module's class path, which releases did not change, its files.

    Raises:
        ConfigError: `modules.json` is not a list of modules.
        DataError: it is not JSON.
    """
    modules = files.json("modules.json")
    if not isinstance(modules, list) or not all(
        isinstance(module, dict)
        and isinstance(module.get("type"), str)
        and isinstance(module.get("path"), str)
        for module in modules
    ):
        raise ConfigError(
            f"{files}/modules.json: must be a list of objects with `type` and `path`."
            f" Received: {shorten(modules)}"
        )
    return [(_kind(module["type"]), files.inside(module["path"])) for module in modules]


def _sides(files: CheckpointFiles, modules: Modules) -> list[Modules]:
    """One list of modules, or those of queries and those of documents where a Router parts them."""
    if not modules or modules[0][0] not in ("Router", "Asym"):
        return [modules]
    router, rest = modules[0][1], modules[1:]
    name = "router_config.json" if router.find("router_config.json") else "config.json"
    types, structure = (router.json_object(name, key) for key in ("types", "structure"))
    routes: list[Modules] = []
    for names in (("query",), ("document", "passage", "corpus")):
        route = next((structure[key] for key in names if key in structure), None)
        if not isinstance(route, list) or not all(
            isinstance(key, str) and isinstance(types.get(key), str) for key in route
        ):
            raise ConfigError(
                f"{router}/{name}: `structure` must have the routes query and document, lists of"
                f" names in `types`. Received: {shorten(structure)}"
            )
        routes.append([(_kind(types[key]), router.inside(key)) for key in route] + rest)
    return routes


def _read_side(
    files: CheckpointFiles, modules: Modules, settings: Mapping[str, Any]
) -> tuple[CheckpointFiles, EncoderSteps]:
    kinds = [kind for kind, _ in modules]
    dense = [module for kind, module in modules if kind == "Dense"]
    expected = ["Transformer", "Pooling"] + ["Dense"] * len(dense)
    if kinds not in (expected, [*expected, "Normalize"]):
        cross_encoder = "; a cross-encoder is for tfde.CrossEncoder.from_backbone"
        hint = cross_encoder if kinds == ["Transformer"] else ""
        raise ConfigError(
            f"{files}/modules.json: the modules must be {_ORDER}, in this order, for each route if"
            f" there is a Router{hint}. Received: {', '.join(kinds) or 'none'}"
        )
    transformer, pooling = modules[0][1], modules[1][1]
    name, of_transformer = transformer_settings(transformer)
    task = of_transformer.get("transformer_task", _TASK)
    if task != _TASK:
        rule = f"`transformer_task` must be {_TASK}. Received: {shorten(task)}"
        raise ConfigError(f"{transformer}/{name}: {rule}")
    query_length, document_length = (
        length_setting(transformer, name, of_transformer, f"{side}_length")
        for side in ("query", "document")
    )
    options = pooling.json_object("config.json")
    if kinds[-1] == "Normalize":
        of_normalize = modules[-1][1].json_or_empty("config.json")
        for key in ("module_input_name", "module_output_name"):
            value = of_normalize.get(key) or _EMBEDDING
            if value != _EMBEDDING:
                rule = f"`{key}` must be {_EMBEDDING}. Received: {shorten(value)}"
                raise ConfigError(f"{modules[-1][1]}/config.json: {rule}")
    steps = [_read_dense(module) for module in dense]
    query_prompt, document_prompt = _prompts(files, settings)
    if settings.get("truncate_dim") is not None:
        _LOG.warning(
            "%s/config_sentence_transformers.json: embeddings are whole here; sentence-transformers"
            " keeps their first %s numbers (`truncate_dim`)",
            files,
            settings["truncate_dim"],
        )
    return transformer, EncoderSteps(
        pooling=_read_pooling(pooling, options),
        pool_prompts=options.get("include_prompt") is not False,
        projection=tuple(step for step, _ in steps),
        projection_weights=tuple(array for _, arrays in steps for array in arrays),
        normalize=kinds[-1] == "Normalize" or _compares_by_cosine(files, settings),
        query_prompt=query_prompt,
        document_prompt=document_prompt,
        query_length=query_length,
        document_length=document_length,
    )


def _read_pooling(files: CheckpointFiles, options: Mapping[str, Any]) -> tuple[Pooling, ...]:
    if "pooling_mode" in options:
        value = options["pooling_mode"]
        names = [value] if isinstance(value, str) else value
    else:
        names = [new for old, new, _ in POOLINGS if options.get(f"pooling_mode_{old}")]
    known = {new: ours for _, new, ours in POOLINGS}
    if not isinstance(names, list) or not names or any(str(name) not in known for name in names):
        raise ConfigError(
            f"{files}/config.json: pooling must be by one or several of {', '.join(known)}."
            f" Received: {shorten(names)}"
        )
    return tuple(known[name] for name in names)


def _read_dense(files: CheckpointFiles) -> tuple[DenseConfig, list[np.ndarray]]:
    options = files.json_object("config.json")
    name = str(options.get("activation_function", "Tanh")).rpartition(".")[2]
    for key, holds, rule in (
        ("activation_function", name in _ACTIVATIONS, f"one of {', '.join(_ACTIVATIONS)}"),
        ("use_residual", not options.get("use_residual"), "false"),
        (
            "module_input_name",
            options.get("module_input_name", _EMBEDDING) == _EMBEDDING,
            _EMBEDDING,
        ),
        (
            "module_output_name",
            options.get("module_output_name") in (None, _EMBEDDING),
            _EMBEDDING,
        ),
    ):
        if not holds:
            raise ConfigError(
                f"{files}/config.json: `{key}` must be {rule}. Received: {shorten(options[key])}"
            )
    use_bias = options.get("bias", True)
    if not isinstance(use_bias, bool):
        raise ConfigError(
            f"{files}/config.json: `bias` must be true or false. Received: {shorten(use_bias)}"
        )
    arrays = SafetensorsArrays(files)
    shape = arrays.shape("linear.weight")
    said = (options.get("out_features"), options.get("in_features"))
    if shape != said or len(shape) != 2:
        rule = f"(out_features, in_features) must be the shape of linear.weight, {shape}."
        raise DataError(f"{files}/config.json", None, rule, said)
    names: dict[str, tuple[int, ...]] = {"linear.weight": shape}
    if use_bias:
        names["linear.bias"] = shape[:1]
    for array, size in names.items():
        arrays.check(array, size)
    values = [arrays.read(array).astype(np.float32).T for array in names]
    return DenseConfig(shape[0], use_bias, _ACTIVATIONS[name]), values


def _prompts(files: CheckpointFiles, settings: Mapping[str, Any]) -> tuple[str, str]:
    """The prompts of queries and of documents, as `encode_query` and `encode_document` use them."""
    prompts = settings.get("prompts") or {}
    where = f"{files}/config_sentence_transformers.json"
    if not isinstance(prompts, Mapping):
        raise ConfigError(f"{where}: `prompts` must be an object. Received: {shorten(prompts)}")
    wrong = [prompt for prompt in prompts.values() if not isinstance(prompt, str | None)]
    if wrong:
        raise ConfigError(f"{where}: `prompts` must hold strings. Received: {shorten(wrong[0])}")
    unused = [name for name, prompt in prompts.items() if prompt and name not in _PROMPTS]
    if unused:
        # The library adds an empty `document`, which goes before passage, corpus and the default.
        _LOG.warning(
            "%s: no use is made of the prompt %s, as in encode_query and encode_document of"
            " sentence-transformers; TextConfig sets prompts",
            where,
            ", ".join(map(repr, unused)),
        )
    query, document = (prompts.get(name) or "" for name in _PROMPTS)
    return query, document


def _compares_by_cosine(files: CheckpointFiles, settings: Mapping[str, Any]) -> bool:
    name = settings.get("similarity_fn_name") or "cosine"  # the library's default
    if name not in ("cosine", "dot"):
        raise ConfigError(
            f"{files}/config_sentence_transformers.json: `similarity_fn_name` must be cosine or dot"
            f" unless the last module is Normalize. Received: {shorten(name)}"
        )
    return bool(name == "cosine")


def _kind(class_path: str) -> str:
    """The last part of a class path, which releases did not change.

    The whole path where the class is a checkpoint's own: it may do something else.
    """
    package, _, name = class_path.rpartition(".")
    return name if package.partition(".")[0] == "sentence_transformers" else class_path
