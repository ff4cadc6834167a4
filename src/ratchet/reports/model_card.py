"""The model card of a version: one page for whoever decides whether to use it, as Markdown and as HTML.

What it says is written once, as sections of plain text; both forms are drawn from them. After Mitchell et al., "Model
Cards for Model Reporting" (2019).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet import urls
from ratchet.cost import Cost
from ratchet.evaluation.figures import Figures
from ratchet.evaluation.intervals import Interval, share_interval
from ratchet.evaluation.robustness import NotMeasured
from ratchet.gate import text as gate_text
from ratchet.gate.verdict import Verdict
from ratchet.reports import markdown, page
from ratchet.reports.limits_text import limit_sentences
from ratchet.serving.program import INPUT, PROGRAM

__all__ = ["CardContent", "description", "render_html", "render_markdown"]

_LISTED = 8  # of slices and classes
_CLASSES = 12  # named in a sentence


@dataclass(frozen=True)
class CardContent:
    """All that the card is made from. Every text in it may come from data: both forms escape it."""

    name: str
    number: str
    purpose: str  # in the user's words; "": none was given
    verdict: Verdict
    figures: Figures
    input: tuple[int, int, int]  # height, width and channels of one picture
    dtype: str  # of its pixels
    data: Mapping[str, Any]  # its name, source and version, and counts
    rows: Mapping[str, int]  # of each split
    quarantined: Mapping[str, int]  # by rule
    model: Mapping[str, Any]  # what was trained and how, in figures
    settings: Mapping[str, tuple[Any, Any]]  # those that are not the default, with the default
    cost: Cost | None  # of the training; None: it was not measured here
    checksums: Mapping[str, str]  # SHA-256 (hex) of the stored files
    address: str  # MLflow's, without a password
    lineage: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Piece:
    """Something on the page, and how each form draws it."""

    markdown: str
    html: str


@dataclass(frozen=True)
class _Section:
    title: str
    pieces: Sequence[_Piece]


def render_markdown(content: CardContent) -> str:
    """The card as Markdown; the same content gives the same text."""
    parts = [f"# {markdown.escaped(_title(content))}", *map(markdown.escaped, _opening(content))]
    for section in _sections(content):
        parts += [f"## {section.title}", *(piece.markdown for piece in section.pieces if piece.markdown)]
    return "\n\n".join(parts) + "\n"


def render_html(content: CardContent) -> str:
    """The card as a page that loads nothing; the same content gives the same text."""
    first, *rest = _opening(content)
    more = "".join(f'<p class="more">{page.text(words)}</p>' for words in rest)
    head = (
        f'<header class="verdict"><p class="over">model card</p><h1>{page.text(_title(content))}</h1>'
        f'<p class="words">{page.text(first)}</p>{more}</header>'
    )
    sections = [
        page.section(section.title, *(piece.html for piece in section.pieces)) for section in _sections(content)
    ]
    return page.document(f"{_title(content)}: model card", [head, *sections])


def description(content: CardContent) -> str:
    """The card's opening, as Markdown: what MLflow shows of the version."""
    told = [*_opening(content), *_warnings(content)[:1]]
    return "\n\n".join([*map(markdown.escaped, told), "The whole card is in the run's artifacts: `card/card.html`."])


def _title(content: CardContent) -> str:
    return f"{content.name}, version {content.number}"


def _opening(content: CardContent) -> list[str]:
    figures = content.figures
    task = f"It says which of {len(figures.classes):,} classes a picture shows: {_named(figures.classes)}."
    measured = (
        f"On {figures.rows:,} test rows it is right for {figures.accuracy.value:.2%} "
        f"({figures.confidence:.0%} interval {figures.accuracy.low:.2%} to {figures.accuracy.high:.2%})."
    )
    gate = f"Gate: {gate_text.message(content.verdict)}"
    return [content.purpose or task, *([task] if content.purpose else []), measured, gate]


