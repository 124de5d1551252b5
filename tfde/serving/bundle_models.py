"""The models of a bundle as the embedded server takes them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from tensorflow_serving.config.model_server_config_pb2 import ModelConfig

from tfde.serving.server.model_manager import read_models_config


def bundle_models(bundle: str | Path, *, scann: bool) -> list[ModelConfig]:
    """Reads a bundle's configuration; its `/models/...` become directories of the bundle.

    Args:
        bundle: The bundle.
        scann: Whether to serve the models that need ScaNN's ops too.

    Raises:
        FileNotFoundError: no bundle there.
        ConfigError: its configuration cannot be read.
    """
    bundle = Path(bundle)
    path = bundle / ("models.scann.config" if scann else "models.config")
    if not path.is_file():
        raise FileNotFoundError(f"{bundle}: no {path.name} there, so no bundle.")
    models = read_models_config(path)
    for model in models:
        base_path = PurePosixPath(model.base_path)
        if base_path.is_relative_to("/models"):
            model.base_path = str(bundle.joinpath("models", base_path.relative_to("/models")))
    return models
