"""The card says the same in both its forms, shows any text as it is, and loads nothing."""

import html
import re
from dataclasses import replace

import numpy as np
import pytest
from markdown_it import MarkdownIt

from ratchet.cost import Cost
from ratchet.evaluation.intervals import Interval
from ratchet.evaluation.metrics import measure
from ratchet.evaluation.robustness import Robustness
from ratchet.gate.verdict import AccuracyResult, Unused, Verdict
from ratchet.reports.model_card import CardContent, description, render_html, render_markdown
from ratchet.settings.model import EvaluationSettings

NASTY = "<script>alert('x')</script>|*_`&\"[a](b)"
CLASSES = ("ant", NASTY, "cat")


@pytest.fixture(scope="module")
def content() -> CardContent:
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 300)
    logits = random.normal(size=(300, 3)).astype(np.float32)
    logits[np.arange(300), labels] += 2.0
    parts: list[str | None] = ["dark" if number % 3 else NASTY for number in range(300)]
    figures = measure(
        logits, labels, classes=CLASSES, settings=EvaluationSettings(resamples=100), columns={"light": parts}
    )
    rules = (AccuracyResult(True, Interval(0.75, 0.8, 0.84), confidence=0.95, minimum=0.5, images=300),)
    return CardContent(
        name=NASTY,
        number="3",
        purpose="",
        verdict=Verdict(True, rules),
        figures=figures,
        input=(8, 8, 1),
        dtype="uint8",
        data={"name": NASTY, "source": "image-folder", "version": "0123.dir"},
        rows={"train": 1000, "validation": 100, "test": 300},
        quarantined={"truncated": 4},
        model={"model": "convnet", "parameters": 12345},
        settings={
            "data.path": ("s3://me:secret@host/pictures", "data/raw"),
            "training.betas": ([0.9, 0.99], [0.9, 0.999]),
        },
        cost=Cost(23.0, 41.0, 0.0),
        checksums={"model.safetensors": "ab" * 32},
        address="sqlite:///mlruns/mlflow.db",
        lineage={"provenance": "00112233", "commit": None},
    )


def words(page: str) -> list[str]:
    """What a person reads of a page, without the marks."""
    body = re.sub(r"<(style|title)>.*?</\1>", "", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", body)).replace("\N{EN DASH}", " ").split()


def test_both_forms_say_the_same(content: CardContent) -> None:
    drawn = MarkdownIt("commonmark").enable("table").render(render_markdown(content))
    assert words(render_html(content))[2:] == words(drawn)  # "model card" stands over the page alone


@pytest.mark.parametrize("purpose", ["", f"Sorting insects. {NASTY}"])
def test_text_from_data_never_becomes_markup(content: CardContent, purpose: str) -> None:
    page = render_html(replace(content, purpose=purpose))
    drawn = MarkdownIt("commonmark").enable("table").render(render_markdown(replace(content, purpose=purpose)))
    for form in (page, drawn):
        assert "<script" not in form
        assert "<a " not in form
        assert "alert('x')" in html.unescape(form)
    assert not re.search(r"(src|href)=|url\(|@import", page)


def test_it_says_what_a_person_decides_by(content: CardContent) -> None:
    said = " ".join(words(render_html(content)))
    accuracy = content.figures.accuracy
    for wanted in (
        f"right for {accuracy.value:.2%} (95% interval {accuracy.low:.2%} to {accuracy.high:.2%})",
        "Gate: Passed, 1 of 1 rules",
        "It answers with one of its classes whatever a picture shows",
        "4 samples were kept out of the data (truncated)",
        "It takes pictures of 8 x 8 x 1 (height x width x channels), uint8",
        "# uint8 (n, 8, 8, 1) -> float32 (n, 3)",
        "cost 23 s wall, 41 CPU-seconds",
        "training.betas 0.9, 0.99 0.9, 0.999",
        "sbom.cdx.json",
        "model.safetensors " + "ab" * 32,
        "commit",
    ):
        assert wanted in said, wanted


def test_it_gives_the_accuracy_on_rows_that_chose_nothing(content: CardContent) -> None:
    """Or it says that there are none, and how to have some."""
    assert "No test rows are left that took no part in choosing" in render_markdown(content)
    kept = replace(content, verdict=replace(content.verdict, unused=Unused(rows=60, right=60)))
    for page in (render_markdown(kept), render_html(kept)):
        assert "On the 60 test rows that took no part in choosing among models its accuracy is 100.00%" in page
        assert "(95% CI 93.98% to 100.00%)" in page


def test_no_password_stands_in_it(content: CardContent) -> None:
    for form in (render_html(content), render_markdown(content), description(content)):
        assert "secret" not in form
    assert "s3://me:***@host/pictures" in html.unescape(render_html(content))


def test_where_robustness_was_measured_it_says_what_is_left_of_accuracy(content: CardContent) -> None:
    shares = tuple(Interval(low, low + 0.05, low + 0.1) for low in (0.9, 0.7, 0.5, 0.3, 0.1))
    found = Robustness(120, Interval(0.9, 0.95, 0.98), {"blur": shares})
    said = " ".join(words(render_html(replace(content, figures=replace(content.figures, robustness=found)))))
    assert "accuracy on 120 rows, spoilt by mean a little much blur 55.0% 95.0% 15.0%" in said
    assert "spoilt by" not in " ".join(words(render_html(content)))


def test_what_is_not_known_is_said(content: CardContent) -> None:
    bare = replace(content, cost=None, settings={}, checksums={}, quarantined={}, lineage={})
    said = " ".join(words(render_html(bare)))
    assert "cost not known: it was not trained here" in said
    assert "Every setting is the default." in said
    assert "kept out none" in said
    assert "SHA-256" not in said


def test_the_description_is_the_cards_opening_and_its_gravest_warning(content: CardContent) -> None:
    given = replace(content, purpose="Sorting insects by the light trap.")
    opening = description(given).split("\n\n")
    assert opening[0] == "Sorting insects by the light trap."
    assert render_markdown(given).startswith(
        "\n\n".join([f"# {render_markdown(given).splitlines()[0][2:]}", *opening[:4]])
    )
    assert opening[-1] == "The whole card is in the run's artifacts: `card/card.html`."
    assert "probabilities" in opening[-2] or "test rows" in opening[-2]


def test_the_same_content_gives_the_same_card(content: CardContent) -> None:
    assert render_html(content) == render_html(content)
    assert render_markdown(content) == render_markdown(content)
