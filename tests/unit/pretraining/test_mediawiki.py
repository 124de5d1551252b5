import bz2
import gzip
import itertools
from xml.sax.saxutils import escape

import pytest
from without_packages import without_packages

from tfde.cli.main import main
from tfde.data.pages import Page, Section, read_pages
from tfde.errors import DataError, MissingExtraError
from tfde.pretraining import mediawiki_dump
from tfde.pretraining.mediawiki import TitleTable, read_mediawiki
from tfde.pretraining.wikitext import parse_wikitext
from tfde.storage.intake import Intake

# The fields of version 0.11 of the export format, in their order
# (https://www.mediawiki.org/xml/export-0.11.xsd).
HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <dbname>dewiki</dbname>
    <base>https://de.wikipedia.org/wiki/Wikipedia:Hauptseite</base>
    <generator>MediaWiki 1.43</generator>
    <case>{case}</case>
    <namespaces>
      <namespace key="-2" case="first-letter">Medium</namespace>
      <namespace key="0" case="first-letter" />
      <namespace key="1" case="first-letter">Diskussion</namespace>
      <namespace key="6" case="first-letter">Datei</namespace>
      <namespace key="14" case="first-letter">Kategorie</namespace>
    </namespaces>
  </siteinfo>
"""
TAIL = "</mediawiki>\n"


def page(number, title, text, *, ns=0, redirect=None, model="wikitext"):
    leads = f'    <redirect title="{escape(redirect)}" />\n' if redirect else ""
    return f"""  <page>
    <title>{escape(title)}</title>
    <ns>{ns}</ns>
    <id>{number}</id>
{leads}    <revision>
      <id>{number + 1000}</id>
      <timestamp>2026-01-01T00:00:00Z</timestamp>
      <contributor>
        <username>A</username>
        <id>7</id>
      </contributor>
      <origin>{number + 1000}</origin>
      <model>{model}</model>
      <format>text/x-wiki</format>
      <text bytes="{len(text.encode())}" sha1="x" xml:space="preserve">{escape(text)}</text>
      <sha1>x</sha1>
    </revision>
  </page>
"""


def dump(path, *pages, tail=TAIL):
    data = (HEAD.format(case="first-letter") + "".join(pages) + tail).encode()
    packed = {".bz2": bz2.compress, ".gz": gzip.compress}.get(path.suffix, bytes)
    path.write_bytes(packed(data))
    return path


def sections(text):
    return parse_wikitext(text, {"file": 6, "image": 6, "category": 14, "talk": 1}).sections


def plain(text):
    """The only passage of a text."""
    (section,) = sections(text)
    assert section.heading == ""
    (passage,) = section.passages
    return passage


@pytest.mark.parametrize(
    ("markup", "expected"),
    [
        ("'''Bold''' and ''italic'' text", "Bold and italic text"),
        ("A [[link]] and [[page|another]]s", "A link and anothers"),
        ("See [[:Category:X]] [[Talk:Y|there]]", "See Category:X there"),
        ("Text[[File:a.jpg|thumb|A [[caption]]]] goes on", "Text goes on"),
        ("Text [[Category:X]][[fr:Texte]]", "Text"),
        ("At [http://a.org the site] http://b.org [http://c.org]", "At the site http://b.org"),
        ("Fact<ref name=a>Source</ref>, fact<ref name=a/>.", "Fact, fact."),
        ("A {{template|x}} B", "A B"),
        ("Name ({{IPA|x}}) and ({{lang|x}}; {{b}}) too", "Name and too"),
        ("x<sup>2</sup> &amp; &ndash; <math>y</math> z", "x2 & – z"),
        ("A<!-- hidden --> B __NOTOC__", "A B"),
        ("* One\n* Two\n** Three", "One Two Three"),
        ("One<br/>two<nowiki/>s <nowiki>[[x]]</nowiki>", "One twos [[x]]"),
        ("Lone '' marks", "Lone marks"),
        ("''Time'''s editor", "Time's editor"),
        ("'''Apple''''s stock, '''''both'''''", "Apple's stock, both"),
        ("L'''arbre'' here", "L'arbre here"),
        ("''The Wire'''s first '''season'''", "The Wire's first season"),
        ("It followed [[CSI: NY]], [[Re:Zero]] [[fr:Texte]]", "It followed CSI: NY, Re:Zero"),
        ("main() calls f( ) and __FILE__ __TOC__ here", "main() calls f and __FILE__ here"),
        ("<div>Inside</div>", "Inside"),
        ("One <includeonly>of others</includeonly><noinclude>two</noinclude>", "One two"),
        ("High.<ref>no end. More [[text]] {{cite}}", "High. no end. More text"),
        ("Ende</ref> hier und x < y", "Ende hier und x < y"),
        ("Da [[Bild:Alt.JPG|mini|Eine [[Form]]]] steht [[Fichier:b.svg]] es", "Da steht es"),
        ("See [[:Bild:Alt.jpg|the picture]] and [[Alt.jpg]]", "See the picture and Alt.jpg"),
    ],
)
def test_markup_becomes_what_a_reader_sees(markup, expected):
    assert plain(markup) == expected


def test_sections_and_paragraphs():
    text = """{{Infobox|x}}
