"""What a served live index refuses."""

import numpy as np
import pytest

from tfde.config.model import ParentConfig
from tfde.errors import ConfigError, DataError
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.live.live_index import LiveIndex
from tfde.serving.application.live_search import LiveSearchService
from tfde.serving.server.metrics import Metrics
from tfde.serving.server.service import InferenceService
from tfde.types import Document


def test_documents_without_a_share_do_not_come_among_those_with_one(tmp_path):
    vectors = np.eye(3, dtype=np.float32)
    ids = np.array(["p.1", "p.2", "q.1"], object)
    ExactIndex([vectors], ids, fingerprint="f", parents=ParentConfig(0.5)).save(tmp_path / "i")
    with LiveIndex.open(tmp_path / "i", write=True) as index:
        service = LiveSearchService(
            InferenceService(None, Metrics()), index, fingerprint="f", version=1
        )
        with pytest.raises(
            ConfigError, match=r"share of their parents' embeddings.*tfde index add"
        ):
            service.add([Document("p.3", "", "text")])
        assert service.delete(["p.2"]).deleted == ["p.2"]


def test_a_context_may_be_absent_where_the_model_has_something_in_its_place(tmp_path):
    vectors, ids = np.eye(2, dtype=np.float32), np.array(["a", "b"], object)
    ExactIndex([vectors], ids, fingerprint="f").save(tmp_path / "i")
    server = InferenceService(None, Metrics())
    documents = [Document("p", "", "x"), Document("q", "", "y", {"context": "x y"})]
    with LiveIndex.open(tmp_path / "i") as index:
        options = {"fingerprint": "f", "version": 1}
        service = LiveSearchService(server, index, needs_context=False, **options)
        assert service._column("context", documents).tolist() == [b"", b"x y"]
        service = LiveSearchService(server, index, **options)
        with pytest.raises(DataError, match="a document must have a context"):
            service._column("context", documents)
