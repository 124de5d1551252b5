"""What a client may ask about models."""

from __future__ import annotations

from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2

from tfde.serving.server.inference import fill_spec
from tfde.serving.server.model_manager import ModelManager
from tfde.serving.server.status import invalid_argument


def get_model_metadata(
    manager: ModelManager, request: get_model_metadata_pb2.GetModelMetadataRequest
) -> get_model_metadata_pb2.GetModelMetadataResponse:
    """Answers a GetModelMetadata request: the signatures of a model.

    Raises:
        StatusError: the request cannot be answered.
    """
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")
    if not request.metadata_field:
        raise invalid_argument("GetModelMetadataRequest must specify at least one metadata_field")
    for field in request.metadata_field:
        if field != "signature_def":
            raise invalid_argument("Metadata field ", field, " is not supported")
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    signatures = get_model_metadata_pb2.SignatureDefMap()
    with manager.use(request.model_spec) as servable:
        for name, signature in servable.runner.signature_defs.items():
            signatures.signature_def[name].CopyFrom(signature)
        fill_spec(response.model_spec, servable)
    response.metadata["signature_def"].Pack(signatures)
    return response


def get_model_status(
    manager: ModelManager, request: get_model_status_pb2.GetModelStatusRequest
) -> get_model_status_pb2.GetModelStatusResponse:
    """Answers a GetModelStatus request: the state of a model's versions.

    Raises:
        StatusError: the request cannot be answered.
    """
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")
    response = get_model_status_pb2.GetModelStatusResponse()
    for version, state, error in manager.states(request.model_spec):
        status = response.model_version_status.add(version=version, state=state)
        status.status.SetInParent()
        if error is not None:
            status.status.error_code = error.code.value[0]
            status.status.error_message = error.message
    return response
