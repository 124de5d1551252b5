"""The indexes that index_peers.py compares: one built, saved, loaded, configured and asked like
the other.

All score by inner product, which orders unit vectors as L2 does, and all keep the float32 vectors:
a graph walks on them, codes are scored again with them. As their documentation recommends:

- HNSW (faiss, hnswlib): M = 32, of 16 to 64 the value for vectors of some hundred dimensions and
  high recall (16 saves memory, and needs a larger ef), efConstruction = 200; ef is chosen.
- IVF-PQ fast-scan (faiss): the power of 2 nearest to 4 sqrt(N) lists, 4-bit codes of 2 dimensions
  as ScaNN's, trained on what faiss draws by itself (256 vectors a list at most), re-ranked with
  `IndexRefineFlat`; nprobe and k_factor are chosen.
- ScaNN: as `tfde build-index --target_recall` builds and configures it.

Each library is imported where it is used: no environment needs all of them.
"""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from index_measures import Engine, Way, least, recall

M, EF_CONSTRUCTION, MOST_EF = 32, 200, 8192
# Re-ranked candidates in multiples of k, as tfde's own search for a target recall tries them.
K_FACTORS = (1, 2, 3, 5, 10, 20, 50, 100)


class Scann:
    """tfde's index as `tfde build-index --target_recall` makes it."""

    def __init__(self) -> None:
        from tfde.retrieval import scann_index, tune_scann
        from tfde.retrieval.scann_parameters import ScannParameters

        scann_index._pybind()  # and TensorFlow with it, now: it is not of the index's memory
        self._class, self._tune = scann_index.ScannIndex, tune_scann.tune_scann
        self._parameters = ScannParameters()

    def build(self, vectors: np.ndarray) -> str:
        ids = [f"d{row}" for row in range(len(vectors))]
        parameters = self._parameters.to_be_tuned(len(vectors))
        self._index = self._class.build(vectors, ids, parameters=parameters)
        return str(self._index.parameters)

    def save(self, path: Path) -> None:
        self._index.save(path, overwrite=True)

    def load(self, path: Path) -> None:
        self._index = self._class.load(path)

    def kind(self) -> str:
        return self._index.parameters.kind

    def vectors(self) -> np.ndarray:
        return self._index.vectors()

    def id_bytes(self) -> int:
        ids = self._index.doc_ids
        return ids.nbytes + sum(map(sys.getsizeof, ids))

    def ways(self, queries: np.ndarray, wanted: np.ndarray, target: float, k: int) -> list[Way]:
        """Returns the one that tune_scann chooses; it asks one query at a time."""
        from tfde.errors import ConfigError

        parameters = self._index.parameters
        if parameters.kind == "exact":
            return [Way({}, recall(self.search(queries, k), wanted))]
        try:
            # It measures on every second query; those that choose are to be all of them.
            tuning = self._tune(
                self._index, np.repeat(queries, 2, axis=0), target_recall=target, k=k
            )
        except ConfigError:
            setting = {"num_leaves_to_search": parameters.num_leaves, "reorder": 100 * k}
            self.configure(setting)
            return [Way(setting, recall(self.search(queries, k), wanted))]
        chosen = tuning.parameters
        setting = {name: getattr(chosen, name) for name in ("num_leaves_to_search", "reorder")}
        return [Way(setting, tuning.trials[0].recall)]

    def configure(self, setting: dict[str, int]) -> None:
        parameters = dataclasses.replace(self._index.parameters, **setting)
        self._index = self._index.searched_as(parameters)

    def use_threads(self, count: int) -> None:
        """Has no say: calls below 512 queries use one thread, others one for each core."""

    def search(self, queries: np.ndarray, k: int) -> np.ndarray:
        return self._index.search_positions(queries, k)[1]