def _named(classes: Sequence[str]) -> str:
    more = f" and {len(classes) - _CLASSES:,} more" if len(classes) > _CLASSES else ""
    return ", ".join(classes[:_CLASSES]) + more


def _sections(content: CardContent) -> list[_Section]:
    return [
        _Section("When not to use it", [_points(_warnings(content) + _always(content))]),
        _Section(
            "How good it is",
            [_headline(content.figures), _text(_unused(content)), *_worst(content.figures), *_spoilt(content.figures)],
        ),
        _Section("The gate", [_rules(content.verdict)]),
        _Section("How to use it", [_text(_takes(content)), _code(_program(content))]),
        _Section("The data it learned from", [_pairs({**content.data, **_kept_out(content)})]),
        _Section("How it was made", [_pairs({**content.model, "cost": _cost(content)}), *_settings(content)]),
        _Section("Where it came from", [_pairs(content.lineage), _text(_beside(content)), *_stored(content)]),
    ]


def _warnings(content: CardContent) -> list[str]:
    """What the figures warn of, as sentences."""
    return limit_sentences(content.figures)


def _always(content: CardContent) -> list[str]:
    kept_out = sum(content.quarantined.values())
    rest = [
        "It answers with one of its classes whatever a picture shows: it cannot say that it is none of them.",
        f"Its figures hold for pictures like those of {content.data['name']}: of others nothing was measured.",
    ]
    if kept_out:
        rest.append(
            f"{kept_out:,} samples were kept out of the data ({', '.join(content.quarantined)}): of such it has seen "
            "none."
        )
    return rest


def _headline(figures: Figures) -> _Piece:
    shown: dict[str, Interval | None] = {
        "accuracy": figures.accuracy,
        f"right among the first {figures.k}": figures.top_k,
        "macro F1": figures.macro_f1,
        "log-loss": figures.log_loss,
        "calibration error": figures.ece,
        "ROC-AUC": figures.roc_auc_interval,
    }
    rows = [
        (name, f"{one.value:.4f}", f"{one.low:.4f} to {one.high:.4f}") for name, one in shown.items() if one is not None
    ]
    return _table(("on the test rows", "value", f"{figures.confidence:.0%} interval"), rows)


def _unused(content: CardContent) -> str:
    """Accuracy on the rows that chose nothing, or that there are none."""
    unused, level = content.verdict.unused, content.figures.confidence
    if unused is None:
        return (
            "No test rows are left that took no part in choosing among models: all were used to compare this or an "
            "earlier model with a champion, so the accuracy above may be slightly too high. gate.reserved_fraction "
            "keeps a share of the rows out of every comparison."
        )
    found = share_interval(unused.right, unused.rows, confidence=level)
    return (
        f"On the {unused.rows:,} test rows that took no part in choosing among models its accuracy is "
        f"{found.value:.2%} ({level:.0%} CI {found.low:.2%} to {found.high:.2%})."
    )


def _worst(figures: Figures) -> list[_Piece]:
    """The classes and the parts of the rows that are answered worst, be it by chance."""
    classes = sorted(
        (one for one in figures.per_class if one.recall is not None), key=lambda one: (one.recall or 0.0, one.name)
    )
    of_classes = [(one.name, f"{one.recall:.1%}", _share(one.precision), one.support) for one in classes[:_LISTED]]
    parts = sorted(figures.slices, key=lambda one: one.gap.value)[:_LISTED]
    of_parts = [
        (
            f"{one.column}: {one.value}",
            f"{one.accuracy.value:.1%}",
            f"{one.accuracy.low:.1%} to {one.accuracy.high:.1%}",
            one.rows,
            "yes" if one.is_worse else "no",
        )
        for one in parts
    ]
    return [
        _table(("lowest recall", "recall", "precision", "test rows"), of_classes),
        _table(("worst part of the rows", "accuracy", "interval", "test rows", "worse beyond chance"), of_parts),
    ]


