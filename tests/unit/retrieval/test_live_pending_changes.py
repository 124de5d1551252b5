import numpy as np

from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.live.pending_changes import Overlay
from tfde.retrieval.live.snapshot import Base


def test_a_view_stays_what_it_was():
    generator = np.random.default_rng(0)
    vectors = {f"d{i}": generator.standard_normal(3).astype(np.float32) for i in range(50)}
    index = ExactIndex.build(np.stack(list(vectors.values())), list(vectors))
    overlay = Overlay(Base(index, 1, "", 0))
    views = []
    for step in range(300):  # more than the room at the start, most of it replaced again
        some = [f"d{i}" for i in generator.permutation(80)[:5]]
        for doc_id in some:
            vectors.pop(doc_id, None)
        if step % 3 == 0:
            overlay.remove(some)
        else:
            new = generator.standard_normal((5, 3)).astype(np.float32)
            overlay.put(some, new)
            vectors.update(zip(some, new, strict=True))
        assert [f"d{i}" in overlay for i in range(80)] == [f"d{i}" in vectors for i in range(80)]
        views.append((overlay.view(step), dict(vectors)))
    query = np.ones((1, 3), np.float32)
    for step, (view, then) in enumerate(views):
        assert (view.sequence, view.num_documents) == (step, len(then))
        assert view.doc_ids().tolist() == list(then)
        np.testing.assert_array_equal(view.vectors(), np.stack(list(then.values())))
        scores, doc_ids = view.search(query, 100)
        assert sorted(doc_ids[0]) == sorted(then)
        expected = [then[doc_id].sum() for doc_id in doc_ids[0]]
        np.testing.assert_allclose(scores[0], expected, rtol=1e-5, atol=1e-6)
