"""tensorflow-recommenders, beside a `tf.keras` that is Keras 3."""

from __future__ import annotations

import threading
from typing import Any

_importing = threading.Lock()


def import_recommenders() -> tuple[Any, Any]:
    """Returns tensorflow-recommenders and Keras 2.

    It refuses to be imported, and derives its layers from `tf.keras`, unless that is Keras 2;
    the task that we call asks for no `tf.keras` later. So `tf.keras` is Keras 2 only while it is
    imported, whatever it was before and is again after.
    """
    import tensorflow as tf
    import tf_keras

    with _importing:
        users = vars(tf)["keras"]  # not `tf.keras`, which would load it
        tf.keras = tf_keras
        try:
            import tensorflow_recommenders as tfrs
        finally:
            tf.keras = users
    return tfrs, tf_keras
