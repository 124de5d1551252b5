"""From axes to cells: which there are, in which order, and with which runs."""

from pathlib import Path

import pytest

from tfde.cli.study import build_parser
from tfde.config.study import BM25, StudyConfig
from tfde.errors import ConfigError
from tfde.studies.cells import expand_cells, merge, select_cells

BASE = {
    "model": {"normalize": False},
    "stages": {
        "pretrain": {"mixture": [{"pages": "p.jsonl"}], "steps": 7, "batch_size": 4},
        "finetune": {"data": "d", "steps": 5, "optimizer": {"learning_rate": 0.1}},
    },
    "evaluate": {"dataset": "d", "measures": ["R@1"]},
}
AXES = {
    "encoder": {
        "bert": {"model": {"backbone": {"kind": "bert", "num_layers": 2}}},
        "bag": {"model": {"backbone": {"kind": "bag_of_words"}, "pooling": "mean"}},
        "bm25": {"model": "bm25"},
    },
    "start": {
        "none": {"stages": {"pretrain": None}},
        "mlm": {"stages": {"pretrain": {"objective": "masked_lm"}}},
        "ict": {"stages": {"pretrain": {"mixture": [{"pages": "p", "tasks": {"ict": 1}}]}}},
    },
    "labels": {
        "1%": {"stages": {"finetune": {"data": "few", "optimizer": {"warmup_steps": 2}}}},
        "80%": {"evaluate": {"split": "dev"}},
    },
}


STUDIES = Path(__file__).parents[3] / "pipelines" / "studies"
# Cells, and those that BM25 answers.
COUNTS = {
    "pretraining_tasks": (52, 3),
    "pretraining_ablation": (14, 2),
    "pretraining_links": (30, 0),
    "sharing": (70, 0),
    "sharing_t5": (45, 0),
    "sharing_answers": (18, 3),
    "gtr_stages": (45, 0),
    "gtr_losses": (14, 0),
    "gtr_curves": (13, 0),
    "sizes": (120, 0),
}


def study(**fields):
    return StudyConfig(**{"base": BASE, "axes": AXES, **fields})


def names(cells):
    return [cell.name for cell in cells]


def test_every_combination_once_by_default():
    cells = expand_cells(study(seeds=(3, 4)))
    assert len(cells) == len(set(names(cells))) == 3 * 3 * 2 * 2
    assert cells[0].name == "encoder=bert start=none labels=1% seed=3"
    assert cells[1].name == "encoder=bert start=none labels=80% seed=3"


def test_blocks_give_the_order_and_repeat_nothing():
    cells = expand_cells(
        study(
            cells=(
                {"encoder": "bm25", "start": "none", "labels": "80%"},
                {"encoder": ["bag", "bert"], "start": "ict", "labels": "1%", "seeds": [8, 7]},
                {"encoder": "bert", "start": ["none", "ict"], "labels": ["1%"], "seeds": [7]},
            )
        )
    )
    assert names(cells) == [
        "encoder=bm25 start=none labels=80% seed=0",
        "encoder=bag start=ict labels=1% seed=8",
        "encoder=bert start=ict labels=1% seed=8",
        "encoder=bag start=ict labels=1% seed=7",
        "encoder=bert start=ict labels=1% seed=7",
        "encoder=bert start=none labels=1% seed=7",
    ]


def test_values_that_look_like_numbers():
    axes = {"encoder": {"bag": AXES["encoder"]["bag"]}, "batch": {"32": {}, 128: {}, 0.5: {}}}
    cells = expand_cells(StudyConfig(BASE, axes, [{"batch": [128, "32", 0.5]}]))
    assert [cell.axes["batch"] for cell in cells] == ["128", "32", "0.5"]


def test_excluded_combinations_are_left_out():
    exclude = ({"encoder": ["bag", "bm25"], "start": "mlm"}, {"labels": "80%"})
    cells = expand_cells(study(exclude=exclude))
    found = [(cell.axes["encoder"], cell.axes["start"]) for cell in cells]
    assert found == [
        ("bert", "none"), ("bert", "mlm"), ("bert", "ict"), ("bag", "none"), ("bag", "ict"),
        ("bm25", "none"), ("bm25", "ict"),
    ]  # fmt: skip
    assert {cell.axes["labels"] for cell in cells} == {"1%"}
    with pytest.raises(ConfigError, match="`cells` must leave at least one cell"):
        expand_cells(study(exclude=({"labels": ["1%", "80%"]},)))


