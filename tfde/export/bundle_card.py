"""`README.md` of a bundle: what is in it, how it is asked, and the card of its model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfde.towers.model_card import split_card


def bundle_card(manifest: Mapping[str, Any], model_card: str | None) -> str:
    """Returns the card in Markdown.

    Args:
        manifest: Of the bundle.
        model_card: `README.md` of the model directory; `None` for a model that has none.
    """
    rows = {
        "models": ", ".join(f"`{name}`" for name in manifest["models"]),
        "version": manifest["version"],
        "documents": f"{manifest['documents']:,}",
        "embeddings": f"{manifest['embedding_dim']} numbers, computed in"
        f" {manifest['compute_dtype']}",
        "8-bit weights": "yes" if manifest["int8_weights"] else "no",
        "made by": f"tfde {manifest['tfde_version']}, "
        + ", ".join(f"{name} {value}" for name, value in manifest["libraries"].items()),
        "model": f"`{manifest['towers_fingerprint']}`",
    }
    rows |= {f"measured: {name}": value for name, value in manifest["measures"].items()}
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    retrieves = "retriever" in manifest["models"]
    title = "A text retriever" if retrieves else "Text encoders"
    ask = (
        'tfde query "who wrote hamlet?"'
        if retrieves
        else """curl localhost:8502/v1/embeddings -d '{"input": "who wrote hamlet?"}'"""
    )
    text = (
        f"# {title} for TensorFlow Serving\n\n"
        f"| | |\n|---|---|\n{table}\n\n"
        "```\ntfde verify BUNDLE   # checksums, fingerprints, golden queries\n"
        f"tfde serve BUNDLE\n{ask}\n```\n"
        "`models/`, `models.config` and the other configuration files are tensorflow_model_server's"
        " own; `manifest.json` says what each part is.\n"
    )
    if model_card is None:
        return text
    return f"{text}\n{_deeper(split_card(model_card)[1])}"


def _deeper(card: str) -> str:
    """Returns a card as a part of another one: its headings are one level down."""
    fenced, lines = False, []
    for line in card.splitlines():
        fenced ^= line.startswith("```")
        lines.append(f"#{line}" if line.startswith("#") and not fenced else line)
    return "\n".join(lines) + "\n"
