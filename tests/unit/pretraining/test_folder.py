import os

import pytest
from without_packages import without_packages

from tfde.data.pages import Page, Section, read_pages
from tfde.errors import ConfigError, DataError, MissingExtraError
from tfde.pretraining.folder import parse_html, read_folder
from tfde.storage.intake import Intake

HTML = """<!DOCTYPE html><html><head><title>The site</title><style>p {}</style></head><body>
<nav><a href="nowhere.html">Menu</a></nav>
<main><h1>The <em>page</em></h1>
<p>First   paragraph,
with <a href="b.md#part">a link</a>.</p><p>Second.</p>
<ul><li>One</li><li>Two<p>Deeper</p></li></ul>
<h2>Part</h2>Bare text<br>goes on<pre>code()</pre><table><tr><td>cell</td></tr></table>
<div>Block</div>
<h3></h3><p>Under an empty heading</p><script>x</script>
</main><footer>Imprint</footer></body></html>"""


def test_html_becomes_sections():
    parsed = parse_html(HTML)
    assert parsed.title == "The page"
    assert parsed.sections == (
        Section(
            "",
            ("First paragraph, with a link.", "Second.", "One Two", "Deeper"),
            (("b.md#part",), (), (), ()),
        ),
        Section("Part", ("Bare text goes on", "Block")),
        Section("", ("Under an empty heading",)),
    )
    assert parsed.links == ("b.md#part",)


@pytest.mark.parametrize("mark", ["&#1;0&#2;", "&#1;99&#2;", "\x010\x02"])
def test_a_page_cannot_invent_links(mark):
    parsed = parse_html(f"<p>One {mark} two</p><p><a href='b.html'>three</a></p>")
    assert [section.links for section in parsed.sections] == [((), ("b.html",))]


@pytest.mark.parametrize(
    ("text", "title", "passages"),
    [
        ("<title>T</title><p>a", "T", [("a",)]),
        ("<p>a</p><h1>One</h1>b<h1>Two</h1>c", "One", [("a", "b"), ("c",)]),
        ("<article>x</article><article>y</article>", "", [("x", "y")]),
        ("a &amp; b&nbsp;c <!-- d -->", "", [("a & b c",)]),
        ("<div>" * 5000 + "deep", "", [("deep",)]),
        ("", "", []),
    ],
)
def test_html_of_all_kinds(text, title, passages):
    parsed = parse_html(text)
    assert parsed.title == title
    # A second <h1> begins a section, the first is the title.
    assert [section.passages for section in parsed.sections] == passages


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "site"
    (root / "sub dir").mkdir(parents=True)
    (root / ".hidden").mkdir()
    (root / ".hidden" / "x.md").write_text("hidden")
    (root / "a.html").write_text(HTML)
    (root / "picture.png").write_bytes(b"")
    (root / "b.md").write_text(
        "---\ntitle: front\n---\nIntro.\n\n# B\n\nText with `code`,\nsecond line.\n\n"
        "- one\n- two\n\n```\nprint()\n```\n\n## Why?\n\nBecause [of](sub%20dir/) "
        "[this](/a) ![p](picture.png) [out](http://x.org) [up](../..) [img](picture.png) [me](#x)\n"
    )
    (root / "sub dir" / "README.md").write_text("See [b](../b.md), [a](../a.html?q#f).")
    return root


def test_a_folder_is_read(folder):
    intake = Intake()
    assert list(read_folder(folder, intake)) == [
        Page(
            "a.html",
            "The page",
            (
                parse_html(HTML).sections[0]._replace(links=(("b.md",), (), (), ())),
                *parse_html(HTML).sections[1:],
            ),
            ("b.md",),
        ),
        Page(
            "b.md",
            "B",
            (
                Section("", ("Intro.", "Text with code, second line.", "one two")),
                Section(
                    "Why?",
                    ("Because of this out up img me",),
                    (("sub%20dir/README.md", "a.html"),),
                ),
            ),
            ("sub%20dir/README.md", "a.html"),
        ),
        Page(
            "sub%20dir/README.md",
            "README",
            (Section("", ("See b, a.",), (("b.md", "a.html"),)),),
            ("b.md", "a.html"),
        ),
    ]
    assert intake.left_out == {
        "files of other kinds": 1,
        "links out of the folder or to files of other kinds": 3,
    }


@pytest.mark.parametrize(
    ("name", "content", "message", "kind"),
    [
        (
            "c.md",
            b"x\ncaf\xe9",
            r"c\.md:2: must be utf-8 \(byte 5 of the file is not",
            "broken encoding",
        ),
        (
            "c.html",
            b'<meta charset="koi9">x',
            r"c\.html: must declare a known encoding\. .*'koi9'",
            "broken encoding",
        ),
        (
            "c.html",
            b'<meta charset="undefined">x',
            r"c\.html: must declare a known encoding\. .*'undefined'",
            "broken encoding",
        ),
        (
            "c.md",
            b"[x](" + 300 * b"l" + b")",
            r"c\.md:\d+: a link must lead to a file of the folder\. Received: 'lll",
            "link to nowhere",
        ),
        (
            "c.md",
            b"[x](no.html)",
            r"c\.md:\d+: a link must lead to a file of the folder\. .*'no.html'",
            "link to nowhere",
        ),
    ],
)
def test_a_bad_file_is_named_and_skipped_only_when_asked(folder, name, content, message, kind):
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_folder(folder))
    intake = Intake(skip_bad=True)
    assert len(list(read_folder(folder, intake))) == 3 + (kind == "link to nowhere")
    assert intake.kinds == {kind: 1}


