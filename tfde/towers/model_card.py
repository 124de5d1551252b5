"""`README.md` of a model directory: what the model is, how it was trained, what it cannot do.

Its first lines are the metadata that Hugging Face's hub reads: license, base model, data sets,
measures.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tfde.storage.atomic import atomic_file

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData  # elsewhere where it is used: it takes 0.2 s

CARD_FILE = "README.md"
_TRAINING = "## Training\n"
_LIMITS = "\n## Limits\n"
# The hub's word for what a model is for.
_PIPELINES = {"DualEncoder": "sentence-similarity", "CrossEncoder": "text-ranking"}
_TASK = "text-retrieval"
_NOTHING_SAID: tuple[Any, ...] = (None, [], {}, ())
_NOTHING = (
    "No record stands here: the model was saved by a program of its own, or in the middle of a run"
    " of tfde that has not ended (its `run.json` and `history.jsonl` say more).\n"
)


def model_card(
    kind: type, config: Mapping[str, Any], texts: Mapping[str, Any], metadata: Mapping[str, Any]
) -> str:
    """Returns the card of a model, in Markdown; `add_training` says later how it was trained.

    Args:
        kind: The model's class, whose docstring begins with what it does.
        config: Its configuration as JSON values, `backbone` among them.
        texts: Lengths and template of its texts.
        metadata: As `metadata.json` has it.
    """
    from huggingface_hub import ModelCardData

    summary = (inspect.getdoc(kind) or "").splitlines()[0]
    data = ModelCardData(
        library_name="tfde",
        pipeline_tag=_PIPELINES.get(kind.__name__, "text-classification"),
        tags=["keras", "tensorflow", "text-retrieval"],
    )
    rows = {
        "parameters": f"{metadata['parameter_count']:,}",
        **{name: table_cell(value) for name, value in config.items() if value not in _NOTHING_SAID},
        "texts": table_cell(texts),
        "fingerprint": f"`{metadata['fingerprint']}`",
        "saved": f"{metadata['date_saved']}, tfde {metadata['tfde_version']}, Keras"
        f" {metadata['keras_version']}",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    lengths = ", ".join(
        f"{name.removesuffix('_max_length_tokens').replace('max_length_tokens', 'pair')} {value}"
        for name, value in texts.items()
        if name.endswith("max_length_tokens")
    )
    return join_card(
        data,
        f"# {kind.__name__}\n\n{summary}\n\n"
        f'```python\nimport tfde\n\nmodel = tfde.{kind.__name__}.from_preset("DIRECTORY")\n```\n\n'
        f"| | |\n|---|---|\n{table}\n\n"
        f"{_TRAINING}{_NOTHING}{_LIMITS}"
        f"- Longer texts are cut; tokens that are read: {lengths}.\n"
        "- Scores order what was scored by the same model; they are no probabilities, and scores"
        " of two models cannot be compared.\n"
        "- Languages, domains and kinds of questions that are not in its training data, or in that"
        " of the checkpoint it started from, were not looked at: measure on texts of your own"
        " (`tfde evaluate --report`).\n",
    )


def add_training(
    directory: str | Path,
    text: str,
    *,
    starts: Sequence[str] = (),
    datasets: Sequence[str] = (),
    measured: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Puts how a model was trained into the card in its directory; whole or not.

    Args:
        directory: A model directory.
        text: Markdown, which takes the place of what stood there.
        starts: Checkpoints that it began with; the license of the first one is this model's too.
        datasets: Names of the data that it learned from.
        measured: Data -> measure -> value.
    """
    from huggingface_hub import EvalResult

    path = Path(directory) / CARD_FILE
    data, card = split_card(path.read_text("utf-8"))
    data.base_model = [_name_of(start) for start in starts] or None
    data.license = _license_of(starts[0]) if starts else None
    data.datasets = list(datasets) or None
    data.model_name = Path(directory).resolve().parent.name if measured else None
    data.eval_results = [
        EvalResult(
            task_type=_TASK,
            dataset_type=measured_on,
            dataset_name=measured_on,
            metric_type=name,
            metric_value=round(value, 4),
        )
        for measured_on, measures in (measured or {}).items()
        for name, value in measures.items()
    ] or None
    before, _, rest = card.partition(_TRAINING)
    _, _, limits = rest.rpartition(_LIMITS)
    card = join_card(data, f"{before}{_TRAINING}{text.rstrip()}\n{_LIMITS}{limits}")
    with atomic_file(path) as temporary:
        temporary.write_text(card, "utf-8")


def split_card(card: str) -> tuple[ModelCardData, str]:
    """Returns the metadata of a card (none, where they cannot be read) and what follows them."""
    import yaml
    from huggingface_hub import ModelCard, ModelCardData

    try:
        parsed = ModelCard(card, ignore_metadata_errors=True)
    except (ValueError, TypeError, yaml.YAMLError):
        return ModelCardData(), card
    return cast("ModelCardData", parsed.data), parsed.text.lstrip("\n")


def join_card(data: ModelCardData, text: str) -> str:
    """Returns a card, metadata first."""
    return f"---\n{data.to_yaml()}\n---\n\n{text}"


def _license_of(start: str) -> str | None:
    """Returns the license that the card of a checkpoint's directory names, if any."""
    path = Path(start) / CARD_FILE
    return split_card(path.read_text("utf-8", "replace"))[0].license if path.is_file() else None


def _name_of(start: str) -> str:
    """Returns a repository's name on the hub, or that of a directory."""
    hub = start.removeprefix("hf://")
    return hub if hub != start else Path(start).name


def table_cell(value: Any) -> str:
    """Returns a JSON value as one table cell."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {table_cell(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(table_cell, value))
    if not isinstance(value, str):
        return str(value)
    return f"`{value}`".replace("|", "\\|").replace("\n", "\\n")
