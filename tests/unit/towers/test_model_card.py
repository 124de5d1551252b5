"""The card of a model directory, from a model that was saved and from one that a run trained."""

import json

import tiny
from huggingface_hub import ModelCard

import tfde
from tfde.cli.main import main
from tfde.config.model import TextConfig
from tfde.towers.model_card import add_training, split_card


def test_a_card_says_what_the_model_is(tmp_path):
    text = TextConfig(8, 16, document_template="{title} | {text}")
    model = tiny.dual_encoder(tiny.BERT, text=text, embedding_dim=6)
    model.save_to_preset(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "\n---\n\n# DualEncoder\n\n" in card
    assert 'tfde.DualEncoder.from_preset("DIRECTORY")' in card
    assert f"| fingerprint | `{model.fingerprint()}` |" in card
    assert "kind `bert`, vocabulary_size 120, num_layers 2, num_heads 2" in card
    assert "document_template `{title} \\| {text}`" in card
    assert "tokens that are read: query 8, document 16." in card
    assert "No record stands here: the model was saved by a program of its own" in card
    add_training(tmp_path / "model", "On **moon** texts.")
    changed = (tmp_path / "model" / "README.md").read_text()
    assert "## Training\nOn **moon** texts.\n\n## Limits\n- Longer texts are cut" in changed
    assert "No record" not in changed
    nothing = (
        "No record stands here: the model was saved by a program of its own, or in the middle of a"
        " run of tfde that has not ended (its `run.json` and `history.jsonl` say more)."
    )
    add_training(tmp_path / "model", nothing)
    assert (tmp_path / "model" / "README.md").read_text() == card


def test_the_hub_reads_license_base_model_data_sets_and_measures(tmp_path):
    """`ModelCard` of huggingface_hub is the reader that the hub's own tools use."""
    start = tmp_path / "start"
    tiny.dual_encoder().save_to_preset(start)
    header = "---\nlicense: apache-2.0\n---\n"
    (start / "README.md").write_text(header + (start / "README.md").read_text().split("---\n")[-1])
    tiny.dual_encoder(tiny.BERT).save_to_preset(tmp_path / "run" / "model")
    add_training(
        tmp_path / "run" / "model",
        "On moon texts.",
        starts=[str(start), "hf://org/name"],
        datasets=["moons"],
        measured={"7 queries": {"RR": 0.51239}},
    )
    data = ModelCard.load(tmp_path / "run" / "model" / "README.md").data
    assert (data.license, data.library_name) == ("apache-2.0", "tfde")
    assert (data.base_model, data.datasets) == (["start", "org/name"], ["moons"])
    (result,) = data.eval_results
    assert (result.metric_type, result.metric_value) == ("RR", 0.5124)
    assert (result.dataset_name, data.model_name) == ("7 queries", "run")
    # An exported sentence-transformers directory says the same.
    model = tfde.DualEncoder.from_preset(tmp_path / "run" / "model")
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    tfde.export_sentence_transformers(model, tmp_path / "exported", model_card=card)
    exported = ModelCard.load(tmp_path / "exported" / "README.md").data
    assert exported.library_name == "sentence-transformers"
    assert (exported.license, exported.datasets) == (data.license, data.datasets)
    assert exported.eval_results == data.eval_results


def test_a_card_whose_metadata_cannot_be_read_is_a_card_without():
    broken = "---\nlicense: [\n---\n# Mine\n"
    data, text = split_card(broken)
    assert (data.license, text) == (None, broken)


def test_a_run_writes_recipe_data_and_measures(tmp_path):
    data = tiny.write_dataset(tmp_path / "data", documents=60)
    (tmp_path / "vocab.txt").write_text("\n".join(tiny.VOCABULARY) + "\n")
    backbone = {"kind": "bag_of_words", "embedding_dim": 8, "hidden_dim": 6}
    validation = {"dataset": str(data), "every_steps": 3, "measures": ["RR", "R@5"]}
    stage = {"data": str(data), "steps": 6, "batch_size": 8, "validation": validation}
    model = {"backbone": backbone, "tokenizer": str(tmp_path / "vocab.txt")}
    run = {"model": model, "stages": {"finetune": stage}}
    (tmp_path / "run.yaml").write_text(json.dumps(run))
    output = tmp_path / "out"
    assert main(["train", "--run", str(tmp_path / "run.yaml"), "--output", str(output)]) == 0
    history = [json.loads(line) for line in (output / "history.jsonl").read_text().splitlines()]
    validated = [line for line in history if "RR" in line]
    best = max(validated, key=lambda line: line["RR"])
    for name, line in (("model", validated[-1]), ("best_model", best)):
        card = (output / name / "README.md").read_text()
        assert "By `tfde train` (tfde " in card
        assert "    batch_size: 8\n" in card
        assert f"- `{data}`: corpus.jsonl " in card
        found = (
            f"at step {line['step']} of stage finetune: RR {line['RR']:.4f}, R@5 {line['R@5']:.4f}."
        )
        assert found in card
    # Exported, the card goes along.
    bundle = tmp_path / "bundle"
    assert main(["export", "--model", str(output / "model"), "--output", str(bundle)]) == 0
    text = (bundle / "README.md").read_text()
    assert text.startswith("# Text encoders for TensorFlow Serving\n")
    assert "## DualEncoder\n" in text
    assert "### Training\nBy `tfde train`" in text
    assert main(["verify", str(bundle)]) == 0
