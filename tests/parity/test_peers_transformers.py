"""Our T5 and BERT encoders against transformers' (PyTorch), with random small weights."""

import importlib

import numpy as np
import pytest
import tensorflow as tf

from tfde.backbones.backbone import build_backbone
from tfde.checkpoints.loading import load_backbone
from tfde.config.backbones import T5Config

pytestmark = pytest.mark.peers

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [chr(97 + i) for i in range(26)]
LENGTHS = (1, 40, 17)


@pytest.fixture(scope="module")
def peer():
    """The library; imported here, after TensorFlow, and only when a test of this file runs."""
    return importlib.import_module("transformers")


def tokens(lengths=LENGTHS):
    rng = np.random.default_rng(5)
    token_ids = rng.integers(0, len(VOCABULARY), (len(lengths), max(lengths))).astype("int32")
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype("int32")
    return token_ids, mask


def run_theirs(model, token_ids, mask):
    import torch

    ids, mask = torch.tensor(token_ids).long(), torch.tensor(mask).long()
    return model(input_ids=ids, attention_mask=mask).last_hidden_state


def randomize(model):
    """Moves every weight off its initial value: zeros and ones would hide a swapped array."""
    import torch

    torch.manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn(weight.shape))
    return model.eval()


def make_t5(peer, feed_forward, activation):
    sizes = {"num_layers": 2, "num_heads": 3}
    theirs = randomize(
        peer.T5EncoderModel(
            peer.T5Config(
                vocab_size=len(VOCABULARY),
                d_model=8,
                d_kv=5,
                d_ff=12,
                relative_attention_num_buckets=16,
                relative_attention_max_distance=60,
                feed_forward_proj=feed_forward,
                dropout_rate=0.1,
                **sizes,
            )
        )
    )
    ours = build_backbone(
        T5Config(
            vocabulary_size=len(VOCABULARY),
            hidden_dim=8,
            key_value_dim=5,
            intermediate_dim=12,
            relative_buckets=16,
            relative_max_distance=60,
            activation=activation,
            gated=feed_forward.startswith("gated"),
            **sizes,
        )
    )
    copy_t5(theirs, ours)
    return theirs, ours


def copy_t5(theirs, ours):
    """Copies the arrays by the names of the T5 checkpoints; each must be used once."""
    state = {name: weight.detach().numpy() for name, weight in theirs.state_dict().items()}
    state.pop("encoder.embed_tokens.weight", None)  # the same table under another name
    ours.token_embedder.token_table.assign(state.pop("shared.weight"))
    bias = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    ours.encoder.relative_table.assign(state.pop(bias))
    ours.encoder.norm_gamma.assign(state.pop("encoder.final_layer_norm.weight"))
    for i, layer in enumerate(ours.encoder.transformer_layers):
        attention, feed_forward = (f"encoder.block.{i}.layer.{j}" for j in (0, 1))

        def kernels(prefix, names):
            return np.concatenate([state.pop(f"{prefix}.{name}.weight").T for name in names], 1)

        layer.qkv_kernel.assign(kernels(f"{attention}.SelfAttention", "qkv"))
        layer.attention_output_kernel.assign(kernels(f"{attention}.SelfAttention", "o"))
        layer.attention_norm_gamma.assign(state.pop(f"{attention}.layer_norm.weight"))
        inner = ("wi_0", "wi_1") if layer.gated else ("wi",)
        layer.intermediate_kernel.assign(kernels(f"{feed_forward}.DenseReluDense", inner))
        layer.output_kernel.assign(kernels(f"{feed_forward}.DenseReluDense", ("wo",)))
        layer.feedforward_norm_gamma.assign(state.pop(f"{feed_forward}.layer_norm.weight"))
    assert not state


@pytest.mark.parametrize(
    ("feed_forward", "activation"),
    [("gated-gelu", "gelu_tanh"), ("relu", "relu"), ("gated-relu", "relu")],
)
def test_t5_encoder(peer, feed_forward, activation):
    """Version 1.1 (gated tanh GELU), version 1.0 (ReLU); lengths beyond the largest distance."""
    theirs, ours = make_t5(peer, feed_forward, activation)
    token_ids, mask = tokens((1, 150, 70))
    expected = run_theirs(theirs, token_ids, mask).detach().numpy()
    got = ours.encoder(ours.token_embedder(token_ids), mask).numpy()
    real = mask.astype(bool)
    assert np.abs(expected[real]).std() > 0.1
    np.testing.assert_allclose(got[real], expected[real], atol=5e-5)  # float32, values up to 3


@pytest.mark.parametrize("training", [False, True])
def test_t5_gradients(peer, training):
    """Of sum(real outputs * fixed weights), at the embeddings and at the shared position table."""
    theirs, ours = make_t5(peer, "gated-gelu", "gelu_tanh")
    for layer in (ours.token_embedder, ours.encoder, *ours.encoder.transformer_layers):
        layer.dropout = 0.0
    token_ids, mask = tokens()
    weights = np.random.default_rng(1).standard_normal((*token_ids.shape, 8)).astype("float32")
    weights *= mask[:, :, None]
    import torch

    (run_theirs(theirs, token_ids, mask) * torch.tensor(weights)).sum().backward()
    attention = theirs.encoder.block[0].layer[0].SelfAttention
    with tf.GradientTape() as tape:
        x = ours.token_embedder(token_ids, training=training)
        output = ours.encoder(x, mask, training=training)
        loss = tf.reduce_sum(output * weights)
    sources = [ours.token_embedder.token_table.value, ours.encoder.relative_table.value]
    table, positions = map(tf.convert_to_tensor, tape.gradient(loss, sources))
    for got, expected in (
        (table, theirs.shared.weight.grad),
        (positions, attention.relative_attention_bias.weight.grad),
    ):
        scale = float(expected.abs().max())
        assert scale > 0
        np.testing.assert_allclose(got, expected, atol=1e-4 * scale)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_bert_through_a_saved_checkpoint(peer, tmp_path, activation):
    theirs, loaded = save_and_load(peer, tmp_path, peer.BertModel, activation)
    compare(theirs, loaded)
    assert loaded.max_length_tokens == 48
    assert loaded.tokenizer.vocabulary_size == len(VOCABULARY)


def test_bert_inside_a_masked_language_model(peer, tmp_path):
    """Its arrays are named `bert.*`; here they also lie in shards."""
    theirs, loaded = save_and_load(
        peer, tmp_path, peer.BertForMaskedLM, "gelu", max_shard_size="5KB"
    )
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    compare(theirs.bert, loaded)


def save_and_load(peer, directory, kind, activation, **options):
    theirs = randomize(
        kind(
            peer.BertConfig(
                vocab_size=len(VOCABULARY),
                hidden_size=8,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=12,
                max_position_embeddings=48,
                hidden_act=activation,
            )
        )
    )
    theirs.save_pretrained(directory, **options)
    vocabulary = directory / "vocabulary.txt"
    vocabulary.write_text("\n".join(VOCABULARY))
    peer.BertTokenizerFast(vocab=str(vocabulary)).save_pretrained(directory)
    return theirs, load_backbone(directory)


def compare(theirs, loaded):
    token_ids, mask = tokens()
    expected = run_theirs(theirs, token_ids, mask).detach().numpy()
    backbone = loaded.backbone
    got = backbone.encoder(backbone.token_embedder(token_ids), mask).numpy()
    real = mask.astype(bool)
    np.testing.assert_allclose(got[real], expected[real], atol=1e-5)
