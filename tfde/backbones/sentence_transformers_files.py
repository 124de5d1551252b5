"""What a sentence-transformers directory says about the embedding, beside the transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfde.backbones.preset_files import PresetFiles
from tfde.config import Pooling
from tfde.errors import ConfigError, shorten

_POOLING: dict[str, Pooling] = {
    "mean": "mean",
    "mean_tokens": "mean",
    "cls": "first",
    "cls_token": "first",
}


@dataclass(frozen=True)
class SentenceTransformersFiles:
    """The steps from a text to its embedding, as `modules.json` lists them.

    Args:
        transformer: The files of the transformer; those of the checkpoint itself where there is
            no `modules.json`, and then nothing below is known.
        pooling: How the transformer's output is pooled.
        normalize: Whether embeddings get unit length.
        query_prompt: Put before every query.
        document_prompt: Put before every document.
    """

    transformer: PresetFiles
    pooling: Pooling | None = None
    normalize: bool | None = None
    query_prompt: str = ""
    document_prompt: str = ""

    @classmethod
    def read(cls, files: PresetFiles) -> SentenceTransformersFiles:
        """Reads a directory.

        Raises:
            ConfigError: it has other steps than a transformer, pooling by mean or cls token and,
                optionally, unit length; a file lacks what it must hold.
            DataError: a file is not JSON.
        """
        if files.find("modules.json") is None:
            return cls(files)
        modules = _modules(files)
        kinds = [kind for kind, _ in modules]
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            raise ConfigError(
                f"{files}/modules.json: the modules must be Transformer, Pooling and, optionally,"
                f" Normalize, in this order. Received: {', '.join(kinds) or 'none'}"
            )
        (_, transformer), (_, pooling) = modules[:2]
        settings = pooling.json_object("config.json")
        query, document = _prompts(files)
        if settings.get("include_prompt") is False and (query or document):
            raise ConfigError(
                f"{pooling}/config.json: pooling must include the prompts."
                " Received: include_prompt=False"
            )
        return cls(transformer, _pooling(pooling, settings), "Normalize" in kinds, query, document)


def _modules(files: PresetFiles) -> list[tuple[str, PresetFiles]]:
    """The last part of each module's class path, which releases did not change; its files."""
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
    return [(module["type"].rpartition(".")[2], files.inside(module["path"])) for module in modules]


def _pooling(files: PresetFiles, settings: Mapping[str, Any]) -> Pooling:
    if "pooling_mode" in settings:
        mode = settings["pooling_mode"]
    else:
        modes = [key for key, on in settings.items() if key.startswith("pooling_mode_") and on]
        mode = " + ".join(key.removeprefix("pooling_mode_") for key in modes)
    if not isinstance(mode, str) or mode not in _POOLING:
        raise ConfigError(
            f"{files}/config.json: pooling must be by mean or cls token. Received: {shorten(mode)}"
        )
    return _POOLING[mode]


def _prompts(files: PresetFiles) -> tuple[str, str]:
    """The prompts of queries and of documents, which older checkpoints name passages."""
    name = "config_sentence_transformers.json"
    prompts = files.json_or_empty(name).get("prompts") or {}
    if not isinstance(prompts, Mapping):
        raise ConfigError(
            f"{files}/{name}: `prompts` must be an object. Received: {shorten(prompts)}"
        )
    document = prompts.get("document") or prompts.get("passage")
    return str(prompts.get("query") or ""), str(document or "")
