"""Two towers from one description of what they share, and the table that shows it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence

import keras

from tfde.backbones.backbone import Backbone, copy_backbone
from tfde.backbones.lora import enable_lora, matrices_of, merge_lora
from tfde.config.lora import LoraConfig
from tfde.config.model import Sharing, TowersConfig
from tfde.errors import ConfigError, require
from tfde.layers.keras_layer import KerasProjection
from tfde.layers.projection import Projection
from tfde.towers.tower import TowerParts, build_tower
from tfde.towers.weights import named_weights

PARTS = tuple(field.name for field in dataclasses.fields(Sharing))


@dataclasses.dataclass(frozen=True)
class Towers:
    """Both towers, and the parts they were made of.

    Args:
        query_tower: Gives the embeddings of queries.
        document_tower: Those of documents.
        trained: Both as they train: the same, or such as have a projection that these have not.
        query_parts: Layers of the query tower.
        document_parts: Layers of the document tower.
    """

    query_tower: keras.Model
    document_tower: keras.Model
    trained: tuple[keras.Model, keras.Model]
    query_parts: TowerParts
    document_parts: TowerParts

    def named_weights(self) -> dict[str, keras.Variable]:
        """Returns every weight once, by `part/shared/...`, or `part/query/...` and so on."""
        weights: dict[str, keras.Variable] = {}
        for part in PARTS:
            query, document = getattr(self.query_parts, part), getattr(self.document_parts, part)
            if query is None:
                continue
            sides = {"query": query, "document": document}
            for side, layer in ({"shared": query} if query is document else sides).items():
                weights.update(named_weights(f"{part}/{side}", layer))
        return weights


def build_towers(
    backbone: Backbone,
    config: TowersConfig,
    *,
    document_backbone: Backbone | None = None,
    skipped_tokens: tuple[int, int] = (0, 0),
) -> Towers:
    """Builds the query and the document tower.

    A shared or frozen part is one layer object in both towers; a separate part of the document
    tower is a second layer. That of the backbone starts from the same weights, unless it is given;
    a projection is drawn at random, each for itself.

    Args:
        backbone: The query tower's backbone, weights loaded.
        config: What the towers share and what follows the backbone.
        document_backbone: That of the document tower, where it has weights of its own.
        skipped_tokens: How many tokens at the beginning of a query, and of a document, do not
            count in pooling.

    Raises:
        ConfigError: `document_backbone` is given, but a part is not separate; the backbone is one
            part, but token embedder and encoder are shared otherwise.
    """
    sharing = config.sharing
    if document_backbone is not None and set(dataclasses.astuple(sharing)) != {"separate"}:
        raise ConfigError(
            "`sharing` must be ade: queries and documents have checkpoints of their own, which"
            f" differ in every part. Received: {sharing}"
        )
    if config.backbone.is_whole and sharing.token_embedder != sharing.encoder:
        raise ConfigError(
            "`sharing` must be alike for token_embedder and encoder (sde, ade, ade_spl): this Keras"
            f" model is one part. Received: {sharing}"
        )
    query_parts = TowerParts(
        backbone.token_embedder, backbone.encoder, _build_projection(config, "projection")
    )
    if document_backbone is not None:
        second = document_backbone
    elif sharing.token_embedder == "separate" or sharing.encoder == "separate":
        second = copy_backbone(backbone, name_prefix="document_")
    else:
        second = backbone
    document_projection = query_parts.projection
    if query_parts.projection is not None and sharing.projection == "separate":
        document_projection = _build_projection(config, "document_projection")
    document_parts = TowerParts(
        second.token_embedder if sharing.token_embedder == "separate" else backbone.token_embedder,
        second.encoder if sharing.encoder == "separate" else backbone.encoder,
        document_projection,
    )
    for part in PARTS:
        layer = getattr(query_parts, part)
        if layer is not None and getattr(sharing, part) == "frozen":
            layer.trainable = False
    if config.lora is not None:
        add_adapters((query_parts, document_parts), config.lora)

    def build(query: TowerParts, document: TowerParts) -> tuple[keras.Model, keras.Model]:
        found = [
            build_tower(
                parts,
                pooling=config.pooling_layer or config.pooling,
                normalize=config.normalize,
                name=name,
                skipped_tokens=skipped,
            )
            for parts, name, skipped in (
                (query, "query_tower", skipped_tokens[0]),
                (document, "document_tower", skipped_tokens[1]),
            )
        ]
        for tower in found:
            tower.vocabulary_size = config.backbone.vocabulary_size
            tower.max_length = config.backbone.max_sequence_length
        return found[0], found[1]

    trained = build(query_parts, document_parts)
    encoding = trained
    if config.encode_before_projection:
        both = (query_parts, document_parts)
        encoding = build(*(dataclasses.replace(parts, projection=None) for parts in both))
    return Towers(*encoding, trained, query_parts, document_parts)


def add_adapters(parts: Sequence[TowerParts], lora: LoraConfig) -> None:
    """Puts adapters into the encoders of towers; an encoder of both has them once.

    What trains from then on: the adapters, and the projection as before.

    Raises:
        ConfigError: an encoder is frozen, has adapters already, or no such matrices.
    """
    for encoder in {id(tower.encoder): tower.encoder for tower in parts}.values():
        check_adapters(encoder, lora, trains=encoder.trainable)
        if getattr(encoder, "lora", None) != lora:
            enable_lora(encoder, lora)
    for tower in parts:
        tower.token_embedder.trainable = False


def check_adapters(encoder: keras.layers.Layer, lora: LoraConfig, *, trains: bool) -> None:
    """Refuses adapters of an encoder that has no such matrices, or is frozen."""
    require(trains, "sharing.encoder", "shared or separate, for adapters train", "frozen")
    lora.choose(list(matrices_of(encoder)))


def merge_adapters(parts: Sequence[TowerParts], sharing: Sharing) -> None:
    """Adds the adapters of towers to their matrices, and trains again what is not frozen."""
    for encoder in {id(tower.encoder): tower.encoder for tower in parts}.values():
        merge_lora(encoder)
    for tower in parts:
        tower.token_embedder.trainable = sharing.token_embedder != "frozen"


def check_freeze(
    encoder: keras.layers.Layer,
    sharing: Sharing,
    parts: Collection[str],
    *,
    layers: int = 0,
    projected: bool,
) -> None:
    """Finds whether anything trains.

    Args:
        encoder: That of a tower.
        sharing: What the towers share.
        parts: Some of `token_embedder`, `encoder`, `projection`, which are not to train.
        layers: How many of the encoder's lowest layers are not to.
        projected: Whether the towers have a projection.

    Raises:
        ConfigError: nothing would be left to train, or the encoder has no such layers.
    """
    if layers:
        there = len(_layers(encoder))
        rule = (
            f"below the encoder's layers, {there}" if there else "0 for an encoder without layers"
        )
        require(layers < there, "freeze_layers", rule, layers)
    left = {part for part in PARTS if getattr(sharing, part) != "frozen"} - set(parts)
    if not left - (set() if projected else {"projection"}):
        raise ConfigError(
            "`freeze` must leave something to train."
            f" Received: {', '.join(parts)} of {', '.join(PARTS)}"
        )


@contextlib.contextmanager
def frozen_parts(towers: Towers, parts: Collection[str], *, layers: int = 0) -> Iterator[None]:
    """Keeps parts of both towers from training; what trained before does so again after.

    Args:
        towers: The towers.
        parts: Some of `token_embedder`, `encoder`, `projection`.
        layers: How many of the encoders' lowest layers do not train either.
    """
    sides = (towers.query_parts, towers.document_parts)
    frozen = [layer for side in sides for part in parts if (layer := getattr(side, part))]
    frozen += [layer for side in sides for layer in _layers(side.encoder)[:layers]]
    # A layer's own flag would set those of all its weights, also where adapters alone train.
    weights = {id(weight): weight for layer in frozen for weight in layer.trainable_weights}
    for weight in weights.values():
        weight.trainable = False
    try:
        yield
    finally:
        for weight in weights.values():
            weight.trainable = True


def sharing_table(towers: Towers, sharing: Sharing) -> str:
    """Returns the table of parts: which layer each tower uses, how many parameters, who trains.

    Args:
        towers: The towers.
        sharing: Their description.
    """
    header = ("part", "query tower", "document tower", "sharing", "parameters", "trainable")
    rows: list[tuple[str, ...]] = [header]
    total = trainable = 0
    for part in PARTS:
        layers = [getattr(towers.query_parts, part), getattr(towers.document_parts, part)]
        if layers[0] is None:
            rows.append((part, "-", "-", "-", "0", "0"))
            continue
        lora = getattr(layers[0], "lora", None)
        distinct = list({id(layer): layer for layer in layers}.values())
        count = sum(_count(layer.weights) for layer in distinct)
        trains = sum(_count(layer.trainable_weights) for layer in distinct)
        total, trainable = total + count, trainable + trains
        names = [layer.name for layer in layers]
        shared = getattr(sharing, part) + (f", LoRA {lora.rank}" if lora else "")
        rows.append((part, *names, shared, f"{count:,}", f"{trains:,}"))
    rows.append(("total", "", "", "", f"{total:,}", f"{trainable:,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        left = [cell.ljust(width) for cell, width in zip(row[:4], widths[:4], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(row[4:], widths[4:], strict=True)]
        lines.append("  ".join(left + right).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def _build_projection(config: TowersConfig, name: str) -> keras.layers.Layer | None:
    if config.projection_layer:
        return KerasProjection(config.projection_layer, name=name)
    return Projection(config.projection, name=name) if config.projection else None


def _layers(encoder: keras.layers.Layer) -> Sequence[keras.layers.Layer]:
    return getattr(encoder, "transformer_layers", ())


def _count(weights: list) -> int:
    return sum(math.prod(weight.shape) for weight in weights)
