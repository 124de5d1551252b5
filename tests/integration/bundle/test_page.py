"""The search page in a real browser: what it shows, and that it lives through an upgrade."""

import shutil

import pytest
from bundle_server import DOCUMENTS, BundleServer, assert_same_ranking

from tfde.cli.main import main
from tfde.export.bundle import export_bundle

pytestmark = pytest.mark.browser


@pytest.fixture
def browser(tmp_path):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={tmp_path / 'browser'}")
    options.add_argument("--window-size=1000,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options) as browser:
        yield browser
        assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def found_in(browser, selector):
    return browser.find_elements("css selector", selector)


def wait_for(browser, count):
    """Waits for so many hits; returns what stands above them."""
    from selenium.webdriver.support.ui import WebDriverWait

    def there(browser):
        about = found_in(browser, "#about")[0].text
        return len(found_in(browser, "#hits li")) == count and about.startswith(f"{count} pass")

    WebDriverWait(browser, 30).until(there)
    return found_in(browser, "#about")[0].text


def test_hits_of_a_question(server, exact, model, browser, tmp_path):
    browser.get(server.search_url)
    found_in(browser, "[name=query]")[0].send_keys("green <b>red\n")
    assert wait_for(browser, 10).endswith("retriever, version 1")
    hits = found_in(browser, "#hits li")
    where = [hit.find_element("class name", "where").text for hit in hits]
    found = [line.split(" · ")[2] for line in where]
    scores = model.encode_queries(["green <b>red"]) @ exact.vectors().T
    _, expected = exact.search(model.encode_queries(["green <b>red"]), 10)
    assert_same_ranking([found], expected.tolist(), scores)
    # A document without a title is called by the beginning of its text.
    documents = {document.doc_id: document for document in DOCUMENTS}
    for hit, doc_id in zip(hits, found, strict=True):
        name = hit.find_element("tag name", "h2").text.removesuffix(" …")
        title, text = documents[doc_id].title, documents[doc_id].text
        assert name == title if title else name and text.startswith(name)
    marked = {mark.text.lower() for mark in found_in(browser, "mark")}
    assert marked
    assert marked <= {"green", "red"}
    # The address holds the question: opened again, it is asked again.
    browser.get(browser.current_url.replace("k=10", "k=5"))
    wait_for(browser, 5)
    browser.save_screenshot(str(tmp_path / "page.png"))


def test_an_upgrade_between_two_questions(model, exact, browser, tmp_path):
    def export(version):
        filler = f"Sentence of version {version}, which says nothing. " * 12
        documents = [
            d._replace(title=f"{d.text.title()} ({version})", text=f"{filler}\n{d.text}. {filler}")
            for d in DOCUMENTS
        ]
        return export_bundle(
            model, exact, tmp_path / f"out-{version}" / "bundle", documents=documents,
            version=version, scann=False,
        )  # fmt: skip

    served = shutil.copytree(export(1), tmp_path / "served")
    server = BundleServer(served)
    try:
        browser.get(server.search_url)
        found_in(browser, "[name=query]")[0].send_keys("green red\n")
        for version in (1, 2):
            assert wait_for(browser, 10).endswith(f"version {version}")
            assert browser.execute_script("return scrollY") == 0
            browser.save_screenshot(str(tmp_path / f"version-{version}.png"))
            other = 3 - version
            for hit in found_in(browser, "#hits li"):
                title = hit.find_element("tag name", "h2").text
                snippet = hit.find_element("tag name", "p").text
                assert title.endswith(f"({version})")
                # The snippet is around the query's words, where the text has them.
                words = set(title.lower().split()) & {"green", "red"}
                assert {
                    m.text.lower() for m in hit.find_elements("css selector", "p mark")
                } == words
                assert len(snippet) < 400
                hit.find_element("tag name", "button").click()
                whole = hit.find_element("tag name", "p").text
                assert len(whole) > 1000
                assert f"of version {version}," in whole
                assert f"of version {other}," not in whole
                hit.find_element("tag name", "button").click()
                assert hit.find_element("tag name", "p").text == snippet
            if version == 1:
                new = str(export(2))
                command = ["bundle", "install", new, str(served), "--target", server.target]
                assert main(command) == 0
                found_in(browser, "form button")[0].click()
                from selenium.webdriver.support.ui import WebDriverWait

                WebDriverWait(browser, 30).until(
                    lambda b: "version 2" in found_in(b, "#about")[0].text
                )
    finally:
        server.process.terminate()
        assert server.process.wait(30) == 0
