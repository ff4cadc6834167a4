"""Any text is shown unchanged in Markdown and HTML. Markdown is read by markdown-it, which follows CommonMark."""

import html
import re

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from ratchet.reports.templating import environment, escaped

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
NASTY = [
    "<script>alert(1)</script>", "*bold* _thin_ ~~gone~~ `code`", "a|b", "[link](http://x)", "![i](x)", "# title",
    "1. one", "1) one", "12.", "- one", "+ one", "===", "---", "&lt; &amp; &#42;", "\\*", "1.5", "-3 %", "a\nb",
    "<a@b.c>", "> quoted", "\tcode", "    code", "end\\", "100%.", "{{ 7 * 7 }}", "{% for %}", "{# x #}", "a\n\n# b",
]  # fmt: skip
PARTS = {
    "p": "{% call parts.paragraph() %}{{ value }}{% endcall %}",
    "li": "{{ parts.bullets([value]) }}",
    "td": "{{ parts.table(['name'], [[value]]) }}",
}


def part(name: str, value: str) -> str:
    """Render one part of a Markdown page."""
    source = f"{{% import 'parts.md.j2' as parts %}}{PARTS[name]}"
    return environment("markdown").from_string(source).render(value=value).strip()


def shown(source: str, tag: str) -> str:
    """Return the text of the only element of this kind that the reader finds."""
    (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", READER.render(source), re.DOTALL)
    assert "<" not in text, text
    return html.unescape(text)


@pytest.mark.parametrize("value", NASTY)
def test_text_is_shown_unchanged(value: str) -> None:
    plain = re.sub(r"\s", " ", value).strip()
    assert shown(escaped(value), "p") == plain
    for name in PARTS:
        text = shown(part(name, value), name)
        assert text == (re.sub(" +", " ", plain) if name == "p" else plain)


@given(value=st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1))
def test_any_text_is_shown_unchanged(value: str) -> None:
    assert shown(escaped(value), "p") == value
    assert shown(part("td", value), "td") == value


@pytest.mark.parametrize("mark", ["\u202e", "\u2066", "\u200f", "\x00", "\x1b", "\x85", "\udcff"])
def test_harmful_characters_are_replaced(mark: str) -> None:
    """Marks of the writing direction would turn the text around them; half a surrogate pair cannot be written."""
    page = environment("html").from_string("<p>{{ value }}</p>").render(value=f"a{mark}b")
    assert page == "<p>a\N{REPLACEMENT CHARACTER}b</p>"
    assert escaped(f"a{mark}b") == "a\N{REPLACEMENT CHARACTER}b"


def test_values_read_as_on_a_page() -> None:
    values = (True, False, 12345, 0.123456, None, "x", [1, 0.5], [])
    expected = ["yes", "no", "12,345", "0.1235", "\N{EN DASH}", "x", "1, 0.5", "\N{EN DASH}"]
    assert [escaped(value) for value in values] == expected
    page = environment("html").from_string("{% for value in values %}{{ value }}{{ ';' }}{% endfor %}")
    assert page.render(values=values) == "".join(f"{text};" for text in expected)


def test_code_is_unchanged_whatever_it_holds() -> None:
    program = "print('```')\n# <b> & ````"
    source = environment("markdown").from_string("{% import 'parts.md.j2' as parts %}{{ parts.code(program) }}")
    drawn = READER.render(source.render(program=program))
    (text,) = re.findall(r'<pre><code class="language-python">(.*)\n</code></pre>', drawn, re.DOTALL)
    assert html.unescape(text) == program


@pytest.mark.parametrize("form", ["html", "markdown"])
def test_tables_without_rows_are_left_out(form: str) -> None:
    name = "parts.md.j2" if form == "markdown" else "parts.html.j2"
    source = f"{{% import '{name}' as parts %}}{{{{ parts.table(['a', 'b'], []) }}}}{{{{ parts.pairs({{}}) }}}}"
    assert environment(form).from_string(source).render().strip() == ""


@pytest.mark.parametrize("form", ["html", "markdown"])
def test_missing_values_are_errors(form: str) -> None:
    for source in ("{{ missing }}", "{{ value.missing }}", "{% if missing %}{% endif %}"):
        with pytest.raises(jinja2.UndefinedError):
            environment(form).from_string(source).render(value="x")
