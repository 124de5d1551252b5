"""What `fit` and `evaluate` take as pairs, and which batches of them make an epoch."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfde.config.model import DOCUMENT_FIELDS
from tfde.data.frames import names_of_places
from tfde.data.pairs.batches import PairBatches
from tfde.data.pairs.dataset import PairDataset
from tfde.data.pairs.read_pairs import read_pairs
from tfde.errors import ConfigError, require
from tfde.towers.fit_loop import endless
from tfde.towers.input_failures import told
from tfde.towers.pair_order import Order
from tfde.towers.string_batches import kinds_of_columns, streamed_strings

_BATCH_SIZE = 32  # Keras' own
# Texts have no ids here: equal texts have equal keys, of which 0 means "none".
_KEYS = (1 << 63) - 2
_WIDTHS = [1 << power for power in range(31)]


def training_batches(
    x: Any, *, batch_size: int | None, shuffle: bool = True, replicas: int, order: Order
) -> PairBatches | tf.data.Dataset:
    """Returns batches of pairs to train on, whatever they come as.

    Args:
        x: `tfde.pairs(...)`; a `tf.data.Dataset` of `(query, document, negative, ...)` strings, of
            dicts of strings as `kinds_of_columns` knows them, one pair or a batch of pairs an
            element, or of batches as `PairBatches` says; a `keras.utils.PyDataset` or a generator
            of such batches; `(queries, documents)`, two lists or arrays, or a dict of such; else
            what `tfde.pairs` takes: a list of pairs, a frame, a dataset directory, a pair file.
            Given negatives are all taken.
        batch_size: Pairs in a batch, where `x` has none of its own; `None`: 32, or all if they are
            fewer.
        shuffle: Whether pairs in memory, and the batches of a `PyDataset`, get another order in
            each epoch.
        replicas: How many share the rows of a batch, evenly.
        order: That order.

    Raises:
        ConfigError: `x` is none of these; a batch size for what has one; rows that cannot be
            shared out evenly.
    """
    require(batch_size is None or batch_size >= 1, "batch_size", "at least 1", batch_size)
    x, strings = streamed_strings(x, order=order if shuffle else None)
    x = x if strings is None else strings
    require(
        batch_size is None or not _is_batched(x), "batch_size", "None: `x` has its own", batch_size
    )
    if isinstance(x, tf.data.Dataset):
        return _of_strings(x, "x", batch_size=batch_size, drop_remainder=replicas > 1)
    if not isinstance(x, PairBatches):
        table = read_pairs(x, argument="x")
        size = min(batch_size or _BATCH_SIZE, len(table))
        negatives = table.max_negatives
        x = order.of(
            PairDataset(table, batch_size=size, negatives_per_query=negatives, shuffle=shuffle)
        )
    check_rows("x", x.batch_size, x.smallest_batch, replicas)
    return x


def measured_batches(
    x: Any, name: str, *, batch_size: int | None, steps: int | None, replicas: int
) -> tf.data.Dataset:
    """Returns batches of pairs to measure a loss on: all pairs, the last batch perhaps smaller.

    They come in the order of the data. Of a shuffled `tfde.pairs(...)` whose last batch replicas
    cannot share, those of full batches come.

    Args:
        x: As in `training_batches`, but no file or directory, whose split would be a guess.
        name: The argument that it is.
        batch_size: Where `x` has none of its own.
        steps: Batches to take; `None` for all.
        replicas: As in `training_batches`.

    Raises:
        ConfigError: as `training_batches`; all batches of what never ends; no batch at all.
    """
    require(steps is None or steps >= 1, "steps", "at least 1", steps)
    rule = "pairs, such as tfde.pairs(PATH, split=..., batch_size=...)"
    require(not isinstance(x, str | os.PathLike), name, rule, x)
    given, (x, strings) = x, streamed_strings(x)
    if strings is not None:
        again = isinstance(given, keras.utils.PyDataset) or name != "validation_data"
        require(again, name, "what can be read again: a list, a dataset", given)
        x = strings
    size = None if _is_batched(x) else batch_size
    if not isinstance(x, tf.data.Dataset | PairBatches):
        table = read_pairs(x, argument=name)
        size = min(size or _BATCH_SIZE, len(table))
        x = PairDataset(
            table, batch_size=size, negatives_per_query=table.max_negatives, shuffle=False
        )
    if isinstance(x, PairDataset) and (whole := x.in_order()).smallest_batch % replicas == 0:
        x = whole
    if isinstance(x, PairBatches):
        check_rows(name, x.batch_size, x.smallest_batch, replicas)
        return x.dataset(steps=steps or x.steps_per_epoch)
    x = _of_strings(x, name, batch_size=size, drop_remainder=replicas > 1)
    known = int(x.cardinality())
    endless_rule = "a dataset that ends, or one with a number of steps"
    require(steps is not None or known != tf.data.INFINITE_CARDINALITY, name, endless_rule, x)
    require(known != 0, name, "one or more batches", x)
    return x if steps is None else x.take(steps)


def texts_of_pairs(
    x: Any, *, steps: int | None, batch_size: int
) -> tuple[list[bytes], list[dict[str, bytes]]]:
    """Returns the queries, and the documents, of pairs as `measured_batches` takes them."""
    batches = measured_batches(x, "x", batch_size=batch_size, steps=steps, replicas=1)
    queries: list[bytes] = []
    documents: list[dict[str, bytes]] = []
    with told():
        for batch in batches.as_numpy_iterator():
            queries += list(batch["query"])
            fields = [name for name in DOCUMENT_FIELDS if f"document_{name}" in batch]
            texts = zip(*(batch[f"document_{name}"] for name in fields), strict=True)
            documents += [dict(zip(fields, row, strict=True)) for row in texts]
    return queries, documents


def _is_batched(x: Any) -> bool:
    """Whether `x` has a batch size of its own."""
    if isinstance(x, PairBatches):
        return True
    parts = tf.nest.flatten(x.element_spec) if isinstance(x, tf.data.Dataset) else []
    return bool(parts) and all(_rank(part) != 0 for part in parts)


def _rank(spec: Any) -> int | None:
    rank: int | None = getattr(spec, "shape", tf.TensorShape(None)).rank
    return rank


def _of_strings(
    x: tf.data.Dataset, name: str, *, batch_size: int | None, drop_remainder: bool
) -> tf.data.Dataset:
    spec = x.element_spec
    if isinstance(spec, Mapping) and "document_key" in spec:
        return x
    if isinstance(spec, tuple) and len(spec) >= 2:
        names = names_of_places(len(spec))
        x = x.map(lambda *parts: dict(zip(names, parts, strict=True)))
        spec = x.element_spec
    parts = spec if isinstance(spec, Mapping) else {}
    kinds = kinds_of_columns(name, parts) if parts else {}
    rank = next((_rank(parts[name]) for name, kind in kinds.items() if kind == "query"), None)
    ranks = {
        _rank(part) == rank or (kinds[column] == "negatives" and _rank(part) == rank + 1)
        for column, part in parts.items()
        if rank is not None
    }
    strings = all(getattr(part, "dtype", None) == tf.string for part in parts.values())
    if rank not in (0, 1) or ranks != {True} or not strings:
        raise ConfigError(
            f"`{name}` must be a dataset of (query, document, negative, ...) strings, or of dicts"
            f" of strings, single or in batches. Received: {spec}"
        )
    x = x.map(functools.partial(_by_kind, kinds=kinds))
    if rank == 0:
        # Of rows that have not all as many negatives, the others' places are "".
        x = x.padded_batch(batch_size or _BATCH_SIZE, drop_remainder=drop_remainder)
    return x.map(_keyed, num_parallel_calls=tf.data.AUTOTUNE)


def _by_kind(columns: Mapping[str, Any], *, kinds: Mapping[str, str]) -> dict[str, tf.Tensor]:
    """Returns columns by their kinds, all negatives of a row in its last axis."""
    query = next(columns[name] for name, kind in kinds.items() if kind == "query")
    found = {kind: columns[name] for name, kind in kinds.items() if kind != "negatives"}
    negatives = [
        part if part.shape.rank > query.shape.rank else part[..., tf.newaxis]
        for part in (
            part.to_tensor("") if isinstance(part, tf.RaggedTensor) else part
            for part in (columns[name] for name, kind in kinds.items() if kind == "negatives")
        )
    ]
    return found | ({"negatives": tf.concat(negatives, axis=-1)} if negatives else {})


def _keyed(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns strings as a batch of `PairBatches`; a negative "" is none.

    How often a document stands in the data, `document_probability`, is not known.
    """
    rows = tf.shape(batch["query"])[0]
    titles = batch.get("title", tf.fill([rows], ""))
    contexts = [batch[name] for name in ("context",) if name in batch]
    keys = tf.strings.to_hash_bucket_fast(
        tf.strings.join([titles, batch["document"], *contexts], separator="\0"), _KEYS
    )
    negatives = batch.get("negatives", tf.zeros([rows, 0], tf.string))
    given = tf.strings.length(tf.strings.strip(negatives)) > 0
    negatives = tf.where(given, negatives, "")
    untitled = tf.zeros_like(negatives)
    negative_keys = 1 + tf.strings.to_hash_bucket_fast(
        tf.strings.join([untitled, negatives], separator="\0"), _KEYS
    )
    keyed = {
        "query": batch["query"],
        "document_title": titles,
        "document_text": batch["document"],
        "document_key": keys + 1,
        "positive_keys": _known_positives(batch["query"], keys + 1),
        "negative_title": untitled,
        "negative_text": negatives,
        "negative_key": tf.where(given, negative_keys, 0),
        "negative_margin": tf.fill(tf.shape(negatives), float("nan")),
    }
    if contexts:
        keyed |= {"document_context": contexts[0], "negative_context": untitled}
    return keyed


