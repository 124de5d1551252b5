"""What a pair's logits must be: the task's loss, and the loss of a teacher's logits."""

from __future__ import annotations

from typing import get_args

import tensorflow as tf

from tfde.config.matching import LogitLoss, Objective
from tfde.errors import require


@tf.autograph.experimental.do_not_convert  # which knows no `match`
def task_loss(
    objective: Objective, logits: tf.Tensor, labels: tf.Tensor, *, group_size: int = 1
) -> tf.Tensor:
    """Returns the loss of each pair, (B,), or of each group of pairs, (B / G,), float32.

    Args:
        objective: `classification`: softmax cross-entropy over N labels; `binary`: of one logit's
            sigmoid; `regression`: squared error; `ranking`: softmax over a group of pairs with one
            first text, of which the first one is the right one.
        logits: (B, N) float32; N = 1 but for classification.
        labels: (B,) float32; the number of the label where there are several.
        group_size: G of `ranking`.
    """
    match objective:
        case "classification":
            numbers = tf.cast(labels, tf.int32)
            return tf.nn.sparse_softmax_cross_entropy_with_logits(numbers, logits)
        case "binary":
            return tf.nn.sigmoid_cross_entropy_with_logits(labels, logits[:, 0])
        case "regression":
            return tf.square(logits[:, 0] - labels)
        case _:
            return -tf.nn.log_softmax(_groups(logits, group_size))[:, 0]


def logit_loss(
    kind: LogitLoss,
    objective: Objective,
    logits: tf.Tensor,
    teacher_logits: tf.Tensor,
    *,
    temperature: float = 1.0,
    group_size: int = 1,
) -> tf.Tensor:
    """Returns how far the logits are from a teacher's, of each pair or group, float32.

    Args:
        kind: `kl`: Kullback-Leibler divergence of the teacher's labels (classification, binary) or
            of its choice within a group (ranking), at a temperature, times its square; `mse`:
            squared error of the logits; `margin_mse`: of the differences between the right one of
            a group and each other.
        objective: What the logits stand for.
        logits: (B, N).
        teacher_logits: (B, N), whose gradient is stopped.
        temperature: Divides the logits for `kl`.
        group_size: G of `ranking`.

    Source: Hinton et al. 2015, section 2; Hofstätter et al. 2020, section 3 (margins).
    """
    teacher_logits = tf.stop_gradient(teacher_logits)
    if objective == "ranking":
        logits, teacher_logits = _groups(logits, group_size), _groups(teacher_logits, group_size)
    if kind == "margin_mse":
        margins = logits[:, :1] - logits[:, 1:]
        wanted = teacher_logits[:, :1] - teacher_logits[:, 1:]
        return tf.reduce_mean(tf.square(margins - wanted), axis=1)
    if kind == "mse":
        return tf.reduce_mean(tf.square(logits - teacher_logits), axis=1)
    if logits.shape[-1] == 1:  # one logit's sigmoid is the softmax beside a zero
        logits, teacher_logits = (
            tf.concat([x, tf.zeros_like(x)], axis=1) for x in (logits, teacher_logits)
        )
    wanted = tf.nn.log_softmax(teacher_logits / temperature)
    found = tf.nn.log_softmax(logits / temperature)
    return temperature**2 * tf.reduce_sum(tf.exp(wanted) * (wanted - found), axis=1)


def check_objective(
    objective: Objective, *, num_labels: int, group_size: int, kind: LogitLoss | None
) -> None:
    """Refuses what contradicts itself.

    Raises:
        ConfigError: an unknown name; several labels without classification, or one with it; a
            group where nothing is ranked; a loss that the objective does not have.
    """
    known = get_args(Objective)
    require(objective in known, "objective", f"one of {', '.join(known)}", objective)
    several = objective == "classification"
    rule = "at least 2 with classification" if several else f"1 with {objective}"
    require((num_labels > 1) == several, "num_labels", rule, num_labels)
    ranks = objective == "ranking"
    rule = "at least 2 with ranking" if ranks else f"1 with {objective}"
    require((group_size > 1) == ranks, "group_size", rule, group_size)
    if kind is None:
        return
    kinds = get_args(LogitLoss)
    require(kind in kinds, "logit_loss", f"one of {', '.join(kinds)}", kind)
    if kind == "margin_mse":
        require(ranks, "logit_loss", "kl or mse where nothing is ranked", kind)
    if kind == "kl":
        require(objective != "regression", "logit_loss", "mse with regression", kind)


def _groups(logits: tf.Tensor, group_size: int) -> tf.Tensor:
    return tf.reshape(logits, (-1, group_size))
