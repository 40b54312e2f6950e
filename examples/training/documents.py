"""Samples from documentation in HTML, as unpacked from Debian packages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

# Package, and the folders below usr/share/doc that are read.
FOLDERS = {
    "python3.11-doc": ("python3.11/html",),
    "python-django-doc": ("python-django-doc/html",),
    "python-sympy-doc": ("python-sympy-doc/html",),
    "rust-doc": tuple(
        f"rust-doc/html/{book}"
        for book in (
            "book", "reference", "rust-by-example", "nomicon", "edition-guide", "embedded-book",
            "cargo", "rustc", "rustdoc", "std", "proc_macro",
        )
    ),
}  # fmt: skip
_UNREAD = re.compile(
    r"/(_modules|_static|_images|genindex|search|py-modindex|first-edition|second-edition"
    r"|2018-edition|arch|intrinsics|core_arch|simd|whatsnew/changelog)|/(index|toc|print)\.html"
)
Block = tuple[str, str]

_BLOCKS = {"p", "li", "pre", "dt", "dd", "h1", "h2", "h3", "h4", "td", "th", "blockquote"}
_SILENT = {"script", "style", "nav", "aside", "footer", "button", "form", "noscript", "select"}
_LINKS = re.compile(r"\[source\]|#\s*$")  # which Sphinx puts behind names and headings
_BOILERPLATE = re.compile(r"\s*(impl\b|source\b|\d+\.\d+\.\d+ (\([^)]*\) )?· source)")  # rustdoc's
_CHUNK = 2200  # characters


class _Reader(HTMLParser):
    """Collects the blocks of a page's main part."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[Block] = []
        self._main = ""  # the tag that the main part began with
        self._depth = 0  # of that tag
        self._silent = 0
        self._kind = "p"
        self._text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self._main:
            named = dict(attrs)
            if tag == "main" or named.get("role") == "main" or named.get("id") == "main-content":
                self._main, self._depth = tag, 1
            return
        if tag == self._main:
            self._depth += 1
        elif tag in _SILENT:
            self._silent += 1
        if tag in _BLOCKS and self._kind != "pre":
            self._flush()
            self._kind = tag

    def handle_endtag(self, tag: str) -> None:
        if not self._main:
            return
        if tag in _SILENT:
            self._silent = max(0, self._silent - 1)
        elif tag == "pre" or (tag in _BLOCKS and self._kind != "pre"):
            self._flush()
            self._kind = "p"
        if tag == self._main:
            self._depth -= 1
            if not self._depth:
                self._flush()
                self._main = ""

    def handle_data(self, data: str) -> None:
        if self._main and not self._silent:
            self._text.append(data)

    def _flush(self) -> None:
        text = "".join(self._text).replace("¶", "").replace("§", "")
        if self._kind != "pre":
            text = _LINKS.sub("", text).removesuffix(" Read more")
        self._text.clear()
        if _BOILERPLATE.match(text):
            return
        text = text.strip("\n").rstrip() if self._kind == "pre" else " ".join(text.split())
        if len(text) > 2:
            self.blocks.append((self._kind, text))


def page_blocks(path: Path) -> list[Block]:
    """The headings, paragraphs, list items and code of one page, in order."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8", errors="ignore"))
    return reader.blocks


def pages(docs: Path) -> list[Path]:
    """Every page to read below ``docs``, the folder that the packages were unpacked into."""
    found: list[Path] = []
    for folders in FOLDERS.values():
        for folder in folders:
            paths = sorted((docs / "usr/share/doc" / folder).rglob("*.html"))
            found += [path for path in paths if not _UNREAD.search(path.as_posix())]
    return found


def fresh(blocks: Iterable[Block], seen: set[int]) -> list[Block]:
    """The blocks without those that an earlier page had, headings excepted."""
    kept = []
    for kind, text in blocks:
        if kind[0] != "h" and len(text) > 30:
            key = hash(text)
            if key in seen:
                continue
            seen.add(key)
        kept.append((kind, text))
    return kept


def _markdown(block: Block) -> str:
    kind, text = block
    if kind[0] == "h" and kind[1:].isdigit():
        return "#" * int(kind[1]) + " " + text
    if kind == "pre":
        return f"```\n{text}\n```"
    return f"- {text}" if kind == "li" else text


def page_texts(blocks: list[Block]) -> Iterator[dict[str, Any]]:
    """The page as plain text, in pieces that begin at blocks."""
    piece: list[str] = []
    size = 0
    for block in blocks:
        text = _markdown(block)[:_CHUNK]
        if piece and (size + len(text) > _CHUNK or (block[0] in ("h1", "h2") and size > 800)):
            yield {"text": "\n\n".join(piece)}
            piece, size = [], 0
        piece.append(text)
        size += len(text) + 2
    if size > 120:
        yield {"text": "\n\n".join(piece)}


_ABOUT = (
    "Explain {0} ({1}).", "What is {0} in {1}?", "Tell me about {0} in {1}.",
    "Give me a short introduction to {0} ({1}).", "In {1}: {0}. Explain.",
)  # fmt: skip
_DOES = ("What does `{0}` do?", "Explain `{0}`.", "What is `{0}` for?", "Describe `{0}`.")
_PLAIN_HEADING = re.compile(r"[A-Za-z].{3,60}")


def page_chats(blocks: list[Block]) -> Iterator[dict[str, Any]]:
    """Questions about the page's headings and definitions, answered by what follows them.

    What is asked decides how it is worded, so that a held-out question is the same in every run.
    """
    title = next((text for kind, text in blocks if kind == "h1"), "")
    title = re.sub(r"^[\d.]+\s+", "", title.split("—")[0]).strip()
    for (kind, name), after, then in zip(blocks, blocks[1:], [*blocks[2:], ("", "")], strict=False):
        reply = after[1]
        if after[0] not in ("p", "dd") or not 60 <= len(reply) <= 900 or reply[-1] not in ".:":
            continue
        if then[0] == "pre" and len(then[1]) < 500:
            reply += f"\n\n```\n{then[1]}\n```"
        elif reply[-1] == ":":
            continue
        if kind == "dt" and len(name) < 120:
            question = Random(name).choice(_DOES).format(name)
        elif kind in ("h2", "h3") and _PLAIN_HEADING.fullmatch(name) and 3 < len(title) < 60:
            heading = re.sub(r"^[\d.]+\s+", "", name)
            question = Random(heading).choice(_ABOUT).format(heading, title)
        else:
            continue
        yield chat(question, reply)


def chat(question: str, reply: str) -> dict[str, Any]:
    """One exchange in the corpus format."""
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": reply},
        ]
    }
