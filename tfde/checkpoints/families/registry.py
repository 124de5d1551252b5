"""Every family of models that can be read, and every backbone that can be written."""

from __future__ import annotations

from tfde.checkpoints.families.bert import BERT_FAMILIES, write_bert_config
from tfde.checkpoints.families.bert_keras_hub import BERT_KERAS_HUB_FAMILIES
from tfde.checkpoints.families.family import HuggingFaceFamily, KerasHubFamily, WriteConfig
from tfde.checkpoints.families.t5 import T5_FAMILY, T5_KERAS_HUB_FAMILY, write_t5_config
from tfde.config.backbones import BackboneConfig, BertConfig, T5Config

# By `model_type` in a `config.json` of Hugging Face.
FAMILIES: dict[str, HuggingFaceFamily] = {**BERT_FAMILIES, "t5": T5_FAMILY, "mt5": T5_FAMILY}
# By `class_name` in a `config.json` of keras-hub.
KERAS_HUB_FAMILIES: dict[str, KerasHubFamily] = {
    **BERT_KERAS_HUB_FAMILIES,
    "T5Backbone": T5_KERAS_HUB_FAMILY,
}
# By our description; one that is not here cannot be written for transformers.
WRITERS: dict[type[BackboneConfig], WriteConfig] = {
    BertConfig: write_bert_config,
    T5Config: write_t5_config,
}
