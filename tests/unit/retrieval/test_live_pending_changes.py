import numpy as np

from tfde.retrieval.exact_index import ExactIndex
from tfde.retrieval.live.pending_changes import PendingChanges
from tfde.retrieval.live.snapshot import Base


def test_a_view_stays_what_it_was():
    generator = np.random.default_rng(0)
    vectors = {f"d{i}": generator.standard_normal(3).astype(np.float32) for i in range(50)}
    index = ExactIndex.build(np.stack(list(vectors.values())), list(vectors))
    pending = PendingChanges(Base(index, 1, "", 0))
    snapshots = []
    for step in range(300):  # more than the room at the start, most of it replaced again
        some = [f"d{i}" for i in generator.permutation(80)[:5]]
        for doc_id in some:
            vectors.pop(doc_id, None)
        if step % 3 == 0:
            pending.remove(some)
        else:
            new = generator.standard_normal((5, 3)).astype(np.float32)
            pending.put(some, new)
            vectors.update(zip(some, new, strict=True))
        assert [f"d{i}" in pending for i in range(80)] == [f"d{i}" in vectors for i in range(80)]
        snapshots.append((pending.snapshot(step), dict(vectors)))
    query = np.ones((1, 3), np.float32)
    for step, (snapshot, then) in enumerate(snapshots):
        assert (snapshot.sequence, snapshot.num_documents) == (step, len(then))
        assert snapshot.doc_ids().tolist() == list(then)
        np.testing.assert_array_equal(snapshot.vectors(), np.stack(list(then.values())))
        scores, doc_ids = snapshot.search(query, 100)
        assert sorted(doc_ids[0]) == sorted(then)
        expected = [then[doc_id].sum() for doc_id in doc_ids[0]]
        np.testing.assert_allclose(scores[0], expected, rtol=1e-5, atol=1e-6)
