"""A small model, its indexes, the bundle of both and a server of that."""

import pytest
from bundle_server import DOCUMENTS, QUERIES, BundleServer

from tfde.config.backbones import T5Config
from tfde.config.model import TextConfig
from tfde.export.bundle import export_bundle
from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.scann_index import ScannIndex
from tfde.retrieval.scann_parameters import ScannParameters
from tfde.tasks.matryoshka import MatryoshkaTask
from tfde.tasks.retrieval_task import RetrievalTask
from tfde.text.sentence_piece.tokenizer import SentencePieceTokenizer
from tfde.text.sentence_piece.train import train_sentencepiece
from tfde.towers.dual_encoder import DualEncoder
from tfde.types import Document, Query


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "spiece.model"
    train_sentencepiece((document.text for document in DOCUMENTS), path, vocabulary_size=50)
    backbone = T5Config(
        vocabulary_size=120, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=12,
        key_value_dim=3, relative_buckets=8, relative_max_distance=16, dropout=0.1,
    )  # fmt: skip
    model = DualEncoder.from_backbone(
        backbone,
        sharing="ade_spl",
        tokenizer=SentencePieceTokenizer.from_file(path),
        text=TextConfig(query_max_length_tokens=12, document_max_length_tokens=16),
        embedding_dim=6,
        seed=3,
    )
    model.note_task(MatryoshkaTask(RetrievalTask(), (3, 6)))
    return model


@pytest.fixture(scope="session")
def index(model):
    embeddings = model.encode_documents(DOCUMENTS)
    return ScannIndex.build(
        embeddings,
        [document.doc_id for document in DOCUMENTS],
        fingerprint=model.fingerprint(),
        # All leaves, and all scores computed again: at a boundary between leaves the rounding of
        # a random model's embeddings would decide which documents are seen at all.
        parameters=ScannParameters(kind="tree", num_leaves=8, num_leaves_to_search=8, reorder=150),
    )


@pytest.fixture(scope="session")
def exact(model, index):
    return ExactIndex.build(index.vectors(), list(index.doc_ids), fingerprint=model.fingerprint())


@pytest.fixture(scope="session")
def bundle(model, index, tmp_path_factory):
    return export_bundle(
        model,
        index,
        tmp_path_factory.mktemp("out") / "bundle",
        documents=[*DOCUMENTS, Document("other", "not", "in the index")],
        golden_queries=[Query("q", "green red"), *QUERIES[1:]],
        measures={"P@1": 0.5},
    )


@pytest.fixture(scope="module")  # its batching threads wake a thousand times a second
def server(bundle):
    server = BundleServer(bundle)
    yield server
    server.process.terminate()
    assert server.process.wait(30) == 0