class Faiss:
    """HNSW, or IVF-PQ fast-scan with re-ranking."""

    def __init__(self, kind: str) -> None:
        import faiss

        self._faiss, self._hnsw = faiss, kind == "hnsw"

    def build(self, vectors: np.ndarray) -> str:
        rows, dim = vectors.shape
        lists = 2 ** round(np.log2(4 * rows**0.5))
        how = f"HNSW{M},Flat" if self._hnsw else f"IVF{lists},PQ{dim // 2}x4fs,RFlat"
        self._index = self._faiss.index_factory(dim, how, self._faiss.METRIC_INNER_PRODUCT)
        if self._hnsw:
            self._index.hnsw.efConstruction = EF_CONSTRUCTION
            how += f", efConstruction={EF_CONSTRUCTION}"
        self._index.train(vectors)
        self._index.add(vectors)
        return how

    def save(self, path: Path) -> None:
        self._faiss.write_index(self._index, str(path))

    def load(self, path: Path) -> None:
        self._index = self._faiss.read_index(str(path))

    def id_bytes(self) -> int:
        return 0

    def ways(self, queries: np.ndarray, wanted: np.ndarray, target: float, k: int) -> list[Way]:
        if self._hnsw:
            return [_least_way(self, "efSearch", (k, MOST_EF), {}, queries, wanted, target)]
        bounds = (1, self._ivf().nlist)
        return [
            _least_way(self, "nprobe", bounds, {"k_factor": factor}, queries, wanted, target)
            for factor in K_FACTORS
        ]

    def configure(self, setting: dict[str, int]) -> None:
        if self._hnsw:
            self._index.hnsw.efSearch = setting["efSearch"]
        else:
            self._ivf().nprobe = setting["nprobe"]
            self._index.k_factor = setting["k_factor"]

    def use_threads(self, count: int) -> None:
        self._faiss.omp_set_num_threads(count)  # of OpenMP, which keeps it for each thread

    def search(self, queries: np.ndarray, k: int) -> np.ndarray:
        return self._index.search(queries, k)[1]

    def _ivf(self):
        return self._faiss.downcast_index(self._index.base_index)


class TfdeFaiss(Faiss):
    """tfde's index as `tfde build-index --engine faiss` makes it of many vectors."""

    def __init__(self) -> None:
        super().__init__("hnsw")
        from tfde.retrieval.faiss_index import FaissIndex, FaissParameters

        self._class, self._parameters = FaissIndex, FaissParameters(f"HNSW{M}")

    def build(self, vectors: np.ndarray) -> str:
        ids = [f"d{row}" for row in range(len(vectors))]
        self._own = self._class.build(vectors, ids, parameters=self._parameters)
        self._index = self._own._structure
        return str(self._own)

    def save(self, path: Path) -> None:
        self._own.save(path, overwrite=True)

    def load(self, path: Path) -> None:
        self._own = self._class.load(path)
        self._index = self._own._structure

    def id_bytes(self) -> int:
        ids = self._own.doc_ids
        return ids.nbytes + sum(map(sys.getsizeof, ids))

    def search(self, queries: np.ndarray, k: int) -> np.ndarray:
        return self._own.search_positions(queries, k)[1]


class Hnswlib:
    """HNSW."""

    def __init__(self) -> None:
        import hnswlib

        self._new, self._threads = hnswlib.Index, -1

    def build(self, vectors: np.ndarray) -> str:
        rows, dim = vectors.shape
        self._index = self._new("ip", dim)
        self._index.init_index(rows, M=M, ef_construction=EF_CONSTRUCTION)
        self._index.add_items(vectors)
        return f"HNSW, M={M}, ef_construction={EF_CONSTRUCTION}"

    def save(self, path: Path) -> None:
        self._index.save_index(str(path))
        path.with_suffix(".dim").write_text(str(self._index.dim))  # which the file does not say

    def load(self, path: Path) -> None:
        self._index = self._new("ip", int(path.with_suffix(".dim").read_text()))
        self._index.load_index(str(path))

    def id_bytes(self) -> int:
        return 0

    def ways(self, queries: np.ndarray, wanted: np.ndarray, target: float, k: int) -> list[Way]:
        return [_least_way(self, "ef", (k, MOST_EF), {}, queries, wanted, target)]

    def configure(self, setting: dict[str, int]) -> None:
        self._index.set_ef(setting["ef"])

    def use_threads(self, count: int) -> None:
        self._threads = count

    def search(self, queries: np.ndarray, k: int) -> np.ndarray:
        return self._index.knn_query(queries, k, num_threads=self._threads)[0].astype(np.int64)


ENGINES: dict[str, Callable[[], Engine]] = {
    "scann": Scann,
    "tfde_faiss_hnsw": TfdeFaiss,
    "faiss_hnsw": lambda: Faiss("hnsw"),
    "hnswlib": Hnswlib,
    "faiss_ivf_pq": lambda: Faiss("ivf_pq"),
}


def _least_way(
    engine: Engine,
    name: str,
    bounds: tuple[int, int],
    others: dict[str, int],
    queries: np.ndarray,
    wanted: np.ndarray,
    target: float,
) -> Way:
    known: dict[int, float] = {}

    def reached(value: int) -> float:
        engine.configure({name: value, **others})
        known[value] = recall(engine.search(queries, wanted.shape[1]), wanted)
        return known[value]

    value = least(reached, target, bounds) or bounds[1]
    return Way({name: value, **others}, known[value])
