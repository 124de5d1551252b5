"""The reader of dumps on real ones: the extracts of Wikipedia that gensim tests itself with."""

import bz2
import importlib.util
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tfde.pretraining.mediawiki import read_mediawiki
from tfde.storage.intake import Intake

pytestmark = pytest.mark.peers

NAME = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
SPACE = "{http://www.mediawiki.org/xml/export-0.10/}"


@pytest.fixture(scope="module")
def dump():
    spec = importlib.util.find_spec("gensim")  # not imported: only its files are needed
    assert spec, "gensim belongs to the environment of the peers: make test-peers"
    return Path(spec.submodule_search_locations[0], "test", "test_data", NAME)


def test_a_real_dump_whole(dump):
    intake = Intake()
    pages = list(read_mediawiki(dump, intake))
    elements = list(ET.fromstring(bz2.decompress(dump.read_bytes())).iter(f"{SPACE}page"))

    def has(element, name):
        return element.find(f"{SPACE}{name}") is not None

    def text(element, name):
        return element.findtext(f"{SPACE}{name}")

    articles = [e for e in elements if text(e, "ns") == "0" and not has(e, "redirect")]
    assert [(page.page_id, page.title) for page in pages] == [
        (text(element, "id"), text(element, "title")) for element in articles
    ]
    assert len(pages) == 106
    assert intake.left_out["redirects"] == 99
    assert intake.left_out["pages of other namespaces"] == len(elements) - 106 - 99
    titles = {text(element, "id"): text(element, "title") for element in articles}
    for page, element in zip(pages, articles, strict=True):
        markup = element.findtext(f"{SPACE}revision/{SPACE}text")
        named = {name.strip().lower() for name in re.findall(r"\[\[([^\]|#]+)", markup)}
        leads = {
            element.find(f"{SPACE}redirect").get("title")
            for element in elements
            if has(element, "redirect") and text(element, "title").lower() in named
        }
        assert {titles[link] for link in page.links} <= {
            title for title in titles.values() if title.lower() in named or title in leads
        }
    assert sum(len(page.links) for page in pages) == 79


def test_links_stand_in_the_passages_that_show_them(dump):
    elements = ET.fromstring(bz2.decompress(dump.read_bytes())).iter(f"{SPACE}page")
    markup = {
        e.findtext(f"{SPACE}id"): e.findtext(f"{SPACE}revision/{SPACE}text") for e in elements
    }
    found = 0
    for page in read_mediawiki(dump):
        shown = {
            (link[2] or link[1]).replace("''", "")
            for link in re.finditer(r"\[\[([^\]|]+)(?:\|([^\]|]*))?\]\]", markup[page.page_id])
        }
        for section in page.sections:
            for passage, links in zip(section.passages, section.links, strict=False):
                assert set(links) <= set(page.links)
                assert sum(text in passage for text in shown) >= len(links)
                found += len(links)
    assert found >= 78  # one of the 79 links stands in a list of sources


def test_no_markup_is_left_in_a_real_dump(dump):
    markup = re.compile(r"\{\{|\}\}|\{\||\|\}|\[\[|\]\]|''|</?(?:ref|br|div|span|small|sup|sub)\b")
    passages = [
        passage
        for page in read_mediawiki(dump)
        for section in page.sections
        for passage in section.passages
    ]
    assert len(passages) == 5210
    assert [passage for passage in passages if markup.search(passage)] == []
    assert passages[0].startswith("Anarchism is a political philosophy that advocates")