def test_a_page_without_text_is_left_out(folder):
    (folder / "c.html").write_bytes(b"<pre>x</pre>")
    intake = Intake()
    assert len(list(read_folder(folder, intake))) == 3
    assert intake.left_out["pages without text"] == 1


def test_a_declared_encoding_is_used(tmp_path):
    (tmp_path / "a.html").write_bytes('<meta charset="latin-1"><p>café'.encode("latin-1"))
    (tmp_path / "b.html").write_bytes("\ufeff<p>汉".encode())
    passages = [page.sections[0].passages for page in read_folder(tmp_path)]
    assert passages == [("café",), ("汉",)]


def test_an_empty_folder_and_a_missing_one_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"must hold at least one page with text"):
        list(read_folder(tmp_path, Intake(skip_bad=True)))
    with pytest.raises(ConfigError, match=r"no: `input` must be a folder that exists"):
        list(read_folder(tmp_path / "no"))


@pytest.mark.parametrize("package", ["selectolax", "markdown-it-py"])
def test_without_the_parsers_the_extra_is_named(folder, monkeypatch, package):
    without_packages(monkeypatch, package)
    with pytest.raises(MissingExtraError, match=rf"'tfde\[pages\]'\. Received: {package} not inst"):
        list(read_folder(folder))


def test_real_pages_come_back_from_html(data_dir, tmp_path):
    pages = list(read_pages(data_dir / "peps" / "pages.jsonl.gz"))[:60]
    known = {page.page_id for page in pages}
    for page in pages:
        parts = [f"<h1>{_html(page.title)}</h1>"]
        for place, section in enumerate(page.sections):
            parts += [f"<h2>{_html(section.heading)}</h2>"] if place else []
            parts += [f"<p>{_html(passage)}</p>" for passage in section.passages]
        links = "".join(f'<a href="{link}.html"></a>' for link in page.links if link in known)
        text = f'<html><meta charset="utf-8"><body>{"".join(parts)}{links}'
        (tmp_path / f"{page.page_id}.html").write_text(text, encoding="utf-8")
    found = {page.page_id: page for page in read_folder(tmp_path)}
    assert len(found) == len(pages)
    for page in pages:
        read = found[f"{page.page_id}.html"]
        assert read.title == " ".join(page.title.split())
        assert read.links == tuple(
            f"{link}.html" for link in page.links if link in known and link != page.page_id
        )
        assert [section.passages for section in read.sections] == [
            tuple(" ".join(passage.split()) for passage in section.passages)
            for section in page.sections
        ]


def _html(text):
    return text.replace("&", "&amp;").replace("<", "&lt;")


@pytest.mark.parametrize("declared", ["iso-8859-1", "latin1", "us-ascii", "windows-1252"])
def test_latin_1_is_what_browsers_read(tmp_path, declared):
    head = f'<meta charset="{declared}"><p>'.encode()
    (tmp_path / "a.html").write_bytes(head + "It’s a “word” – 100 € café".encode("cp1252"))
    (tmp_path / "b.html").write_bytes(head + b"left \x81 open")
    texts = [found.sections[0].passages[0] for found in read_folder(tmp_path)]
    assert texts == ["It’s a “word” – 100 € café", "left \x81 open"]


@pytest.mark.parametrize(
    ("declared", "codec", "text"),
    [
        ("utf-16", "utf-8", "Hello world 汉字"),
        ("gb2312", "gbk", "朱镕基"),
        ("shift_jis", "cp932", "①髙島"),
        ("euc-kr", "cp949", "똠방각하"),
        ("iso-8859-9", "cp1254", "“ışık” – €"),
    ],
)
def test_names_of_encodings_mean_what_browsers_take_them_for(tmp_path, declared, codec, text):
    """Source: the Encoding Standard's labels."""
    head = f'<html><head><meta charset="{declared}"></head><body><p>'.encode()
    (tmp_path / "a.html").write_bytes(head + text.encode(codec))
    (page,) = read_folder(tmp_path)
    assert page.sections[0].passages == (text,)


def test_a_file_name_may_be_no_text(tmp_path):
    """As of old archives, whose names are in Latin-1."""
    (tmp_path / os.fsdecode(b"\xe9t\xe9.html")).write_text("<p>warm")
    (page,) = read_folder(tmp_path)
    assert page.page_id == "%E9t%E9.html"