Lead one.

Lead two.
goes on.
{| class=x
| cell
|}
Lead three.
== History ==
Text.
=== [[Early]] ''times'' ===
More.
==Empty==
{{table}}
== See also ==
* [[Kept as a link]]
"""
    parsed = parse_wikitext(text, {})
    assert parsed.sections == (
        Section("", ("Lead one.", "Lead two. goes on.", "Lead three.")),
        Section("History", ("Text.",)),
        Section("Early times", ("More.",)),
    )
    assert parsed.links == ("Early", "Kept as a link")


def test_links_stand_with_their_passages():
    text = """A [[B]] and [[C|c]], [[B]] again.

None here.

([[D]])
{| class=x
| [[Z]]
|}
== Of [[E]] ==
[[F]]''s'' [[File:x.png|thumb|a [[G]]]]
== See also ==
* [[H]]
"""
    parsed = parse_wikitext(text, {"file": 6})
    assert parsed.sections == (
        Section("", ("A B and c, B again.", "None here.", "(D)"), (("B", "C"), (), ("D",))),
        Section("Of E", ("Fs",), (("F",),)),
    )
    assert set(parsed.links) == set("BCDEFGH")  # a table is no text


@pytest.mark.parametrize("mark", ["&#1;0&#2;", "&#1;99&#2;", "\x010\x02"])
def test_a_page_cannot_invent_links(mark):
    (section,) = sections(f"One {mark} two.\n\n[[Three]]")
    assert section.links == ((), ("Three",))


def test_links_are_those_to_articles():
    text = "[[A]] [[A|again]] [[B#part|b]] [[#here]] [[:C]] [[File:x.png]] [[Talk:D]] [[wikt:e|e]]"
    parsed = parse_wikitext(text, {"file": 6, "talk": 1})
    assert parsed.links == ("A", "B#part", "C", "wikt:e")


def test_titles_are_found_as_the_wiki_finds_them():
    table = TitleTable(first_letter=True)
    table.add_page("New York & more", 7)
    table.add_redirect("NYC", "Big Apple")
    table.add_redirect("Big Apple", "New York & more")
    table.add_redirect("Loop", "Loop")
    for title in ("New York & more", "new_York  &amp; more#History", "New%20York & more", "nYC"):
        assert table.page_number(title) == 7
    assert table.page_number("Loop") is None
    assert table.page_number("nowhere") is None
    exact = TitleTable(first_letter=False)
    exact.add_page("iPod", 1)
    assert exact.page_number("iPod") == 1
    assert exact.page_number("IPod") is None


PAGES = [
    page(
        10, "Anfang", "Der [[Anfang]] vom [[Ende]], [[umleitung|U]], [[Nichts]].\n== Teil ==\nMehr."
    ),
    page(11, "Umleitung", "#WEITERLEITUNG [[Ende]]", redirect="Ende"),
    page(12, "Diskussion:Anfang", "Gerede", ns=1),
    page(13, "Ende", "Schluss & <Ende>. [[Datei:x.jpg|Bild]] [[Kategorie:Y]] [[anfang]]"),
    page(14, "Stil", "a{}", model="css"),
]
EXPECTED = [
    Page(
        "10",
        "Anfang",
        (
            Section("", ("Der Anfang vom Ende, U, Nichts.",), (("13",),)),
            Section("Teil", ("Mehr.",)),
        ),
        ("13",),
    ),
    Page("13", "Ende", (Section("", ("Schluss & . anfang",), (("10",),)),), ("10",)),
]


@pytest.mark.parametrize(
    ("name", "workers"), [("d.xml", 1), ("d.xml.bz2", 1), ("d.xml.gz", 1), ("d.xml", 2)]
)
def test_a_dump_is_read(tmp_path, name, workers):
    pages = [text.replace("<Ende>", "").replace("&lt;Ende&gt;", "") for text in PAGES]
    intake = Intake()
    assert list(read_mediawiki(dump(tmp_path / name, *pages), intake, workers=workers)) == EXPECTED
    assert intake.left_out == {
        "redirects": 1,
        "pages of other namespaces": 1,
        "pages that are no wikitext": 1,
        "links to pages outside the dump": 1,
    }


def test_an_old_dump_without_namespaces_and_redirect_titles(tmp_path):
    pages = [
        text.replace("    <ns>0</ns>\n", "").replace("    <ns>1</ns>\n", "") for text in PAGES[:4]
    ]
    pages[1] = pages[1].replace(' title="Ende"', "")
    plain = [text.replace("&lt;Ende&gt;", "") for text in pages]
    assert list(read_mediawiki(dump(tmp_path / "d.xml", *plain))) == EXPECTED
    # Before version 0.4 there was no <redirect> at all, only the English word in the text.
    older = plain[1].replace("    <redirect />\n", "").replace("WEITERLEITUNG", "Redirect")
    assert list(read_mediawiki(dump(tmp_path / "d.xml", plain[0], older, *plain[2:]))) == EXPECTED


GOOD = page(20, "Gut", "Gutes.")
BAD = [
    (
        page(21, "X", "Text.").replace("</title>", ""),
        r"d\.xml:51: .*well-formed XML .*mismatched",
        "broken page",
    ),
    (page(21, "", "Text."), r"d\.xml:34: a page must have a <title>", "broken page"),
    (
        page(21, "X", "Text.").replace("<id>21</id>", ""),
        r"d\.xml:34: a page must have an <id>",
        "broken page",
    ),
    (
        page(1 << 63, "X", "Text."),
        r"d\.xml:34: .* <id>, a number of 64 bits\. Received: '9223372036854775808'",
        "broken page",
    ),
    (
        page(21, "X", "Text \x0c."),
        r"d\.xml:48: must be well-formed XML in UTF-8 \(not well",
        "broken page",
    ),
    (page(21, "X", "Text.")[:-9], r"d\.xml:34: a <page> must end before the next", "cut page"),
]


@pytest.mark.parametrize(("bad", "message", "kind"), BAD)
def test_a_bad_page_is_named_and_skipped_only_when_asked(tmp_path, bad, message, kind):
    path = dump(tmp_path / "d.xml", GOOD, bad, page(22, "Auch", "Auch gut."))
    line = path.read_text().split("\n").index("  <page>") + 1
    assert line == 16
    with pytest.raises(DataError, match=message):
        list(read_mediawiki(path))
    intake = Intake(skip_bad=True)
    assert [found.page_id for found in read_mediawiki(path, intake)] == ["20", "22"]
    assert intake.kinds == {kind: 1}


@pytest.mark.parametrize("ns", ["--5", "9" * 5000, "x"])
def test_a_namespace_that_is_none_is_no_articles(tmp_path, ns):
    path = dump(tmp_path / "d.xml", GOOD, page(21, "X", "Text.", ns=ns))
    assert [found.page_id for found in read_mediawiki(path)] == ["20"]


def test_a_broken_encoding_is_named(tmp_path):
    path = dump(tmp_path / "d.xml", GOOD, page(21, "X", "Umlaut"))
    path.write_bytes(path.read_bytes().replace(b"Umlaut", b"Uml\xe4ut"))
    message = r"d\.xml:48: must be well-formed XML in UTF-8 \(not well-formed"
    with pytest.raises(DataError, match=message):
        list(read_mediawiki(path))
    intake = Intake(skip_bad=True)
    assert [found.page_id for found in read_mediawiki(path, intake)] == ["20"]
    assert intake.kinds == {"broken page": 1}


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        ("", r"d\.xml:34: the dump is cut in this line \(no </mediawiki>\)"),
        ("  <page>\n  <title>Ha", r"d\.xml:34: the dump is cut inside a page that begins in this"),
        ("  <pa", r"d\.xml:34: the dump is cut in this line \(no </mediawiki>\)"),
    ],
)
def test_a_cut_dump_is_named_and_read_up_to_the_cut_only_when_asked(tmp_path, tail, message):
    path = dump(tmp_path / "d.xml", GOOD, tail=tail)
    with pytest.raises(DataError, match=message):
        list(read_mediawiki(path))
    intake = Intake(skip_bad=True)
    assert [found.page_id for found in read_mediawiki(path, intake)] == ["20"]
    assert intake.kinds == {"cut dump": 1}


@pytest.mark.parametrize(("suffix", "name"), [(".bz2", "bzip2"), (".gz", "gzip")])
def test_a_cut_packed_dump_is_named(tmp_path, suffix, name):
    pages = [page(n, f"P{n}", f"Text {n * 7919} {n * 104_729}.") for n in range(3000)]
    path = dump(tmp_path / f"d.xml{suffix}", *pages)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=rf"d\.xml\{suffix}:\d+: the {name} stream must be whole"):
        list(read_mediawiki(path))
    if suffix == ".gz":  # so small a dump is a single block of bzip2
        intake = Intake(skip_bad=True)
        assert 500 < len(list(read_mediawiki(path, intake))) < 2500
        assert intake.kinds == {"damaged compression": 1}


def test_what_is_no_dump_is_refused(tmp_path):
    whole = dump(tmp_path / "d.xml", GOOD).read_bytes()
    for name, content in [
        ("a.xml", b"<html></html>"),
        ("b.xml", bz2.compress(whole)),
        ("f.xml", b""),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=rf"{name}:1: must be a MediaWiki export: XML that"):
            list(read_mediawiki(tmp_path / name))
    for name, kind in (("c.xml.bz2", "bzip2"), ("e.xml.gz", "gzip")):
        (tmp_path / name).write_bytes(whole)
        with pytest.raises(DataError, match=rf"{name}:1: the {kind} stream must be whole"):
            list(read_mediawiki(tmp_path / name))
    (tmp_path / "g.xml").write_bytes(gzip.compress(whole))
    with pytest.raises(DataError, match=r"g\.xml: is packed with gzip"):
        list(read_mediawiki(tmp_path / "g.xml"))
    broken = whole.replace(b"</sitename>", b"")
    (tmp_path / "h.xml").write_bytes(broken)
    with pytest.raises(DataError, match=r"h\.xml:1: <siteinfo> must be well-formed XML"):
        list(read_mediawiki(tmp_path / "h.xml"))
    (tmp_path / "i.xml").write_bytes(whole.replace(b'key="1"', b'key="x"'))
    with pytest.raises(DataError, match=r"i\.xml:1: the key of a namespace must be an integer\."):
        list(read_mediawiki(tmp_path / "i.xml"))


def test_pages_without_text_are_left_out_and_so_are_the_links_to_them(tmp_path, capsys):
    """Empty, and of a template alone; one comes before the page that links to it, one behind."""
    empty = page(21, "Leer", "")
    linking = page(22, "Text", "Siehe [[Leer]], [[Kasten]] und [[Gut]].")
    path = dump(tmp_path / "d.xml", empty, GOOD, linking, page(23, "Kasten", "{{Kasten|a=b}}"))
    output = tmp_path / "pages.jsonl"
    assert main(["make-pages", "--input", str(path), "--output", str(output)]) == 0
    assert [(found.title, found.links) for found in read_pages(output)] == [
        ("Gut", ()),
        ("Text", ("20",)),
    ]
    shown = capsys.readouterr().out
    assert "2 pages, 2 sections, 2 passages, 1 links" in shown
    assert "left out: 2 links to pages that were left out, 2 pages without text" in shown


def test_pages_whose_links_are_not_mended_yet_stand_nowhere(tmp_path, monkeypatch):
    path = dump(tmp_path / "d.xml", page(21, "Leer", ""), GOOD)
    output = tmp_path / "pages.jsonl"
    output.write_text("older\n")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("tfde.data.pages.with_links_within", interrupted)
    assert main(["make-pages", "--input", str(path), "--output", str(output)]) == 130
    assert output.read_text() == "older\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["d.xml", "pages.jsonl"]


@pytest.mark.parametrize("pages", [[], [PAGES[1], PAGES[2]]])
def test_a_dump_without_articles_is_an_error(tmp_path, pages):
    path = dump(tmp_path / "d.xml", *pages)
    with pytest.raises(DataError, match=r"d\.xml: must hold at least one page with text"):
        list(read_mediawiki(path, Intake(skip_bad=True)))


def test_a_page_of_all_revisions_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(mediawiki_dump, "MAX_PAGE_BYTES", 1 << 20)
    monkeypatch.setattr(mediawiki_dump, "_BLOCK_BYTES", 1 << 16)
    path = dump(tmp_path / "d.xml", GOOD, page(21, "X", "long " * 500_000), page(22, "Y", "Gut."))
    with pytest.raises(DataError, match=r"d\.xml:34: a page must be at most 1 MiB \(a dump of cur"):
        list(read_mediawiki(path))
    intake = Intake(skip_bad=True)
    assert [found.page_id for found in read_mediawiki(path, intake)] == ["20", "22"]
    assert intake.kinds == {"page too large": 1}


def test_without_the_parser_the_extra_is_named(monkeypatch):
    without_packages(monkeypatch, "mwparserfromhell")
    with pytest.raises(MissingExtraError, match=r"needs the extra 'pages': pip install 'tfde\[pag"):
        parse_wikitext("x", {})


def test_real_pages_come_back_from_a_dump(data_dir, tmp_path):
    pages = list(itertools.islice(read_pages(data_dir / "wikispeedia" / "pages.jsonl.gz"), 300))
    numbers = {page.page_id: str(place + 1) for place, page in enumerate(pages)}
    known = [[link for link in page.links if link in numbers] for page in pages]
    elements = []
    for number, (source, links) in enumerate(zip(pages, known, strict=True), start=1):
        parts = []
        for place, section in enumerate(source.sections):
            parts += [f"== {section.heading} =="] if place else []
            parts += ["\n\n".join(f"<nowiki>{passage}</nowiki>" for passage in section.passages)]
        # Names of links, which show no text: as files' captions do not.
        parts += ["", "== See also ==", *(f"* [[{link}]]" for link in links)]
        elements.append(page(number, source.page_id.replace("_", " "), "\n".join(parts)))
    found = list(read_mediawiki(dump(tmp_path / "d.xml.bz2", *elements)))
    assert len(found) == len(pages)
    for source, links, read in zip(pages, known, found, strict=True):
        assert read.page_id == numbers[source.page_id]
        assert read.title == source.page_id.replace("_", " ")
        assert read.links == tuple(numbers[link] for link in links if link != source.page_id)
        plain = [  # marks of bold and italic are MediaWiki's to tell from apostrophes
            [
                [" ".join(passage.replace("'", "").split()) for passage in section.passages]
                for section in page.sections
            ]
            for page in (read, source)
        ]
        assert plain[0] == plain[1]
        assert [s.heading for s in read.sections[1:]] == [s.heading for s in source.sections[1:]]


def test_links_to_pages_of_another_model_are_left_out(tmp_path):
    found = read_mediawiki(
        dump(
            tmp_path / "d.xml",
            page(1, "A", "To [[B]] and [[C]]"),
            page(2, "B", "Text"),
            page(3, "C", "{}", model="json"),
        )
    )
    assert [read.links for read in found] == [("2",), ()]
