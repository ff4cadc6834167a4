"""The model card: the same text as HTML and as Markdown, any text escaped, nothing loaded."""

import html
import re
from dataclasses import replace

import numpy as np
import pytest
from markdown_it import MarkdownIt
from measured import measure_classes as measure

from ratchet.cost import TrainingCost
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.metrics import NamedMetric
from ratchet.gate.rules import MetricResult
from ratchet.gate.verdict import Verdict
from ratchet.kinds import ImageInput
from ratchet.reports.model_card import CardContent, description, render_html, render_markdown
from ratchet.settings.model import EvaluationSettings

NASTY = "<script>alert('x')</script>|*_`&\"[a](b){{ 1 }}\n# b\u202e"
CLASSES = ("ant", NASTY, "cat")


@pytest.fixture(scope="module")
def content() -> CardContent:
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 300)
    logits = random.normal(size=(300, 3)).astype(np.float32)
    logits[np.arange(300), labels] += 2.0
    parts: list[str | None] = ["dark" if number % 3 else NASTY for number in range(300)]
    metrics = measure(
        logits, labels, classes=CLASSES, settings=EvaluationSettings(resamples=100), columns={"light": parts}
    )
    rules = (
        MetricResult(
            True,
            NamedMetric("accuracy", "accuracy", Interval(0.75, 0.8, 0.84), share=True),
            "accuracy",
            0.95,
            0.5,
            300,
            "accuracy",
        ),
    )
    return CardContent(
        name=NASTY,
        number="3",
        purpose="",
        verdict=Verdict(True, rules),
        metrics=metrics,
        input=ImageInput(8, 8, 1, (0.5,), (0.5,)),
        data={"name": NASTY, "source": "image-folder", "version": "0123.dir"},
        rows={"train": 1000, "validation": 100, "test": 300},
        quarantined={"truncated": 4},
        model={"model": "convnet", "parameters": 12345},
        settings={
            "data.path": ("s3://me:secret@host/images", "data/raw"),
            "training.betas": ([0.9, 0.99], [0.9, 0.999]),
        },
        cost=TrainingCost(23.0, 41.0, 0.0),
        checksums={"model.safetensors": "ab" * 32},
        address="sqlite:///mlruns/mlflow.db",
        lineage={"provenance": "00112233", "commit": None},
    )


def visible(page: str) -> list[str]:
    """Return the visible words of a page."""
    body = re.sub(r"<(style|title)>.*?</\1>", "", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", body)).split()


def test_both_forms_have_the_same_text(content: CardContent) -> None:
    drawn = MarkdownIt("commonmark").enable("table").render(render_markdown(content))
    assert visible(render_html(content))[2:] == visible(drawn)  # "Model card" is only above the page


@pytest.mark.parametrize("purpose", ["", f"Sorting insects. {NASTY}"])
def test_text_from_data_never_becomes_markup(content: CardContent, purpose: str) -> None:
    page = render_html(replace(content, purpose=purpose))
    drawn = MarkdownIt("commonmark").enable("table").render(render_markdown(replace(content, purpose=purpose)))
    for form in (page, drawn):
        assert "<script" not in form
        assert "<a " not in form
        assert "alert('x')" in html.unescape(form)
    assert not re.search(r"(src|href)=|url\(|@import", page)


def test_card_has_what_a_decision_needs(content: CardContent) -> None:
    text = " ".join(visible(render_html(content)))
    low, value, high = (
        f"{100 * share:.1f}" for share in [getattr(content.metrics.accuracy, name) for name in ("low", "value", "high")]
    )
    for wanted in (
        f"Accuracy on 300 test samples: {value} % (95 % CI {low}\N{EN DASH}{high} %).",
        "Passed, 1 of 1 rules",
        "The model answers with one of its classes for every input",
        "4 samples were quarantined (truncated)",
        "Input: images of 8 x 8 x 1 (height x width x channels), uint8",
        "# uint8 (n, 8, 8, 1) -> float32 (n, 3)",
        "cost 23 s wall, 41 CPU-seconds",
        "training.betas 0.9, 0.99 0.9, 0.999",
        "sbom.cdx.json",
        "model.safetensors " + "ab" * 32,
        "commit",
    ):
        assert wanted in text, wanted


def test_card_holds_no_password(content: CardContent) -> None:
    for form in (render_html(content), render_markdown(content), description(content)):
        assert "secret" not in form
    assert "s3://me:***@host/images" in html.unescape(render_html(content))


def test_description_is_opening_and_most_serious_warning(content: CardContent) -> None:
    given = replace(content, purpose="Sorting insects by the light trap.")
    opening = description(given).split("\n\n")
    assert opening[0] == "Sorting insects by the light trap."
    assert render_markdown(given).startswith(
        "\n\n".join([f"# {render_markdown(given).splitlines()[0][2:]}", *opening[:4]])
    )
    assert opening[-1] == "The complete card is in the artifacts of the run: `card/card.html`."
    assert "probabilities" in opening[-2] or "test rows" in opening[-2]
