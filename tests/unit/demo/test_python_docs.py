import json
import sys
import textwrap

import pytest

from tfde.data.pages import Section, write_pages
from tfde.demo import python_docs
from tfde.demo.python_docs import PACKAGES, python_pages
from tfde.errors import ConfigError

FILES = {
    "shop/__init__.py": '''
        """A shop. See `shop.basket.Basket`."""
        raise RuntimeError("nobody may import this")
        from ._inside import sold, _hidden
        from ._whole import *
        from .deep._below import lifted
        ''',
    "shop/basket.py": '''
        """Baskets."""
        import nothing_of_that_name
        class Basket:
            """Holds things; `add` fills it, as `Basket.count` and json.dumps know."""
            def add(self):
                """Adds a thing."""
            def count(self): ...
            def _private(self):
                """Private."""
            def __len__(self):
                """Special."""
        if True:
            def conditional():
                """Conditional, links to ``shop.sold()`` and `itself`."""
        def same():
            """Adds a thing."""
        def _private():
            """Private function."""
        __all__ = ["Listed", "Basket", "nothing"]
        class Listed(dict):
            def __init__(self, first, *, second=None):
                pass
            def fill(self): ...
        class Unlisted:
            def __init__(self): ...
        ''',
    "shop/deep/__init__.py": "",
    "shop/deep/_below.py": '''
        def lifted():
            """Imported by the outermost package."""
        ''',
    "shop/_inside.py": '''
        """Inside."""
        def sold():
            """Sold."""
        def unsold():
            """Never imported by the package."""
        def _hidden():
            """Hidden."""
        ''',
    "shop/_whole.py": '''
        def whole():
            """Imported with all others."""
        ''',
    "shop/src/layer.py": '''
        @shop_export(["shop.layers.Layer", "shop.Layer"])
        class Layer:
            """A layer."""
        @tf_export("math.plus", "plus")
        def plus():
            """Plus."""
        @tf_export(v1=["old"])
        def old():
            """Old."""
        def internal():
            """Not exported."""
        ''',
    "shop/tests/helper.py": '"""In a folder of tests."""',
    "shop/test_basket.py": '"""A test."""',
    "shop/broken.py": 'def (:\n    """Broken."""',
    "shop/half.py": '"""Half \\ud800 a pair."""',
    "alone.py": '"""A module of one file."""',
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    root = tmp_path_factory.mktemp("site")
    for name, content in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root))
        patch.setattr(python_docs, "PACKAGES", ())
        yield root


@pytest.fixture(scope="module")
def pages(installed):
    """Pages by id: the standard library's and those of `FILES`."""
    before = set(sys.modules)
    pages = python_pages(["shop", "alone"])
    assert not {name for name in set(sys.modules) - before if name.startswith(("shop", "alone"))}
    assert len({page.page_id for page in pages}) == len(pages)
    return {page.page_id: page for page in pages}


def test_pages_are_the_public_names_and_nothing_is_imported(pages):
    assert {name for name in pages if name.split(".")[0] in ("shop", "alone", "tf")} == {
        "shop",
        "shop.basket",
        "shop.basket.Basket",
        "shop.basket.Basket.add",
        "shop.basket.conditional",
        "shop.basket.Listed",
        "shop.lifted",
        "shop.sold",
        "shop.whole",
        "shop.layers.Layer",
        "tf.math.plus",
        "shop.half",
        "alone",
    }
    assert pages["shop.basket"].title == "shop.basket"
    assert pages["shop.basket"].sections == (Section("", ("Baskets.",)),)
    assert pages["shop"].links == ("shop.basket.Basket",)
    assert pages["shop.basket.Basket"].links == ("shop.basket.Basket.add", "json.dumps")
    assert pages["shop.basket.conditional"].links == ("shop.sold",)


def test_a_listed_class_without_docstring_is_known_by_its_signature(pages):
    assert pages["shop.basket.Listed"].sections == (
        Section("Signature", ("shop.basket.Listed(first, *, second=None)",)),
        Section("Methods", ("fill",)),
        Section("Module", ("Baskets.",)),
    )


def test_the_questions_of_the_demo_have_a_page(pages):
    assert {"csv.DictReader", "csv.DictWriter", "shutil.copytree", "timeit"} <= set(pages)


def test_standard_library_is_large(pages):
    assert len(pages) > 3000
    assert {"json.dumps", "argparse.ArgumentParser", "textwrap"} <= set(pages)
    assert not any(part.startswith("_") for name in pages for part in name.split("."))
    assert all(set(page.links) <= set(pages) - {name} for name, page in pages.items())


@pytest.mark.parametrize("name", ["no_such_package_1", "json.decoder", "_struct", ""])
def test_unknown_package_is_refused(installed, name):
    with pytest.raises(ConfigError, match=rf"`packages` must name installed .* Received: '{name}'"):
        python_pages([name])


def test_pages_are_written_in_the_form_of_the_design(pages, tmp_path):
    assert write_pages(tmp_path / "pages.jsonl", [pages["alone"], pages["shop"]]) == 2
    _, line = (tmp_path / "pages.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "id": "shop",
        "title": "shop",
        "sections": [{"heading": "", "passages": ["A shop. See `shop.basket.Basket`."]}],
        "links": ["shop.basket.Basket"],
    }


def test_all_installed_packages_give_enough_pages(monkeypatch):
    monkeypatch.setattr(python_docs, "PACKAGES", PACKAGES)
    pages = python_pages()
    roots = {page.page_id.split(".")[0] for page in pages}
    assert len(pages) >= 5000
    assert {"json", "numpy", "keras"} <= roots
    # What a package has from modules below its private ones.
    assert {"numpy.savez_compressed", "numpy.histogram"} <= {page.page_id for page in pages}