def _spoilt(figures: Figures) -> list[_Piece]:
    """Accuracy on pictures as the world spoils them."""
    found = figures.robustness
    if isinstance(found, NotMeasured):
        return []
    rows = [
        (kind, f"{found.mean(kind):.1%}", f"{shares[0].value:.1%}", f"{shares[-1].value:.1%}")
        for kind, shares in found.corrupted.items()
    ]
    return [_table((f"accuracy on {found.rows:,} rows, spoilt by", "mean", "a little", "much"), rows)]


def _rules(verdict: Verdict) -> _Piece:
    texts = [(rule, gate_text.rule_text(rule)) for rule in verdict.rules]
    rows = [(rule.name, "yes" if rule.passed else "no", text.measured, text.limit) for rule, text in texts]
    return _table(("rule", "holds", "found", "needed"), rows, kind="words")


def _takes(content: CardContent) -> str:
    shape = " x ".join(map(str, content.input))
    return (
        f"It takes pictures of {shape} (height x width x channels), {content.dtype}, brought to that size as ingest "
        "does it, and answers with a probability for each class. No file of it is loaded before all were held against "
        "their checksums, and none is a pickle."
    )


def _program(content: CardContent) -> str:
    shape = ("n", *content.input)
    takes = f"{content.dtype} ({', '.join(map(str, shape))})"
    return "\n".join(
        [
            "import mlflow",
            "",
            f"mlflow.set_tracking_uri({content.address!r})",
            f"model = mlflow.pyfunc.load_model({f'models:/{content.name}/{content.number}'!r})",
            f"probabilities = model.predict(images)  # {takes} -> float32 (n, {len(content.figures.classes)})",
            *_exported(content),
        ]
    )


def _exported(content: CardContent) -> list[str]:
    """The lines that ask the exported program, where there is one."""
    if PROGRAM not in content.checksums:
        return []
    return [
        "",
        "# The same as an ONNX program, without PyTorch or ratchet",
        "import onnxruntime",
        "",
        f"folder = mlflow.artifacts.download_artifacts({f'models:/{content.name}/{content.number}'!r})",
        f'session = onnxruntime.InferenceSession(f"{{folder}}/data/model/{PROGRAM}")',
        f"(probabilities,) = session.run(None, {{{INPUT!r}: images}})",
    ]


def _kept_out(content: CardContent) -> dict[str, object]:
    rows = {f"{name} rows": count for name, count in content.rows.items()}
    return {**rows, "kept out": ", ".join(f"{rule} {count:,}" for rule, count in content.quarantined.items()) or "none"}


def _cost(content: CardContent) -> str:
    return content.cost.words if content.cost else "not known: it was not trained here"


def _settings(content: CardContent) -> list[_Piece]:
    if not content.settings:
        return [_text("Every setting is the default.")]
    rows = [(key, _set(now), _set(usual)) for key, (now, usual) in content.settings.items()]
    return [_table(("setting", "here", "default"), rows, kind="words")]


def _set(value: object) -> str:
    shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return urls.redacted(shown)


def _beside(content: CardContent) -> str:
    return (
        "What it was made with, each distribution with its version, licence and hashes, is listed beside this card in "
        "sbom.cdx.json (CycloneDX). The figures behind it are in the run's report/report.html, the page of the data in "
        "data/data.html."
    )


def _stored(content: CardContent) -> list[_Piece]:
    return [_table(("file of the model", "SHA-256"), content.checksums.items(), kind="words")]


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.1%}"


def _text(words: str) -> _Piece:
    return _Piece(markdown.escaped(words), f"<p>{page.text(words)}</p>")


def _both(draw: str) -> Callable[..., _Piece]:
    """A piece that both forms draw by a function of the same name."""
    return lambda *given: _Piece(getattr(markdown, draw)(*given), getattr(page, draw)(*given))


_points, _pairs, _code = _both("points"), _both("pairs"), _both("code")


def _table(header: Sequence[object], rows: Iterable[Sequence[object]], *, kind: str = "narrow") -> _Piece:
    listed = list(rows)
    return _Piece(markdown.table(header, listed), page.table(header, listed, kind=kind))
