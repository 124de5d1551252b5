"""Real weights and texts: other engines give TensorFlow's embeddings."""

import numpy as np
import pytest

from tfde.config.engines import ENGINES
from tfde.towers.dual_encoder import DualEncoder

PARAGRAPH = (
    "Saturn is the sixth planet from the Sun and the second largest in the Solar System, after"
    " Jupiter. It is a gas giant, with an average radius of about nine times that of Earth. "
)
TEXTS = [
    "who wrote hamlet?",
    "",
    "ﬁ … İstanbul 東京 don't",
    PARAGRAPH,
    PARAGRAPH * 12,  # cut
]


@pytest.mark.peers
@pytest.mark.parametrize("engine", ENGINES)
def test_all_minilm(engine, minilm):
    model = DualEncoder.load(minilm)
    batches = [*([text] for text in TEXTS), (TEXTS * 7)[:32]]
    expected = [model.encode_documents(texts) for texts in batches]
    model.set_engine(engine)
    for texts, embeddings in zip(batches, expected, strict=True):
        found = model.encode_documents(texts)
        np.testing.assert_allclose(found, embeddings, atol=1e-5)
