"""The encoder of a model directory, to start another model from."""

from __future__ import annotations

from pathlib import Path

import keras

from tfde.backbones.backbone import build_backbone, cut_backbone
from tfde.backbones.seeded_layer import zero_weights
from tfde.checkpoints.checkpoint_files import EncoderSteps, is_keras_file
from tfde.checkpoints.loading import LoadedBackbone
from tfde.config.backbones import backbone_from_mapping
from tfde.errors import ConfigError, require
from tfde.storage.json_file import read_json_file
from tfde.text.read_tokenizer import load_tokenizer
from tfde.towers.preset import CONFIG_FILE, DUAL_ENCODER, WEIGHTS_FILE, preset_class
from tfde.towers.weights import named_weights, read_weights


def model_start(
    path: object, *, num_layers: int | None, dropout: float | None, dtype: str | None
) -> LoadedBackbone | None:
    """Returns encoder and tokenizer of a model directory of any class; `None` if it is none.

    Such a start has the teacher's weights, or those of a pre-training run.

    Args:
        path: What a model starts from.
        num_layers: Only the first so many layers; `None` for all.
        dropout: Replaces the rate; `None` keeps it.
        dtype: Keras dtype policy.

    Raises:
        ConfigError: the towers of a dual encoder do not share token embedder and encoder, or have
            adapters.
        CorruptError: a file is damaged.
    """
    found = preset_class(path) if isinstance(path, str | Path) else None
    if found is None:
        return None
    folder = Path(str(path))
    rule = "a model directory (`save_to_preset` of what load_model gives)"
    require(not is_keras_file(folder), "backbone", rule, path)
    config = read_json_file(folder / CONFIG_FILE)["config"]
    sharing = config.get("sharing", {})
    if any(sharing.get(part, "shared") == "separate" for part in ("token_embedder", "encoder")):
        raise ConfigError(
            f"{folder}: must have one encoder, shared by both towers. Received: one for each"
        )
    if config.get("lora"):
        raise ConfigError(
            f"{folder}: must have no low-rank adapters, which `merge_lora` adds to the weights."
            f" Received: {config['lora']}"
        )
    sizes = backbone_from_mapping(config["backbone"])
    with zero_weights():
        backbone = build_backbone(
            sizes if dropout is None else sizes.replace(dropout=dropout), dtype=dtype
        )
    tower = "/shared" if found == DUAL_ENCODER else ""
    weights: dict[str, keras.Variable] = {}
    for part in ("token_embedder", "encoder"):
        weights.update(named_weights(part + tower, getattr(backbone, part)))
    read_weights(folder / WEIGHTS_FILE, weights, others=True)
    if num_layers is not None:
        backbone = cut_backbone(backbone, num_layers)
    return LoadedBackbone(
        backbone, load_tokenizer(folder), sizes.max_sequence_length, EncoderSteps()
    )
