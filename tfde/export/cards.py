"""The README.md of what is exported: a bundle, a sentence-transformers directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfde.text.preprocessor import SEPARATOR
from tfde.towers.dual_encoder import DualEncoder
from tfde.towers.model_card import join_card, split_card, table_cell
from tfde.version import __version__


def sentence_transformers_card(
    model: DualEncoder, limitations: Sequence[str], own_card: str | None
) -> str:
    """Returns a card in Markdown: what it is, how to load it, how texts are made ready.

    Args:
        model: The model that was exported.
        limitations: What the directory cannot say as the model does, a sentence each.
        own_card: `README.md` of the model directory, whose license, base model, data sets and
            measures this card says too; `None` for a model that has none.
    """
    from huggingface_hub import ModelCardData

    own, _ = split_card(own_card or "")
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "sentence-similarity", "feature-extraction"],
        license=own.license,
        base_model=own.base_model,
        datasets=own.datasets,
        model_name=own.model_name,
        eval_results=own.eval_results,
    )
    config, text = model.config, model.preprocessor.text_config
    similarity = "cosine similarity" if config.normalize else "dot product"
    weights = model.towers.document_parts.encoder.weights[0].dtype
    sizes = config.backbone
    lines = [
        "# A text retriever trained with tfde",
        "",
        f"Texts to vectors of {model.embedding_dim} numbers, compared by {similarity}. Exported by"
        f" tfde {__version__} from a dual encoder with fingerprint `{model.fingerprint()}`.",
        "",
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        "model = SentenceTransformer(DIRECTORY)",
        'queries = model.encode_query(["who wrote hamlet?"])',
        f"documents = model.encode_document([{_example(model)}])",
        "scores = model.similarity(queries, documents)",
        "```",
        "",
        "| | |",
        "|---|---|",
        f"| backbone | {sizes.kind}, {sizes.hidden_dim} hidden, weights in {weights} |",
        f"| pooling | {', '.join(config.pooling)} |",
        f"| projection | {_projection(model)} |",
        f"| sharing | {_sharing(model)} |",
        f"| queries | at most {text.query_max_length_tokens} tokens, prompt"
        f" {_code(text.query_prompt)} |",
        f"| documents | at most {text.document_max_length_tokens} tokens, prompt"
        f" {_code(text.document_prompt)} |",
        f"| a document's title and text | {_code(_spelled_out(model))} |",
        "",
        "sentence-transformers knows documents of one text: put title and text together as above,"
        " and give a text without title alone.",
        "Before version 5, `encode(texts, prompt_name=...)` with `query` or `document` takes the"
        " place of `encode_query` and `encode_document`.",
    ]
    if limitations:
        lines += ["", "## What differs from tfde", "", *(f"- {line}" for line in limitations)]
    return join_card(data, "\n".join(lines) + "\n")


def _example(model: DualEncoder) -> str:
    values = {"title": "Hamlet", "text": "A tragedy by William Shakespeare."}
    values["context"] = f"It is long. {values['text']} He wrote more."
    document = _spelled_out(model)
    for name, value in values.items():
        document = document.replace(f"{{{name}}}", value)
    return repr(document)


def _spelled_out(model: DualEncoder) -> str:
    tokenizer = model.preprocessor.tokenizer
    separator = tokenizer.id_to_token(tokenizer.separator_id)
    template: str = model.preprocessor.text_config.document_template
    return template.replace(SEPARATOR, separator)


def _projection(model: DualEncoder) -> str:
    steps = [
        f"{step.dim}{' with bias' if step.use_bias else ''}, {step.activation}"
        for step in model.config.projection
    ]
    return "; ".join(steps) or "none"


def _sharing(model: DualEncoder) -> str:
    parts = vars(model.config.sharing).items()
    return ", ".join(f"{part} {kind}" for part, kind in parts)


def _code(text: str) -> str:
    return table_cell(text) if text else "none"


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
        **_cut(manifest.get("trained_dims", ())),
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


def _cut(trained_dims: Sequence[int]) -> dict[str, str]:
    """Returns a row of the table, where embeddings may be cut."""
    if not trained_dims:
        return {}
    return {"`dimensions`": f"{', '.join(map(str, trained_dims))}, which the model was trained for"}
