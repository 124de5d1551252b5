"""The models of a bundle as the embedded server takes them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from tfde.serving.server.versions import read_server_config


def bundle_models(bundle: str | Path, *, scann: bool) -> ModelServerConfig:
    """Reads a bundle's configuration; its `/models/...` become directories of the bundle.

    Args:
        bundle: The bundle.
        scann: Whether to serve the models that need ScaNN's ops too.

    Raises:
        FileNotFoundError: no bundle there.
        StatusError: its configuration does not parse.
    """
    bundle = Path(bundle).absolute()
    path = bundle / ("models.scann.config" if scann else "models.config")
    if not path.is_file():
        raise FileNotFoundError(f"{bundle}: no {path.name} there, so no bundle.")
    config = read_server_config(path)
    for model in config.model_config_list.config:
        base_path = PurePosixPath(model.base_path)
        if base_path.is_relative_to("/models"):
            model.base_path = str(bundle.joinpath("models", base_path.relative_to("/models")))
    return config