def test_the_run_of_a_cell_is_the_base_with_its_values_laid_over():
    cells = {cell.name: cell for cell in expand_cells(study())}
    cell = cells["encoder=bag start=ict labels=1% seed=0"]
    model, stages = cell.run.model, cell.run.stages
    assert (model.backbone, model.pooling, model.normalize) == (
        {"kind": "bag_of_words"}, "mean", False,
    )  # fmt: skip
    assert list(stages) == ["pretrain", "finetune"]
    assert stages["pretrain"].mixture[0].pages == "p"
    assert stages["pretrain"].mixture[0].tasks == {"ict": 1}
    assert (stages["pretrain"].steps, stages["pretrain"].batch_size) == (7, 4)
    assert (stages["finetune"].data, stages["finetune"].steps) == ("few", 5)
    assert stages["finetune"].optimizer.learning_rate == 0.1
    assert stages["finetune"].optimizer.warmup_steps == 2
    assert (cell.evaluation.split, cell.evaluation.measures) == ("test", ("R@1",))
    cell = cells["encoder=bert start=none labels=80% seed=0"]
    assert list(cell.run.stages) == ["finetune"]
    assert cell.evaluation.split == "dev"
    assert cells["encoder=bm25 start=mlm labels=1% seed=0"].run is None
    assert cells["encoder=bert start=mlm labels=1% seed=0"].run.seed == 0


def test_bm25_stays_whatever_a_later_axis_says_of_the_model():
    axes = {**AXES, "sharing": {"sde": {"model": {"sharing": "sde"}}}}
    cells = expand_cells(StudyConfig(BASE, axes))
    trains = {cell.axes["encoder"]: cell.run is not None for cell in cells}
    assert trains == {"bert": True, "bag": True, "bm25": False}
    laid_over_the_base = StudyConfig({**BASE, "model": BM25}, {"encoder": AXES["encoder"]})
    assert [cell.run is None for cell in expand_cells(laid_over_the_base)] == [False, False, True]


def test_merge_keeps_what_is_not_named():
    base = {"a": {"b": 1, "c": {"d": 2}}, "e": [1, 2]}
    assert merge(base, {"a": {"c": {"f": 3}}, "e": [4]}) == {
        "a": {"b": 1, "c": {"d": 2, "f": 3}},
        "e": [4],
    }
    assert merge(base, {"a": None}) == {"a": None, "e": [1, 2]}
    assert base == {"a": {"b": 1, "c": {"d": 2}}, "e": [1, 2]}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            {"stages": {"finetune": {"stepz": 3}}},
            r"^cell size=odd: stages: Option 'stepz' is not accepted; did you mean steps\?$",
        ),
        (
            {"stages": {"finetune": {"steps": 0}}},
            r"cell size=odd: `stages\.finetune\.steps` must be at least 1",
        ),
        (
            {"stages": [{"steps": 1}]},
            r"cell size=odd: `stages` must be a mapping of names to stages\. Received: \[",
        ),
        ({"stages": {"finetune": None}}, r"cell size=odd: .*`stages` must be not empty"),
        ({"model": {"backbone": 3}}, r"cell size=odd: .*backbone"),
        ({"evaluate": {"k": 3}}, r"cell size=odd: .*k"),
        ({"evaluate": None}, r"cell size=odd: .*evaluate\.dataset"),
    ],
)
def test_an_impossible_cell_is_named_in_one_line(override, message):
    base = {
        "model": {"backbone": {"kind": "bag_of_words"}},
        "stages": {"finetune": {"data": "d", "steps": 1}},
        "evaluate": {"dataset": "d"},
    }
    with pytest.raises(ConfigError, match=message) as caught:
        expand_cells(StudyConfig(base, {"size": {"odd": override}}))
    assert "\n" not in str(caught.value)


def test_only_some_cells():
    cells = expand_cells(study(seeds=(1, 2)))
    found = select_cells(cells, {"encoder": "bert", "seed": "2"})
    assert len(found) == 6
    assert all(cell.axes["encoder"] == "bert" and cell.seed == 2 for cell in found)
    with pytest.raises(
        ConfigError, match=r"`only` must name one of encoder, start, labels, seed\. Received: 'x'"
    ):
        select_cells(cells, {"x": "1"})
    with pytest.raises(ConfigError, match=r"`only encoder` must be one of .*bert.*'lstm'"):
        select_cells(cells, {"encoder": "lstm"})
    with pytest.raises(ConfigError, match=r"`only seed` must be one of 1, 2\. Received: '3'"):
        select_cells(cells, {"seed": "3"})


def test_every_study_is_counted():
    assert {path.stem for path in STUDIES.glob("*.yaml")} == set(COUNTS)


@pytest.mark.parametrize("name", COUNTS)
def test_the_studies_of_pipelines_are_read(name):
    path = STUDIES / f"{name}.yaml"
    parser = build_parser()
    args = parser.parse_args(["--run", str(path), "--output", "nowhere"])
    cells = expand_cells(parser.instantiate(args).run)
    assert (len(cells), sum(cell.run is None for cell in cells)) == COUNTS[name]
