"""Charts: text stays text, colours are those of the theme, and the same chart has the same bytes."""

import re

import pytest

from ratchet.evaluation.intervals import Interval
from ratchet.reports.charts import Line, bar_chart, line_chart, number_text

NASTY = "$x_{$ <b>#0a数"
SHOWN = "$x_{$ &lt;b&gt;#0a数"


def drawings() -> list[str]:
    return [
        line_chart([Line(NASTY, "--series-2", [(1, 0.5), (2, 0.75)])], name=NASTY, x_label=NASTY, share=True),
        bar_chart([(NASTY, Interval(2, 1, 3))], name=NASTY, x_label="x"),
    ]


def test_text_is_neither_formula_nor_markup() -> None:
    for drawing in drawings():
        assert drawing.count(SHOWN) >= 2
        assert "<b>" not in drawing
        assert f"<title>{SHOWN}</title>" in drawing
        assert drawing.count("<svg") == drawing.count("</svg>") == drawing.count("<desc>") == 1


def test_colours_follow_the_theme_and_bytes_repeat() -> None:
    assert drawings() == drawings()
    for drawing in drawings():
        tags = "".join(re.findall("<[^>]*>", drawing))
        assert "var(--series-" in tags
        assert not re.search(r"#|rgb\(|url\(|font|\bid=", tags)


def test_settings_of_the_user_change_no_chart() -> None:
    import matplotlib

    expected = drawings()
    with matplotlib.rc_context({"axes.titlelocation": "center", "lines.linestyle": ":", "font.size": 30}):
        assert drawings() == expected
        assert matplotlib.rcParams["font.size"] == 30


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1.5e6, "1.5M"), (-20_000, "-20k"), (0.00105, "0.00105"), (4e-4, "4e-4")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number_text(value) == text
