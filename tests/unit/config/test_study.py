"""A study that is impossible is refused with the value that is wrong."""

import pytest

from tfde.config.study import EvaluationConfig, StudyConfig, VocabularyConfig
from tfde.errors import ConfigError

AXES = {"size": {"small": {}, "large": {}}, "labels": {"1%": {}, "80%": {}}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"axes": {}}, r"`axes` must be not empty\. Received: \{\}"),
        ({"axes": {"size": {}}}, r"`axes\.size` must be not empty\. Received: \{\}"),
        ({"axes": {"seed": {"1": {}}}}, r"`axes` must be named otherwise\. Received: 'seed'"),
        (
            {"axes": {"size": {"small": {"modle": {}}}}},
            r"`axes\.size\.small` must be one of model, stages, .*evaluate\. Received: 'modle'",
        ),
        ({"axes": {"size": {"small": 3}}}, r"`axes\.size\.small` must be a mapping\. Received: 3"),
        ({"base": {"seed": 1}}, r"`base` must be one of model, stages, .*\. Received: 'seed'"),
        ({"seeds": ()}, r"`seeds` must be a list of whole numbers from 0\. Received: \(\)"),
        ({"seeds": (-1,)}, r"`seeds` must be a list of whole numbers from 0\. Received: \(-1,\)"),
        (
            {"cells": ({"seeds": 3},)},
            r"`cells\[0\]\.seeds` must be a list of whole numbers from 0\. Received: 3",
        ),
        (
            {"cells": ({}, {"colour": "red"})},
            r"`cells\[1\]` must be one of size, labels\. Received: 'colour'",
        ),
        (
            {"cells": ({"size": ["small", "huge"]},)},
            r"`cells\[0\]\.size` must be one of small, large\. Received: 'huge'",
        ),
        ({"exclude": ({},)}, r"`exclude\[0\]` must be not empty\. Received: \{\}"),
        (
            {"exclude": ({"labels": "2%"},)},
            r"`exclude\[0\]\.labels` must be one of 1%, 80%\. Received: '2%'",
        ),
    ],
)
def test_a_wrong_key_is_named(fields, message):
    with pytest.raises(ConfigError, match=message):
        StudyConfig(**{"base": {}, "axes": AXES, **fields})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: EvaluationConfig("d", measures=()),
            r"`evaluate\.measures` must be not empty\. Received: \(\)",
        ),
        (
            lambda: EvaluationConfig("d", max_queries=0),
            r"`evaluate\.max_queries` must be at least 1\. Received: 0",
        ),
        (
            lambda: EvaluationConfig("d", sample_seed=-1),
            r"`evaluate\.sample_seed` must be at least 0\. Received: -1",
        ),
        (
            lambda: EvaluationConfig("d", batch_size=0),
            r"`evaluate\.batch_size` must be at least 1\. Received: 0",
        ),
        (
            lambda: VocabularyConfig("pages.jsonl", size=3),
            r"`vocabulary\.size` must be at least 4\. Received: 3",
        ),
    ],
)
def test_impossible_values(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
