import json

import pytest

from tfde.cli.main import main
from tfde.data.pages import Page, Section, read_pages, write_pages

DUMP = """<mediawiki>
  <page>
    <title>A</title>
    <ns>0</ns>
    <id>1</id>
    <revision><text>One [[b]]. Two.</text></revision>
  </page>
  <page>
    <title>B</title>
    <ns>0</ns>
    <id>2</id>
    <revision><text>{text}</text></revision>
  </page>
  <page>
    <title>C</title>
    <ns>0</ns>
    <id>3</id>
    <redirect title="A" />
    <revision><text>#REDIRECT [[A]]</text></revision>
  </page>
</mediawiki>
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages = [
        Page("a", "A", (Section("", ("One. Two.", "Three.")),), ("b",)),
        Page("b", "B", (Section("", ("Four. Five. Six.",)),), ("a",)),
    ]
    write_pages(tmp_path / "pages.jsonl", pages)
    return tmp_path


def test_pages_of_a_dump(folder, capsys):
    (folder / "d.xml").write_text(DUMP.format(text="Three [[C|see]]."))
    assert main(["make-pages", "--input", "d.xml", "--output", "p.jsonl.gz"]) == 0
    assert capsys.readouterr().out == (
        "p.jsonl.gz: 2 pages, 2 sections, 2 passages, 2 links\nleft out: 1 redirects\n"
    )
    assert [(page.title, page.links) for page in read_pages("p.jsonl.gz")] == [
        ("A", ("2",)),
        ("B", ("1",)),
    ]


def test_pages_of_a_folder(folder, capsys):
    (folder / "docs").mkdir()
    (folder / "docs" / "x.md").write_text("# X\n\nText.")
    assert main(["make-pages", "--input", "docs", "--output", "p.jsonl"]) == 0
    assert capsys.readouterr().out == "p.jsonl: 1 pages, 1 sections, 1 passages, 0 links\n"


def test_bad_pages_are_skipped_only_when_asked(folder, capsys):
    (folder / "d.xml").write_text(DUMP.format(text="Form feed \x0c."))
    arguments = ["make-pages", "--input", "d.xml", "--output", "p.jsonl"]
    assert main(arguments) == 1
    message = "must be well-formed XML in UTF-8"
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (folder / "p.jsonl").exists()
    assert main([*arguments, "--skip_bad"]) == 0
    assert "skipped as bad: 1 broken page\n" in capsys.readouterr().out


def test_pairs_and_their_statistics(folder, capsys):
    arguments = ["make-pairs", "--pages", "pages.jsonl", "--seed", "5"]
    assert main([*arguments, "--output", "f.jsonl", "--limit", "3", "--task", "ict"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "pages.jsonl: 2 pages, 2 sections, 3 passages, 6 sentences, 2 links",
        "ict: 2 places; no pair from 1 passages of one sentence",
        "f.jsonl:",
        "task  words  pairs  query words  document words",
        "ict      10      3         1.00            2.33"
        if json.loads((folder / "f.jsonl").read_text().splitlines()[2])["positive"]["title"] == "A"
        else "ict      11      3         1.00            2.67",
    ]
    assert sorted(file.name for file in folder.iterdir()) == ["f.jsonl", "pages.jsonl"]
    again = [*arguments, "--output", "g.jsonl", "--limit", "3", "--task", "ict", "--workers", "2"]
    assert main([*again, "--store", "store"]) == 0
    assert (folder / "f.jsonl").read_bytes() == (folder / "g.jsonl").read_bytes()
    assert (folder / "store" / "store.json").is_file()


def test_epochs_weights_and_titles(folder, capsys):
    mixture = ["--task", "ict,wlp", "--weights", "1,3", "--epochs", "200", "--titles", "wlp"]
    assert main(["make-pairs", "--pages", "pages.jsonl", "--output", "f.jsonl", *mixture]) == 0
    records = [json.loads(line) for line in (folder / "f.jsonl").read_text().splitlines()]
    assert len(records) == 200 * (2 + 3)
    assert sum(record["task"] == "wlp" for record in records) == 750
    assert all(bool(r["positive"]["title"]) == (r["task"] == "wlp") for r in records)


def test_tokens_are_counted_with_a_tokenizer(folder, capsys):
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "a", "four", "five", "six"]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    arguments = ["--task", "wlp", "--tokenizer", "vocab.txt", "--output", "f.jsonl"]
    assert main(["make-pairs", "--pages", "pages.jsonl", *arguments]) == 0
    # A query is a word and its period; documents: twice or once "x. y.", once "Four. Five. Six.".
    table = capsys.readouterr().out.splitlines()[-2:]
    assert table[0] == "task  tokens  pairs  query tokens  document tokens"
    assert table[1].split()[2:4] == ["3", "2.00"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pages", "no.jsonl"], "no.jsonl: `pages` must be a file that exists."),
        (["--task", "ict,ict"], "`task` must be of different tasks. Received: 'ict,ict'"),
        (["--task", "icd"], "`tasks` must be of ict, bfs, wlp, span_crop, question."),
        (["--weights", "1,2"], "`weights` must be 3 numbers with commas between, one for each"),
        (["--weights", "1,x,2"], "`weights` must be 3 numbers with commas between, one for each"),
        (["--titles", "all"], "`titles` must be of ict, bfs, wlp, span_crop, question."),
    ],
)
def test_impossible_options_are_refused(folder, capsys, arguments, message):
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    options = {"--pages": "pages.jsonl", "--output": "f.jsonl", **given}
    assert main(["make-pairs", *(word for pair in options.items() for word in pair)]) == 1
    assert f"tfde make-pairs: {message}" in capsys.readouterr().err


def test_a_missing_input_is_refused(folder, capsys):
    assert main(["make-pages", "--input", "no", "--output", "p.jsonl"]) == 1
    assert "no: `input` must be a file or a folder that exists." in capsys.readouterr().err


def test_a_bad_page_says_how_to_leave_it_out(folder, capsys):
    (folder / "docs").mkdir()
    (folder / "docs" / "x.md").write_text("# X\n\nText [and more](gone.md).")
    assert main(["make-pages", "--input", "docs", "--output", "p.jsonl"]) == 1
    assert "(--skip_bad leaves out and counts such)" in capsys.readouterr().err
    page = (folder / "pages.jsonl").read_text().splitlines()[0]
    (folder / "bad.jsonl").write_text(page.replace('["b"]', '["nowhere"]') + "\n")
    assert main(["make-pairs", "--pages", "bad.jsonl", "--output", "f.jsonl"]) == 1
    assert "(--skip_bad leaves out and counts such)" in capsys.readouterr().err


def test_a_task_without_a_pair_is_named(folder, capsys):
    pages = [Page("a", "A", (Section("", ("One. Two.", "Three.")),), ())]
    write_pages(folder / "alone.jsonl", pages)
    assert main(["make-pairs", "--pages", "alone.jsonl", "--output", "f.jsonl"]) == 1
    said = capsys.readouterr().err
    assert "must leave out wlp, for the pages have no pair of it. Received: 1 pages with" in said
