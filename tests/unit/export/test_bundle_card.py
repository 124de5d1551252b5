"""What a bundle's card tells to do must be possible with what is in it."""

from importlib.metadata import PackageNotFoundError, version

import pytest

from tfde.export import bundle
from tfde.export.cards import bundle_card

MANIFEST = {
    "version": 1,
    "documents": 0,
    "embedding_dim": 3,
    "compute_dtype": "float32",
    "int8_weights": False,
    "tfde_version": "0",
    "libraries": {},
    "towers_fingerprint": "f",
    "measures": {},
}


@pytest.mark.parametrize(
    ("models", "title", "ask"),
    [
        (
            ["query_encoder", "retriever"],
            "# A text retriever for",
            'tfde query "who wrote hamlet?"',
        ),
        (["query_encoder"], "# Text encoders for", "/v1/embeddings"),
    ],
)
def test_it_asks_what_is_there(models, title, ask):
    card = bundle_card({**MANIFEST, "models": models}, None)
    assert card.startswith(title)
    assert ask in card
    assert ("tfde query" in card) == ("retriever" in models)


def test_versions_are_those_of_what_is_installed(monkeypatch):
    def version_of(name):
        if name == "scann":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(bundle, "version_of", version_of)
    found = bundle._library_versions()
    assert "scann" not in found
    assert found["numpy"] == version("numpy")
