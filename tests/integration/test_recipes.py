"""Every recipe is parsed as it stands and runs dry: two steps a stage, with a tiny model."""

import json
import re
import shutil
from pathlib import Path

import pytest
import tiny
import yaml

from tfde.cli import train, train_matcher
from tfde.cli.main import main
from tfde.config.backbones import BertConfig
from tfde.data.pages import Page, Section, write_pages
from tfde.data.pairs.query_clusters import write_clusters
from tfde.matching.cross_encoder import CrossEncoder
from tfde.matching.matcher import Matcher
from tfde.text.read_tokenizer import read_tokenizer

FOLDER = Path(__file__).parents[2] / "pipelines" / "recipes"
VIRT = sorted(FOLDER.glob("virt_*.yaml"))
RERANKER = FOLDER / "reranker.yaml"
PHRASES = FOLDER / "phrases_squad.yaml"  # tests/unit/phrases/test_training.py runs it
RECIPES = sorted(set(FOLDER.glob("*.yaml")) - {*VIRT, RERANKER, PHRASES})
# Their smaller twins differ in nothing but sizes, which a dry run replaces.
LARGER = (
    "chang_bow_mlp",
    "chang_random",
    "dong_base", "dong_large", "gtr_ft_base", "gtr_large", "gtr_nq_base", "gtr_pt_base", "gtr_xl",
    "gtr_xxl",
)  # fmt: skip
BACKBONES = {
    "t5": {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "key_value_dim": 4},
    "bert": {"num_layers": 1, "num_heads": 2, "hidden_dim": 8},
}
MATCHING_SIZES = {"intermediate_dim": 8, "vocabulary_size": 120, "num_layers": 2}  # one for both
PASSAGES = ("One red apple. Two green trees. A black dog.", "The cow is white. A stone road.")
# What the environment variables of the recipes stand for.
PLACES = {
    "COMMUNITY_QA": "pairs",
    "MS_MARCO_PAIRS": "pairs",
    "SQUAD_PAIRS": "pairs",
    "MS_MARCO": "dataset",
    "NQ_PAIRS": "pairs",
    "NQ": "dataset",
    "DATASET": "dataset",
    "SQUAD_SENTENCES": "dataset",
    "SQUAD_CONTEXT": "contexts",
    "PAGES": "pages",
    "CLUSTERS": "clusters",
    "COLBERT": "colbert",
    "VOCABULARY": "vocabulary",
    "BERT_BASE": "checkpoint",
    "TFDE_MINILM": "checkpoint",
    "START": "checkpoint",
    "T5_BASE": "checkpoint",
    "T5_LARGE": "checkpoint",
    "T5_XL": "checkpoint",
    "T5_XXL": "checkpoint",
    "T5_1_1_SMALL": "checkpoint",
    "T5_1_1_BASE": "checkpoint",
    "T5_1_1_LARGE": "checkpoint",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A dataset directory and a pair file with a hard negative each, by document ids."""
    folder = tmp_path_factory.mktemp("recipes")
    dataset = tiny.write_dataset(folder / "dataset", documents=60)
    for name in ("squad_sent", "squad", "medquad", "fairytaleqa", "stackexchange_bev"):
        (folder / name).symlink_to(dataset)
    shutil.copytree(dataset, folder / "contexts")
    lines = (dataset / "corpus.jsonl").read_text().splitlines()
    rows = [{**json.loads(line), "context": "a black dog"} for line in lines]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "contexts" / "corpus.jsonl").write_text(text)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(tiny.VOCABULARY) + "\n")
    with (folder / "pairs.jsonl").open("w") as file:
        for i in range(40):
            row = {"query": f"red {i}", "positive": f"d{i}", "negatives": [f"d{i + 1}"]}
            row |= {"query_id": f"q{i}", "cross_scores": {"positive": 2.0, "negatives": [i / 9]}}
            file.write(json.dumps(row) + "\n")
    pages = [
        Page(f"p{i}", f"red {i}", (Section("", PASSAGES),), (f"p{(i + 1) % 4}",)) for i in range(4)
    ]
    late = {"kind": "late_interaction", "embedding_dim": 4, "tokenizer": tiny.tokenizer()}
    Matcher.from_backbone(tiny.BERT, **late).save_to_preset(folder / "colbert")
    write_clusters(folder / "near.jsonl", {f"q{i}": i // 30 for i in range(60)})
    (folder / "wikispeedia").mkdir()
    for name in ("pages.jsonl", "wikispeedia/pages.jsonl.gz"):
        write_pages(folder / name, pages)
    return folder


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_understood(path):
    run = train.build_parser().parse_args(["--run", str(path), "--output", "x"]).run
    assert list(run.stages) == list(yaml.safe_load(path.read_text())["stages"])


GTR = sorted(path for path in FOLDER.glob("gtr_*.yaml") if not path.stem.endswith("small"))


@pytest.mark.parametrize("path", GTR, ids=lambda path: path.stem)
def test_recipe_of_gtr_is_the_papers(path):
    """Ni et al. 2021, section 4.1: all sizes have the same hyper-parameters."""
    run = train.build_parser().parse_args(["--run", str(path), "--output", "x"]).run
    assert (run.model.embedding_dim, run.model.pooling, run.model.sharing) == (768, "mean", "sde")
    lengths = run.model.text
    assert (lengths.query_max_length_tokens, lengths.document_max_length_tokens) == (64, 512)
    assert {"pretrain": 800_000, "finetune": 20_000}.items() >= {
        name: stage.steps for name, stage in run.stages.items()
    }.items()
    for stage in run.stages.values():
        assert (stage.batch_size, stage.temperature, stage.bidirectional) == (2048, 0.01, True)
        optimizer = stage.optimizer
        assert (optimizer.name, optimizer.learning_rate) == ("adafactor", 1e-3)
        assert (optimizer.schedule, optimizer.warmup_steps) == ("linear", 0)


def test_recipes_of_chang_differ_in_their_towers_alone():
    """Chang et al. 2020, section 4: 100,000 steps of 8,192, 2,000 of 512, 12 layers or 128 M."""
    runs = []
    for name in ("chang_pretraining", "chang_random", "chang_bow_mlp"):
        arguments = ["--run", str(FOLDER / f"{name}.yaml"), "--output", "x"]
        runs.append(train.build_parser().parse_args(arguments).run)
    checkpoint, random, bag = runs
    assert checkpoint.stages == random.stages == bag.stages
    assert checkpoint.model.text == random.model.text == bag.model.text
    stages = [(stage.steps, stage.batch_size) for stage in random.stages.values()]
    assert stages == [(100_000, 8192), (2_000, 512)]
    assert random.model.backbone == {
        "kind": "bert", "num_layers": 12, "num_heads": 12, "hidden_dim": 768,
        "intermediate_dim": 3072, "dropout": 0.1,
    }  # fmt: skip
    words, wide, out = 30_522, bag.model.backbone["embedding_dim"], bag.model.backbone["hidden_dim"]
    parameters = words * wide + wide * out + out * out + 2 * out
    assert (parameters, out) == (127_378_432, 512)


def test_recipe_of_dpr_is_the_papers():
    """Karpukhin et al. 2020, section 5."""
    arguments = ["--run", str(FOLDER / "dpr.yaml"), "--output", "x"]
    run = train.build_parser().parse_args(arguments).run
    (stage,) = run.stages.values()
    model, optimizer = run.model, stage.optimizer
    assert (model.sharing, model.pooling, model.normalize) == ("ade", "first", False)
    assert (model.embedding_dim, model.dropout) == (None, 0.1)
    assert (stage.batch_size, stage.negatives_per_query, stage.epochs) == (128, 1, 40)
    assert (stage.temperature, stage.bidirectional) == (1.0, False)
    assert (optimizer.learning_rate, optimizer.schedule) == (1e-5, "linear")
    assert optimizer.warmup_steps > 0


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.slow] * (path.stem in LARGER), id=path.stem)
        for path in RECIPES
    ],
)
def test_recipe_runs_dry(tmp_path, monkeypatch, capsys, places, path):
    text = path.read_text()
    stages = yaml.safe_load(text)["stages"]
    names = {"pairs": "pairs.jsonl", "dataset": "dataset", "pages": "pages.jsonl"}
    names |= {"clusters": "near.jsonl", "contexts": "contexts", "colbert": "colbert"}
    names["vocabulary"] = "vocab.txt"
    for variable in re.findall(r"\$\{(\w+)\}", text):
        target = "" if variable == "TFDE_DATA" else names.get(PLACES[variable], "none")
        monkeypatch.setenv(variable, str(places / target))
    kind = "t5" if "t5" in text.lower() else "bert"
    backbone = {"kind": kind, "intermediate_dim": 8, **BACKBONES[kind]}
    arguments = ["train", "--run", str(path), "--output", str(tmp_path / "run")]
    arguments += ["--run.model.backbone", json.dumps(backbone)]
    arguments += ["--run.model.tokenizer", str(places / "vocab.txt")]
    for name, stage in stages.items():
        sizes = {"steps": 2, "batch_size": 8, "optimizer.warmup_steps": 0}
        if "refresh" in stage:
            sizes["refresh.every_steps"] = 1
        if "chunk_size" in stage:
            sizes["chunk_size"] = 4
        if "epochs" in stage:
            sizes["epochs"] = "null"
        if stage.get("data") == "${COMMUNITY_QA}":  # texts, where these pairs have ids
            sizes["dataset"] = str(places / "dataset")
        if "validation" in stage:
            sizes |= {"validation.every_steps": 2, "validation.max_queries": 5}
        for field, value in sizes.items():
            arguments += [f"--run.stages.{name}.{field}", str(value)]
    assert main(arguments) == 0, capsys.readouterr().err
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    steps = {(line["stage"], line["step"]) for line in map(json.loads, lines) if "loss" in line}
    assert steps == {(name, 2) for name in stages}


@pytest.fixture(scope="module")
def pairs_with_labels(places):
    """A folder of pairs under every split's name, pair files, and a teacher for each objective."""
    folder = places / "labelled"
    folder.mkdir()
    rows = [f"red {i}\tcat {i}\t{'yes' if i % 2 else 'no'}" for i in range(40)]
    for split in ("train", "dev", "dev_matched", "val"):
        text = "\n".join(["sentence1\tsentence2\tlabel", *rows])
        (folder / f"{split}.tsv").write_text(text + "\n")
    for split in ("train", "dev"):
        (folder / f"{split}.jsonl").symlink_to(places / "pairs.jsonl")
    row = {"positive": {"text": "cat"}, "negatives": [{"text": "dog"}] * 3}
    lines = [json.dumps({"query": f"red {i}", **row}) for i in range(40)]
    (places / "ranked.jsonl").write_text("\n".join(lines) + "\n")
    for labels in (1, 2):
        CrossEncoder.from_backbone(
            BertConfig(**{**BACKBONES["bert"], **MATCHING_SIZES}),
            tokenizer=read_tokenizer(places / "vocab.txt"),
            num_labels=labels,
        ).save_to_preset(places / f"teacher_{labels}")
    return places


@pytest.mark.parametrize("path", VIRT, ids=lambda path: path.stem)
def test_matching_recipe_is_the_papers(path):
    run = train_matcher.build_parser().parse_args(["--run", str(path), "--output", "x"]).run
    epochs = 30 if path.stem.split("_")[1] in ("rte", "boolq") else 5
    assert (run.epochs, run.batch_size, run.warmup) == (epochs, 28, 0.1)
    assert (run.optimizer.learning_rate, run.optimizer.weight_decay) == (5e-5, 0.0)
    assert (run.optimizer.epsilon, run.optimizer.clip_norm) == (1e-8, None)
    kind = path.stem.partition("_")[2].partition("_")[2] or "virt_encoder"
    assert run.model.kind == ("cross_encoder" if kind == "teacher" else kind)
    assert (run.teaching is None) == (kind in ("teacher", "siamese", "poly_encoder"))
    assert kind == "teacher" or run.model.options["fusion"] == "concat"


# Of those that differ in nothing but lengths and epochs, or in the kind alone, one.
DRY = [RERANKER, *(path for path in VIRT if path.stem.split("_")[1] in ("rte", "q2p"))]
DRY = [path for path in DRY if not path.stem.endswith(("siamese", "poly_encoder"))]


@pytest.mark.parametrize("path", DRY, ids=lambda path: path.stem)
def test_matching_recipe_runs_dry(tmp_path, monkeypatch, capsys, pairs_with_labels, path):
    places = pairs_with_labels
    text = path.read_text()
    objective = yaml.safe_load(text)["objective"]
    labels = 1 if objective == "binary" else 2
    targets = {"MS_MARCO": "dataset", "TEACHER": f"teacher_{labels}", "PAIRS": "ranked.jsonl"}
    targets |= dict.fromkeys(("BERT_BASE", "TFDE_MINILM"), "none")
    for variable in re.findall(r"\$\{(\w+)\}", text):
        monkeypatch.setenv(variable, str(places / targets.get(variable, "labelled")))
    arguments = ["train-matcher", "--run", str(path), "--output", str(tmp_path / "run")]
    backbone = {"kind": "bert", **BACKBONES["bert"], **MATCHING_SIZES}
    arguments += ["--run.model.backbone", json.dumps(backbone)]
    arguments += ["--run.model.tokenizer", str(places / "vocab.txt"), "--run.epochs", "1"]
    if "apart_layers" in text:
        arguments += ["--run.model.options.apart_layers", "1"]
    assert main(arguments) == 0, capsys.readouterr().err
    history = (tmp_path / "run" / "history.jsonl").read_text()
    leading = {"binary": "AUC", "classification": "accuracy", "ranking": "P@1"}[objective]
    assert leading in history
    if objective != "ranking":
        assert leading in json.loads((tmp_path / "run" / "measures.json").read_text())
    for name in ("virt", "hidden", "logit"):
        assert (f"{name}_loss" in history) == (f"{name}_weight: " in text)