def _known_positives(queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Returns for each query the keys of the documents it has in a batch, (B, P) int64, 0 = none.

    P is a power of two, as `padded_width` has it.
    """
    _, same = tf.unique(tf.strings.to_hash_bucket_fast(queries, _KEYS))
    order = tf.argsort(same, stable=True)
    groups = tf.RaggedTensor.from_value_rowids(tf.gather(keys, order), tf.gather(same, order))
    found = groups.to_tensor()
    count = tf.shape(found)[1]
    width = tf.gather(_WIDTHS, tf.searchsorted(_WIDTHS, count[tf.newaxis])[0])
    return tf.gather(tf.pad(found, [[0, 0], [0, width - count]]), same)


class Plan(NamedTuple):
    """The batches of a `fit`: one iterator through all, `steps` an epoch (`None`: whole passes).

    `batches` takes an epoch and how many of its batches are done, and gives those that follow.
    """

    batches: Callable[[int, int], tf.data.Dataset]
    epochs: int
    initial_epoch: int
    steps: int | None


def plan_fit(
    x: PairBatches | tf.data.Dataset,
    order: Order,
    *,
    epochs: int,
    initial_epoch: int,
    steps_per_epoch: int | None,
    steps: int | None,
    initial_step: int,
) -> Plan:
    """Returns which batches `fit` takes; the other arguments are those of `fit`.

    Args:
        x: Of `training_batches`.
        order: As there.

    Raises:
        ConfigError: there is nothing left to train, or `steps` beside arguments of epochs.
    """
    rule = f"1 with `steps`, {steps}, which takes its place"
    require(steps is None or epochs == 1, "epochs", rule, epochs)
    by_steps = steps is not None or initial_step != 0
    if by_steps and (steps_per_epoch is not None or initial_epoch):
        raise ConfigError(
            "`steps` and `initial_step` count from the beginning of the data: give them, or"
            " `steps_per_epoch` and `initial_epoch`, but not both."
        )
    known = not isinstance(x, tf.data.Dataset)
    if by_steps:
        whole = epochs * x.steps_per_epoch if known else 0
        total = whole if steps is None else steps
        rule = f"below the {total} steps to train" if known else f"below `steps`, {steps}"
        require(0 <= initial_step < total, "initial_step", rule, initial_step)
        return Plan(lambda epoch, done: _from(x, initial_step + done), 1, 0, total - initial_step)
    require(
        0 <= initial_epoch < epochs, "initial_epoch", f"below `epochs`, {epochs}", initial_epoch
    )
    if steps_per_epoch is None and known:
        steps_per_epoch = x.steps_per_epoch
    if steps_per_epoch is None:

        def one_pass(epoch: int, done: int) -> tf.data.Dataset:
            order.begin(epoch)
            return _from(x, done, again=False)

        return Plan(one_pass, epochs, initial_epoch, None)
    each = steps_per_epoch
    require(each >= 1, "steps_per_epoch", "at least 1", each)
    return Plan(lambda epoch, done: _from(x, epoch * each + done), epochs, initial_epoch, each)


def _from(x: PairBatches | tf.data.Dataset, step: int, *, again: bool = True) -> tf.data.Dataset:
    """Returns the batches from a step on; where the data ends, it may begin again."""
    if isinstance(x, tf.data.Dataset):
        return (x.repeat() if again else x).skip(step)
    return endless(x.dataset(start_step=step))


def check_rows(
    name: str, batch_size: int, last: int, replicas: int, *, group_size: int = 1
) -> None:
    """Refuses batches whose rows cannot be shared out evenly among replicas.

    Args:
        name: The argument that they come from.
        batch_size: Rows of a batch.
        last: Rows of the last one.
        replicas: How many.
        group_size: So many rows stay together.

    Raises:
        ConfigError: a batch has other rows than a multiple of the replicas.
    """
    groups = f" times the {group_size} pairs of a group" if group_size > 1 else ""
    if any(rows % (replicas * group_size) for rows in (batch_size, last)):
        raise ConfigError(
            f"the rows of each batch of `{name}` must be a multiple of the {replicas}"
            f" replicas{groups}, which share them out evenly. Received: {batch_size} rows"
            + (f", and {last} in the last batch" if last != batch_size else "")
        )
