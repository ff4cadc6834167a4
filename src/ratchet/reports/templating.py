"""Rendering of the templates in templates/, in which every value is escaped unless it is Markup.

A page is one file: `report.css` is written into it, and its policy forbids the browser to load anything.
"""

import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ratchet.evaluation import wording
from ratchet.evaluation.metrics import NamedMetric
from ratchet.reports import number_text

__all__ = ["environment", "escaped", "render_html", "render_markdown"]

_TEMPLATES = Path(__file__).parent / "templates"
_MARKS = re.compile(r"([\\`*_\[\]<>|#~&])")
# At the start of a line these begin a list or underline a title
_LINE_START = re.compile(r"^(?:[-+=]|(\d+)(?=[.)](?:\s|$)))")
_NUMBERS = ("percent", "shown")


def render_html(template: str, **values: object) -> str:
    """Fill an HTML template; the same values give the same text.

    Raises:
        jinja2.UndefinedError: the template uses a value that it was not given.
    """
    return environment("html").get_template(template).render(values)


def render_markdown(template: str, **values: object) -> str:
    """Fill a Markdown template, whose blocks are separated by any number of empty lines.

    Raises:
        jinja2.UndefinedError: the template uses a value that it was not given.
    """
    text = environment("markdown").get_template(template).render(values)
    blocks = (block.strip("\n") for block in text.split("\n\n"))
    return "\n\n".join(block for block in blocks if block.strip()) + "\n"


@cache
def environment(form: Literal["html", "markdown"]) -> Environment:
    """Return the environment of all templates of one form."""
    escape_value = escape if form == "html" else _markdown

    def finalize(value: object) -> object:
        """Escape the value of each expression, before Jinja's own escaping, which leaves Markup as it is."""
        return value if hasattr(value, "__html__") else escape_value(number_text.shown(value))

    result = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    result.filters |= {
        "cells": _cells,
        "fenced": _fenced,
        "one_line": _one_line,
        "metric_range": _unbroken(_range),
        "metric_value": _unbroken(wording.value_text),
        **{name: _unbroken(getattr(number_text, name)) for name in _NUMBERS},
    }
    result.globals["stylesheet"] = Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8"))
    return result


def escaped(value: object) -> str:
    """Return a value as Markdown that shows it unchanged, on one line, whatever characters it holds.

    Line breaks and other characters that cannot be printed become spaces.
    """
    text = "".join(letter if letter.isprintable() else " " for letter in number_text.shown(value))
    return _LINE_START.sub(_escaped_start, _MARKS.sub(r"\\\1", text.strip()))


def _escaped_start(match: re.Match[str]) -> str:
    return f"{match[0]}\\" if match[1] else f"\\{match[0]}"


def _markdown(text: str) -> Markup:
    return Markup(escaped(text))  # Markup only so that Jinja does not escape it for HTML too


def _range(metric: NamedMetric) -> str:
    """Return the bounds of a metric's interval with a dash between them; a minus is another character."""
    return wording.range_text(metric).replace("-", "\N{EN DASH}")


def _unbroken(write: Callable[..., str]) -> Callable[..., str]:
    """Use no-break spaces in a number, so that no line ends before its unit."""

    def unbroken(*values: Any) -> str:
        return write(*values).replace(" ", "\N{NO-BREAK SPACE}")

    return unbroken


def _cells(row: Iterable[object]) -> Markup:
    """Return the cells of a row of a Markdown table."""
    return Markup(" | ".join(escaped(value) for value in row))


def _fenced(code: str) -> Markup:
    """Return a block of Python code in Markdown, whatever the code contains."""
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}python\n{code}\n{fence}")


def _one_line(block: Markup) -> Markup:
    """Return the lines of a rendered block as one line: in Markdown, the start of a line may have a meaning."""
    return Markup(" ".join(block.split()))
