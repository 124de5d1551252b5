"""A docstring as sections of prose: headings of Google's and NumPy's style, no code."""

from __future__ import annotations

import re

from tfde.data.pages import Section

# Google's style (and Keras'): a line of its own that ends in a colon, then indented text; of one
# word ("Example:") also before code that is not indented.
_GOOGLE = re.compile(r"([A-Z][A-Za-z]+(?: [A-Za-z]+){0,2}):{1,2}\s*$")
_INDENTED = re.compile(r"\s+\S")
_CODE_OR_BLANK = re.compile(r"\s*$|```|~~~|>>>")
_UNDERLINE = re.compile(r"\s*([-=~^])\1{2,}\s*$")
_FENCE = re.compile(r"\s*(```|~~~)")
_DIRECTIVE = re.compile(r"\s*\.\. [\w-]+::")


def docstring_sections(docstring: str) -> tuple[Section, ...]:
    """Returns the sections of a docstring without indentation (`inspect.cleandoc`).

    Passages are its paragraphs and list entries with white space run together; doctests, fenced
    code and directives are left out.
    """
    sections: list[tuple[str, list[str]]] = [("", [])]
    paragraph: list[str] = []

    def close() -> None:
        text = " ".join(" ".join(paragraph).split())
        paragraph.clear()
        if text:
            sections[-1][1].append(text)

    lines = docstring.splitlines()
    fenced = doctest = False
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if _FENCE.match(line):
            close()
            fenced = not fenced
        elif fenced:
            continue
        elif not line.strip():
            close()
            doctest = False
        elif line.lstrip().startswith(">>>"):
            close()
            doctest = True
        elif doctest or _UNDERLINE.match(line) or _DIRECTIVE.match(line):
            continue
        elif _UNDERLINE.match(following):
            close()
            sections.append((" ".join(line.split()), []))
        elif (heading := _GOOGLE.match(line)) and (
            _INDENTED.match(following)
            or (" " not in heading[1] and _CODE_OR_BLANK.match(following))
        ):
            close()
            sections.append((heading[1], []))
        else:
            if paragraph and _begins_entry(line):
                close()
            paragraph.append(line)
    close()
    return tuple(Section(heading, tuple(passages)) for heading, passages in sections if passages)


def _begins_entry(line: str) -> bool:
    """Whether a line begins an entry of a list or a parameter (`name: text`, `name : type`)."""
    return bool(re.match(r"\s*(?:[-*+] |\d+[.)] |`?\*{0,2}\w+`? ?(?:\([^)]*\))?:\s)", line))
