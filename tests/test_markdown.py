"""Whatever a text holds, a Markdown reader shows it as it is: markdown-it, which follows CommonMark, is asked."""

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ratchet.reports import markdown

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
NASTY = [
    "<script>alert(1)</script>", "*bold* _thin_ ~~gone~~ `code`", "a|b", "[link](http://x)", "![i](x)", "# title",
    "1. one", "1) one", "12.", "- one", "+ one", "===", "---", "&lt; &amp; &#42;", "\\*", "1.5", "-3 %", "a\nb",
    "<a@b.c>", "> quoted", "\tcode", "    code", "end\\", "100%.",
]  # fmt: skip


def shown(source: str, tag: str) -> str:
    """The text of the only element of this kind in what the reader makes of it."""
    (found,) = re.findall(f"<{tag}>(.*?)</{tag}>", READER.render(source), re.DOTALL)
    assert "<" not in found, found
    return html.unescape(found)


@pytest.mark.parametrize("value", NASTY)
def test_a_text_is_shown_as_it_is(value: str) -> None:
    plain = value.replace("\n", " ").replace("\t", " ").strip()
    assert shown(markdown.escaped(value), "p") == plain
    assert shown(markdown.points([value]), "li") == plain
    assert shown(markdown.table(("one",), [(value,)]), "td") == plain


@given(value=st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1))
def test_any_text_is_shown_as_it_is(value: str) -> None:
    assert shown(markdown.escaped(value), "p") == value
    assert shown(markdown.table(("one",), [(value,)]), "td") == value


def test_values_read_as_they_do_on_a_page() -> None:
    assert [markdown.escaped(value) for value in (True, False, 12345, 0.123456, None, "x")] == [
        "yes", "no", "12,345", "0.1235", "&ndash;", "x",
    ]  # fmt: skip


def test_code_is_kept_to_the_letter_whatever_it_holds() -> None:
    program = "print('```')\n# <b> & ````"
    drawn = READER.render(markdown.code(program))
    (found,) = re.findall(r'<pre><code class="language-python">(.*)\n</code></pre>', drawn, re.DOTALL)
    assert html.unescape(found) == program


def test_a_table_without_rows_is_nothing() -> None:
    assert markdown.table(("a", "b"), []) == ""
    assert markdown.pairs({}) == ""
