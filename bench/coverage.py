"""Coverage of the confidence intervals, by simulation.

    python -m bench.coverage [--rounds 1000]

A population of 200,000 answers has known true metrics. In each round a test set is drawn from it. The coverage is the
share of the rounds in which the 95 % interval of a metric contains the true value. The same is measured for the
difference of two models on the same samples, whose errors correlate like those of one recipe with two seeds.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.gate_errors import PAIRS, Pair
from bench.report import Row, alone, options
from ratchet.evaluation.answers import Answers
from ratchet.evaluation.calibration import calibration_error, reliability
from ratchet.evaluation.headline import intervals
from ratchet.evaluation.intervals import paired_difference
from ratchet.settings.model import EvaluationSettings

__all__ = ["POPULATIONS", "Population", "figures_held", "figures_of", "measure", "paired_held"]

_EVERYTHING = 200_000  # answers


@dataclass(frozen=True)
class Population:
    """A population of answers: normal logits, plus `margin` for the correct class, times `sharpness`.

    Each class is `rarer` times as rare as the class before it. Above some sharpness the model is overconfident.
    """

    name: str
    classes: int
    margin: float
    sharpness: float
    rarer: float = 1.0

    def answers(self, *, seed: int = 0) -> Answers:
        """Return all answers."""
        generator = np.random.default_rng(seed)
        shares = self.rarer ** -np.arange(self.classes, dtype=float)
        labels = generator.choice(self.classes, size=_EVERYTHING, p=shares / shares.sum())
        logits = generator.normal(size=(_EVERYTHING, self.classes))
        logits[np.arange(_EVERYTHING), labels] += self.margin
        return Answers((logits * self.sharpness).astype(np.float32), labels)


POPULATIONS = (
    Population("4 classes, accuracy .95", 4, 2.95, 4.5),
    Population("10 classes, accuracy .90", 10, 3.0, 3.0),
    Population("10 classes, the rarest 1 in 33, accuracy .95", 10, 3.45, 3.5, rarer=1.25),
    Population("2 classes, accuracy .82", 2, 1.3, 1.3),
)


def figures_of(answers: Answers, *, bins: int, k: int) -> dict[str, float]:
    """Return each headline metric by name, computed from its definition."""
    truth = np.bincount(answers.labels, minlength=answers.classes)
    answered = np.bincount(answers.predicted, minlength=answers.classes)
    hits = np.bincount(answers.labels[answers.correct], minlength=answers.classes)
    occurs = truth + answered > 0
    areas = [_area(answers.probabilities[:, label], answers.labels == label) for label in np.flatnonzero(truth)]
    top_k = {"top_k": float((answers.place < k).mean())} if k < answers.classes else {}
    return {
        "accuracy": float(answers.correct.mean()),
        **top_k,
        "macro_f1": float((2 * hits[occurs] / (truth + answered)[occurs]).mean()),
        "log_loss": float(answers.losses.mean()),
        "roc_auc": float(np.mean(areas)),
        "ece": calibration_error(reliability(answers.confidence, answers.correct, bins=bins)),
    }


def _area(score: NDArray[np.float64], truth: NDArray[np.bool_]) -> float:
    """ROC-AUC by ranks (Mann & Whitney 1947)."""
    from scipy.stats import rankdata

    positive = int(truth.sum())
    ranks = float(rankdata(score)[truth].sum())
    return (ranks - positive * (positive + 1) / 2) / (positive * (len(truth) - positive))


def figures_held(population: Population, *, rows: int, sets: int, resamples: int) -> dict[str, float]:
    """Return, by metric, the share of `sets` test sets of `rows` rows whose interval contains the true value."""
    settings = EvaluationSettings(resamples=resamples, top_k=max(2, min(3, population.classes - 1)))
    how = {"bins": settings.calibration_bins, "k": settings.top_k}
    everything = population.answers()
    truth = figures_of(everything, **how)
    generator = np.random.default_rng(1)
    held = dict.fromkeys(truth, 0)
    for number in range(sets):
        drawn = generator.integers(_EVERYTHING, size=rows)
        answers = Answers(everything.logits[drawn], everything.labels[drawn])
        estimated = intervals(answers, figures_of(answers, **how), settings=settings, seed=number)
        for name, interval in estimated.items():
            held[name] += interval.low <= truth[name] <= interval.high
    return {name: count / sets for name, count in held.items()}


def paired_held(pair: Pair, *, rows: int, sets: int, resamples: int) -> float:
    """Return the share of test sets whose interval of the two models' difference contains the true one."""
    generator = np.random.default_rng(2)
    held = 0
    for number in range(sets):
        new, old = pair.draw(generator, rows)
        interval = paired_difference(new, old, resamples=resamples, confidence=0.95, seed=number)
        held += interval.low <= pair.better <= interval.high
    return held / sets


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """Return the rows of the table."""
    sets, resamples, sizes = (20, 100, (100,)) if quick else (rounds, 400, (300, 1000))
    rows = []
    for size, population in itertools.product(sizes, POPULATIONS[:1] if quick else POPULATIONS):
        held = figures_held(population, rows=size, sets=sets, resamples=resamples)
        # The interval of the calibration error is wide on purpose
        met = all(0.93 <= share <= 0.97 for name, share in held.items() if name != "ece") and held["ece"] >= 0.95
        summary = ", ".join(f"{name} {share:.3f}" for name, share in held.items())
        rows.append(_row(f"{population.name}, {size:,} rows", sets, summary, "0.93 to 0.97, ece >= 0.95", met))
    for size in sizes:
        for pair in PAIRS:
            share = paired_held(pair, rows=size, sets=sets, resamples=4000)
            rows.append(
                _row(f"{pair.name}, {size:,} rows", sets, f"{share:.3f}", "0.93 to 0.97", 0.93 <= share <= 0.97)
            )
    return rows


def _row(condition: str, sets: int, summary: str, claim: str, met: bool) -> Row:
    print(f"{condition}: {summary}", flush=True)
    return Row("share of intervals that contain the truth", f"{condition}, {sets:,} sets", summary, claim, met)


if __name__ == "__main__":
    alone(options(__doc__, rounds=1000), lambda arguments: measure(arguments.rounds, quick=arguments.quick))
