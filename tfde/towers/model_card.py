"""`README.md` of a model directory: what the model is, how it was trained, what it cannot do."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfde.storage.atomic import atomic_file

CARD_FILE = "README.md"
_TRAINING = "## Training\n"
_LIMITS = "\n## Limits\n"
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
    summary = (inspect.getdoc(kind) or "").splitlines()[0]
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
    return (
        f"# {kind.__name__}\n\n{summary}\n\n"
        f'```python\nimport tfde\n\nmodel = tfde.{kind.__name__}.from_preset("DIRECTORY")\n```\n\n'
        f"| | |\n|---|---|\n{table}\n\n"
        f"{_TRAINING}{_NOTHING}{_LIMITS}"
        f"- Longer texts are cut; tokens that are read: {lengths}.\n"
        "- Scores order what was scored by the same model; they are no probabilities, and scores"
        " of two models cannot be compared.\n"
        "- Languages, domains and kinds of questions that are not in its training data, or in that"
        " of the checkpoint it started from, were not looked at: measure on texts of your own"
        " (`tfde evaluate --report`).\n"
    )


def add_training(directory: str | Path, text: str) -> None:
    """Puts how a model was trained into the card in its directory; whole or not.

    Args:
        directory: A model directory.
        text: Markdown, which takes the place of what stood there.
    """
    path = Path(directory) / CARD_FILE
    card = path.read_text("utf-8")
    before, _, rest = card.partition(_TRAINING)
    _, _, limits = rest.rpartition(_LIMITS)
    with atomic_file(path) as temporary:
        temporary.write_text(f"{before}{_TRAINING}{text.rstrip()}\n{_LIMITS}{limits}", "utf-8")


def table_cell(value: Any) -> str:
    """Returns a JSON value as one table cell."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {table_cell(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(table_cell, value))
    if not isinstance(value, str):
        return str(value)
    return f"`{value}`".replace("|", "\\|").replace("\n", "\\n")
