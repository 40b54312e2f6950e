"""Pages of documentation as text and as questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PAGE = """<html><body><nav>Menu</nav><div class="body" role="main"><h1>Files<a>¶</a></h1>
<p>How files are read and written.</p><h2>Opening</h2>
<p>A file is opened with <code>open</code>, which gives back an object with a method <em>read</em>.
</p><pre>with open(name) as file:
    text = file.read()</pre><div><dl><dt>close(file)[source]#</dt><dd><p>Ends all work with the file
and gives its memory back to the operating system.</p></dd></dl></div><script>var a;</script></div>
<p>Last updated</p></body></html>"""


def test_a_page_gives_text_and_questions(recipe: Any, tmp_path: Path) -> None:
    documents = recipe("documents")
    (tmp_path / "page.html").write_text(PAGE, encoding="utf-8")
    blocks = documents.page_blocks(tmp_path / "page.html")
    assert blocks[:2] == [("h1", "Files"), ("p", "How files are read and written.")]
    assert not [text for _, text in blocks if "Menu" in text or "var" in text or "Last" in text]
    [page] = documents.page_texts(blocks)
    assert "## Opening" in page["text"]
    assert "```\nwith open(name) as file:\n    text = file.read()\n```" in page["text"]
    opening, close = list(documents.page_chats(blocks))
    assert "Opening" in opening["messages"][0]["content"]
    assert "Files" in opening["messages"][0]["content"]
    assert opening["messages"][1]["content"].endswith("text = file.read()\n```")
    assert "`close(file)`" in close["messages"][0]["content"]
    assert close["messages"][1]["content"].startswith("Ends all work with the file and gives")


def test_repeated_paragraphs_are_dropped(recipe: Any) -> None:
    documents = recipe("documents")
    blocks = [("h2", "A heading that every single page of the book repeats"), ("p", "x" * 40)]
    seen: set[int] = set()
    assert documents.fresh(blocks, seen) == blocks
    assert documents.fresh(blocks, seen) == blocks[:1]
