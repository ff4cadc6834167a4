"""The run report: verdict first, nothing loaded, no text from data becomes markup, any number of classes."""

import base64
import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from measured import measure_classes as measure
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from ratchet.evaluation.predictions import Predictions
from ratchet.evaluation.robustness import NotMeasured, measure_robustness
from ratchet.gate import Candidate, judge, reload_rule
from ratchet.gate.rules import ExportResult
from ratchet.gate.verdict_text import rule_text
from ratchet.problems import Classes
from ratchet.reports.run_report import ErrorExample, ReportContent, render
from ratchet.settings.model import EvaluationSettings, GateSettings, Params

FEW = EvaluationSettings(resamples=100)
NASTY = "<script>alert('x')</script>\"&|`{{ 1 }}\n\u202e<b>"
SHOWN = NASTY.replace("\u202e", "\N{REPLACEMENT CHARACTER}")
VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """Collect tags, visible texts and attributes, and check that every tag is closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "head" not in self.open and data.strip():
            self.texts.append(data.strip().replace("\N{NO-BREAK SPACE}", " "))


def shown(text: str) -> str:
    """Return the text as `Reader` reads it from the page."""
    return text.strip().replace("\N{NO-BREAK SPACE}", " ")


@pytest.fixture(scope="module")
def predictions() -> Predictions:
    images, labels = load_digits(return_X_y=True)
    model = LogisticRegression(max_iter=500, C=0.05).fit(images[:900] / 16, labels[:900])
    logits = model.decision_function(images[1200:] / 16).astype(np.float32)
    ids = tuple(f"digits/{number}" for number in range(len(logits)))
    return Predictions(logits, labels[1200:].astype(np.int64), ids, Classes(tuple("0123456789")))


@pytest.fixture(scope="module")
def content(predictions: Predictions) -> ReportContent:
    metrics = measure(predictions.outputs, predictions.targets, classes=predictions.target.names, settings=FEW)
    rows = len(predictions.ids)
    asking = Candidate(
        score=predictions.score, metrics=metrics.named(), default_metric="accuracy",
        unit=predictions.answers.unit,
        calibration_error=metrics.ece, labels=predictions.targets,
        target=predictions.target, input_shape=(1, 8, 8), saw=np.zeros(rows, np.bool_),
    )  # fmt: skip
    reloaded = reload_rule(images=64, largest_difference=0.0, tolerance=1e-4)
    images = load_digits().images[1200:, :, :, None] * 15
    epochs = [
        {"epoch": n, "train/loss": 1 / n, "validation/loss": 1.2 / n, "train/learning_rate": 1e-3 / n}
        for n in (1, 2, 3)
    ]
    return ReportContent(
        title="digits",
        verdict=judge(asking, None, GateSettings(calibration_error=0.6), FEW, reloaded=reloaded),
        metrics=metrics,
        history=epochs,
        examples=[
            ErrorExample(
                images[row].astype(np.uint8),
                id=predictions.ids[row],
                truth=predictions.target.names[predictions.targets[row]],
                answer=predictions.target.names[predictions.answers.predicted[row]],
                confidence=float(predictions.answers.sureness[row]),
            )
            for row in predictions.worst_errors()
        ],
        manifest={"source": "digits", "splits": {"train": 900, "test": 597}, "quarantine": {}},
        settings=Params().model_dump(mode="json"),
        lineage={"git commit": "0b1c", "data": {"packed": "9f2c.dir"}},
    )


def test_few_samples_show_no_calibration_error(content: ReportContent, predictions: Predictions) -> None:
    """Command line, MLflow, card and gate read the same table of metrics."""
    few = Predictions(predictions.outputs[:12], predictions.targets[:12], predictions.ids[:12], predictions.target)
    metrics = measure(few.outputs, few.targets, classes=few.target.names, settings=FEW)
    assert "ece" not in metrics.named()
    asking = Candidate(
        score=few.score, metrics=metrics.named(), default_metric="accuracy", unit=few.answers.unit,
        calibration_error=metrics.ece, labels=few.targets, target=few.target, input_shape=(1, 8, 8),
        saw=np.zeros(12, np.bool_),
    )  # fmt: skip
    verdict = judge(
        asking, None, GateSettings(), FEW, reloaded=reload_rule(images=64, largest_difference=0.0, tolerance=1e-4)
    )
    assert "calibration" not in {rule.name for rule in verdict.rules}
    text = "\n".join(Reader(render(replace(content, metrics=metrics, verdict=verdict))).texts)
    assert "Calibration error (ECE) is not measured: 12 test samples are too few." in text
    assert not re.search(r"ECE\)? \d|Accuracy by confidence", text)


def test_verdict_comes_before_anything_else(content: ReportContent) -> None:
    texts = Reader(render(content)).texts
    assert texts[:2] == ["digits", "Passed the gate"]
    assert content.verdict is not None
    (champion,) = (rule for rule in content.verdict.rules if rule.name == "champion")
    assert texts[2] == shown(f"{content.verdict.summary}. {rule_text(champion).details}".strip())
    headings = ("Metrics", "Training curves", "Confusion matrix", "Calibration")
    headings += ("Metrics by class", "Largest errors", "Data", "Settings", "Provenance")
    places = [texts.index(heading) for heading in headings]
    assert places == sorted(places)


def test_page_loads_nothing_from_outside(content: ReportContent) -> None:
    page = render(content)
    assert not re.search(r"https?://|@import|url\(|<script|<link|<iframe|<object|<embed|srcset", page, re.IGNORECASE)
    for tag, attributes in Reader(page).tags:
        assert "href" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("src") or "data:image/png").startswith("data:image/png"), tag
    assert "default-src 'none'" in page


def test_text_from_data_never_becomes_markup(predictions: Predictions, content: ReportContent) -> None:
    classes = (NASTY, *predictions.target.names[1:])
    metrics = measure(predictions.outputs, predictions.targets, classes=classes, settings=FEW)
    example = replace(content.examples[0], id=NASTY, truth=NASTY, answer=NASTY)
    nested = {NASTY: {NASTY: 3}, f"{NASTY} alone": NASTY, f"{NASTY} mixed": {NASTY: {NASTY: NASTY}}}
    assert content.verdict is not None
    rules = (*content.verdict.rules, ExportResult(False, 1e-4, missing=NASTY))
    page = render(
        ReportContent(
            title=NASTY,
            verdict=replace(content.verdict, rules=rules),
            metrics=metrics,
            examples=[example],
            manifest=nested,
            settings=nested,
            lineage=nested,
        )
    )
    reader = Reader(page)
    assert {tag for tag, _ in reader.tags} <= {tag for tag, _ in Reader(render(content)).tags}
    assert SHOWN in reader.texts
    assert any(attributes.get("alt") == f"image of {SHOWN}, predicted {SHOWN}" for _, attributes in reader.tags)


def test_password_in_an_address_is_not_shown(content: ReportContent) -> None:
    address = "postgresql://ratchet:hunter2@db.internal:5432/mlflow"
    page = render(replace(content, settings={"tracking": {"uri": address}}, lineage={"tracking": address}))
    assert "hunter2" not in page
    assert page.count("postgresql://ratchet:***@db.internal:5432/mlflow") == 2


def test_errors_show_the_packed_images(content: ReportContent) -> None:
    sources = [attributes["src"] for tag, attributes in Reader(render(content)).tags if tag == "img"]
    assert len(sources) == min(24, len(content.examples)) > 5
    for source, example in zip(sources, content.examples, strict=True):
        assert source is not None
        with Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))) as image:
            assert np.array_equal(np.asarray(image), example.image[:, :, 0])


def test_colour_images_keep_their_channels(content: ReportContent) -> None:
    colour = np.random.default_rng(0).integers(256, size=(40, 30, 3), dtype=np.uint8)
    page = render(replace(content, examples=[replace(content.examples[0], image=colour)]))
    source = next(attributes["src"] for tag, attributes in Reader(page).tags if tag == "img")
    assert source is not None
    with Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))) as image:
        assert np.array_equal(np.asarray(image), colour)


def test_many_classes_make_a_small_page() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(1000, size=5000)
    logits = generator.normal(size=(5000, 1000)).astype(np.float32)
    logits[np.arange(5000), labels] += 3
    names = tuple(f"species {number}" for number in range(1000))
    metrics = measure(logits, labels, classes=names, settings=FEW)
    balance = {name: int((labels == number).sum()) for number, name in enumerate(names)}
    page = render(ReportContent("flowers", None, metrics, manifest={"classes": balance}))
    Reader(page)
    assert len(page) < 1_000_000
    assert "<title>Confusion matrix</title>" in page
    assert "The classes with the lowest F1 first." in page


@pytest.mark.parametrize(
    "history",
    [
        [],
        [{"epoch": 1, "train/loss": 2.0, "train/accuracy": 0.5, "train/learning_rate": 0.0}],
        [{"epoch": 1, "train/loss": None}, {"epoch": 2, "train/loss": float("nan")}],
        [{"epoch": n, "train/loss": 1e9 ** (1 - n / 50), "train/learning_rate": 1e-9} for n in range(1, 100)],
    ],
)
def test_any_history_can_be_drawn(content: ReportContent, history: list[dict[str, float | None]]) -> None:
    page = render(replace(content, history=history))
    Reader(page)
    drawn = re.findall(r'points="([^"]*)"', page)
    assert not any("nan" in points or "inf" in points for points in drawn)


def test_worse_slices_come_first_and_are_named(content: ReportContent, predictions: Predictions) -> None:
    rows = len(predictions.ids)
    # Two wards, one of which holds most of the wrong answers.
    wrong = np.flatnonzero(predictions.score == 0)
    ward = ["north"] * rows
    for row in [*wrong, *range(0, 60)]:
        ward[row] = "south <b>"
    metrics = measure(
        predictions.outputs, predictions.targets, classes=predictions.target.names, settings=FEW, columns={"ward": ward}
    )
    page = render(replace(content, metrics=metrics))
    texts = Reader(page).texts
    assert any(
        text.startswith("ward: south <b> is significantly worse than the rest: \N{MINUS SIGN}") for text in texts
    )
    assert texts.index("ward: south <b>") < texts.index("ward: north")
    equal = measure(
        predictions.outputs, predictions.targets, classes=predictions.target.names, settings=FEW,
        columns={"parity": ["even" if row % 2 else "odd" for row in range(rows)]},
    )  # fmt: skip
    assert "No slice is significantly worse than the rest." in Reader(render(replace(content, metrics=equal))).texts


def images_of(page: str) -> list[np.ndarray]:
    sources = [attributes["src"] or "" for tag, attributes in Reader(page).tags if tag == "img"]
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(source.split(",")[1])))) for source in sources]


@pytest.mark.parametrize(("side", "channels"), [(8, 1), (64, 3)])
def test_explanations_are_orange_and_blue(content: ReportContent, side: int, channels: int) -> None:
    """Pixels that support the wrong prediction are orange, those that support the true class blue."""
    image = np.full((side, side, channels), 200, np.uint8)
    contributions = np.zeros((side, side), np.float32)
    third = side // 3
    contributions[:third], contributions[-third:] = 1, -1
    page = render(replace(content, examples=[replace(content.examples[0], image=image, contributions=contributions)]))
    shown, painted = images_of(page)
    assert np.array_equal(shown, image[:, :, 0] if channels == 1 else image)
    (red, _, blue), grey, (red_too, _, blue_too) = (
        painted[row, side // 2].astype(int) for row in (0, side // 2, side - 1)
    )
    assert red > 200 > blue
    assert blue_too > 200 > red_too
    assert np.ptp(grey) < 30
    assert "areas support the predicted class" in page
    alts = [attributes["alt"] for tag, attributes in Reader(page).tags if tag == "img"]
    assert len(set(alts)) == 2


def test_zero_contributions_leave_a_grey_image(content: ReportContent) -> None:
    example = replace(content.examples[0], contributions=np.zeros((8, 8), np.float32))
    painted = images_of(render(replace(content, examples=[example])))[1]
    assert (np.ptp(painted, axis=2) == 0).all()


def test_accuracy_by_strength_is_drawn_and_listed(content: ReportContent) -> None:
    images = np.random.default_rng(0).integers(256, size=(40, 8, 8, 1), dtype=np.uint8)
    labels = np.arange(40) % 2
    robustness = measure_robustness(
        lambda corrupted: (corrupted.mean(axis=(1, 2, 3)) > 140).astype(np.int64), images, labels, clean=labels,
        confidence=0.95,
    )  # fmt: skip
    page = render(replace(content, metrics=replace(content.metrics, robustness=robustness)))
    texts = Reader(page).texts
    assert "<title>Accuracy by strength</title>" in page
    assert texts.index("Robustness") < texts.index("Metrics by class")
    place = texts.index("brightness", texts.index("none"))
    shares = [f"{100 * accuracy.value:.1f} %" for accuracy in robustness.corrupted["brightness"]]
    assert texts[place : place + 7] == ["brightness", f"{100 * robustness.mean('brightness'):.1f} %", *shares]
    without = replace(content.metrics, robustness=NotMeasured("there are no test samples"))
    assert "Robustness" not in Reader(render(replace(content, metrics=without))).texts
