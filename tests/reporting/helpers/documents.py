"""Strict HTML parser: tags are balanced and nothing is loaded externally."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

VOID = {"meta", "input", "br", "hr", "img", "link", "wbr"}
# What may make a browser fetch something.
FETCHING = {"src", "href", "srcset", "action", "data", "poster", "xlink:href", "formaction", "background"}


class Document(HTMLParser):
    """Collects tags, attributes and visible text; fails where tags do not match."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"line {self.getpos()[0]}: </{tag}>"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)


def drawings(page: str) -> list[ET.Element]:
    """Every drawing, read as XML."""
    return [ET.fromstring(found) for found in re.findall(r"<svg\b.*?</svg>", page, re.DOTALL)]


def check(page: str) -> Document:
    """Parse a page; require valid drawings with titles and no external content.

    Addresses, imports and elements that load something are refused.
    """
    document = Document(page)
    found = drawings(page)
    assert found
    for drawing in found:
        assert drawing.get("aria-hidden") == "true" or drawing.findtext("{*}title")
    rest = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|//\w+\.|@import|javascript:|\bdata:", rest)
    assert not re.search(r"url\((?!#)", rest)
    for tag, attributes in document.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert not FETCHING & attributes.keys(), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
    return document
