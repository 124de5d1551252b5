"""`tfde evaluate --report`: the page of two runs, read as a browser would."""

import csv
import gzip
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from tfde.cli.main import main
from tfde.data.dataset_writer import write_dataset
from tfde.data.formats.records import Judgement
from tfde.evaluation import report_directory
from tfde.retrieval.runs import write_run
from tfde.types import Document, Query

DOCUMENTS = [
    Document(f"d{n}", "<b>title</b>" if n == 1 else "", f"text {n} " + "word " * n)
    for n in range(12)
]
QUERIES = [Query(f"q{n}", f"question <script>alert({n})</script>") for n in range(10)]
JUDGEMENTS = [Judgement("test", f"q{n}", f"d{n}", 1) for n in range(10)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Run a has every right document first; run b has it second for even queries, else not."""
    monkeypatch.chdir(tmp_path)
    write_dataset("data", [*DOCUMENTS, *QUERIES, *JUDGEMENTS])
    write_run("a.trec", {f"q{n}": {f"d{n}": 2.0, "d11": 1.0} for n in range(10)})
    write_run("b.trec", {f"q{n}": {"d11": 2.0, f"d{n}": 1.0 - n % 2} for n in range(0, 10, 2)})
    return tmp_path


def evaluate(*arguments):
    files = ["--run_file", "a.trec", "--run_file", "b.trec"]
    return main(["evaluate", "--dataset", "data", *files, "--measures", "RR,R@10", *arguments])


class _Page(HTMLParser):
    """Open tags, text, and everything that a page would fetch."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.fetched, self.names = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        if tag not in ("meta", "br", "link", "img"):
            self.open.append(tag)
        addresses = (value for name, value in attrs if name in ("src", "href", "xlink:href"))
        self.fetched += [value for value in addresses if not value.startswith("#")]

    def handle_startendtag(self, tag, attrs):
        self.names.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_stands_alone_and_says_what_the_runs_say(folder, capsys):
    assert evaluate("--report", "out/report") == 0
    out, error = capsys.readouterr()
    assert "| a.trec | 1.0000 | 1.0000 |" in out
    assert error.strip().endswith("out/report/report.html")
    page = _Page((folder / "out/report/report.html").read_text())
    assert (page.open, page.fetched) == ([], [])
    assert "script" not in page.names
    assert page.names.count("svg") == 4
    assert page.names.count("details") == 1 + 8  # what it is from, and queries
    text = " ".join(page.texts)
    assert "question <script>alert(1)</script>" in text
    assert "<b>title</b>. text 1" in text
    assert re.search(r"b\.trec\s+0\.2500\s+\[0\.\d+, 0\.\d+\]\s+0\.5000", text)
    # Odd queries, which b does not find, gain 1 in RR; even ones 1/2. b gains nowhere.
    assert "RR: where a.trec loses most to b.trec Nowhere." in re.sub(r"\s+", " ", text)
    assert "relevant ; d1; a.trec: rank 1; b.trec: not found" in text
    assert "q1: 1.0000, the other 0.0000" in text


def test_the_charts_show_the_right_numbers(folder, monkeypatch):
    drawn = {}
    for name in ("recall_chart", "score_chart", "length_chart"):
        original = getattr(report_directory, name)

        def keep(values, name=name, original=original):
            drawn[name] = values
            return original(values)

        monkeypatch.setattr(report_directory, name, keep)
    # A query of another split, whose documents are none of this report's business.
    with open("a.trec", "a") as file:
        file.write("elsewhere Q0 d10 1 1.0 a\n")
    assert evaluate("--report", "report") == 0
    # Run b finds half of the documents, all of them second.
    recall = drawn["recall_chart"]
    assert (recall["a.trec"][1], recall["b.trec"][1], recall["b.trec"][2]) == (1.0, 0.0, 0.5)
    scores = drawn["score_chart"]
    assert scores["a.trec"] == ([2.0] * 10, [1.0] * 10)  # of what is relevant, and of the best else
    assert scores["b.trec"] == ([1.0] * 5, [2.0] * 5)
    # d0 has two words, d1 a title of one and three, d2 four, ...
    lengths = drawn["length_chart"]
    relevant = [2, 4, 4, 5, 6, 7, 8, 9, 10, 11]
    assert sorted(lengths["corpus"]) == [*relevant, 12, 13]
    assert sorted(lengths["relevant"]) == relevant
    assert sorted(lengths["a.trec, first 10"]) == [*relevant, *[13] * 10]
    page = re.sub(" +", " ", (folder / "report/report.md").read_text())
    assert "| relevant | 10 | 6.6 | 4.2 | 6.5 | 8.8 |" in page
    assert "| b.trec | 0.0000 | 0.5000 | 0.5000 |" in page


def test_a_query_of_many_words_is_cut(folder):
    line = json.dumps({"_id": "q1", "text": "long " * 500})
    path = folder / "data" / "queries.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    path.write_bytes(gzip.compress("\n".join([lines[0], line, *lines[2:]]).encode()))
    assert evaluate("--report", "report") == 0
    shown = "long " * 79 + "long…"
    for name in ("report.html", "report.md"):
        text = (folder / "report" / name).read_text()
        assert shown[:390] in text
        assert "long " * 81 not in text


def test_markdown_and_table_of_queries(folder):
    assert evaluate("--report", "report") == 0
    markdown = (folder / "report/report.md").read_text()
    pictures = re.findall(r"\(charts/(\w+\.svg)\)", markdown)
    assert sorted(pictures) == sorted(path.name for path in (folder / "report/charts").iterdir())
    assert "question &lt;script&gt;alert(1)&lt;/script&gt;" in markdown
    assert r"\<b\>title\</b\>. text 1" in markdown
    (line,) = [line for line in markdown.splitlines() if line.startswith("| a.trec | b.trec | RR ")]
    assert line.split("|")[4].split()[0] == "+0.7500"
    assert line.rstrip(" |").split("|")[-2:] == ["        10 ", "        0"]
    with (folder / "report/queries.csv").open(newline="") as file:
        rows = {row["query_id"]: row for row in csv.DictReader(file)}
    assert float(rows["q2"]["b.trec: RR"]) == 0.5
    assert float(rows["q3"]["b.trec: R@10"]) == 0.0
    assert rows["q3"]["text"] == "question <script>alert(3)</script>"


def test_queries_are_compared_by_what_tells_more_than_yes_and_no(folder):
    files = ["--run_file", "a.trec", "--run_file", "b.trec"]
    command = ["evaluate", "--dataset", "data", *files, "--report"]
    for measures, leading in ((["P@1", "RR"], "RR"), (["P@1", "R@10"], "P@1")):
        assert main([*command, leading, "--measures", *measures]) == 0
        markdown = (folder / leading / "report.md").read_text()
        assert f"### {leading}: where a.trec gains most over b.trec" in markdown


def test_one_system_is_not_compared(folder):
    assert main(["evaluate", "--dataset", "data", "--run_file", "a.trec", "--report", "one"]) == 0
    assert "Comparisons" not in (folder / "one/report.md").read_text()


def test_a_report_is_refused_before_any_work(folder, capsys):
    (folder / "full").mkdir()
    (folder / "full" / "mine.txt").write_text("kept")
    assert evaluate("--report", "full") == 1
    out, error = capsys.readouterr()
    assert (out, "full" in error) == ("", True)  # no table: nothing was measured yet
    assert [path.name for path in (folder / "full").iterdir()] == ["mine.txt"]


def test_names_that_matplotlib_and_markdown_would_read_otherwise(folder):
    for name in ("a$b_$c", "_hidden", "<b onclick=1>"):
        (folder / name).write_text((folder / "a.trec").read_text())
    files = ["--run_file", "a$b_$c", "--run_file", "_hidden", "--run_file", "<b onclick=1>"]
    files += ["--measures", "RR"]
    assert main(["evaluate", "--dataset", "data", *files, "--report", "report"]) == 0
    page = _Page((folder / "report" / "report.html").read_text())
    assert "b" not in page.names
    assert "<b onclick=1>" in page.texts


def test_one_query_and_equal_scores(folder):
    (folder / "data" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td0\t1\n")
    write_run("c.trec", {"q0": {"d3": float(np.nextafter(0.5, 1)), "d0": 0.5}})
    files = ["--run_file", "a.trec", "--run_file", "c.trec", "--measures", "RR"]
    assert main(["evaluate", "--dataset", "data", *files, "--report", "report"]) == 0
    (line,) = [
        line
        for line in (folder / "report/report.md").read_text().splitlines()
        if line.startswith("| a.trec | c.trec | RR ")
    ]
    assert line.split("|")[5].strip() == "1.0000"  # p: one query proves nothing


@pytest.mark.browser
def test_the_page_in_a_browser(folder):
    from selenium import webdriver
    from selenium.webdriver.common.by import By

    assert evaluate("--report", "report") == 0
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options) as browser:
        browser.get(f"file://{folder / 'report' / 'report.html'}")
        assert browser.title == "Retrieval on data, test"
        pictures = browser.find_elements(By.CSS_SELECTOR, "figure svg")
        assert all(picture.size["width"] > 300 for picture in pictures)
        first = browser.find_element(By.CSS_SELECTOR, "h3 ~ details")
        assert not first.find_element(By.TAG_NAME, "li").is_displayed()
        first.find_element(By.TAG_NAME, "summary").click()
        assert "a.trec: rank 1" in first.find_element(By.TAG_NAME, "li").text
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= browser.execute_script("return window.innerWidth")
        assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
