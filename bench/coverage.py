"""How often the intervals hold the true figure, by simulation (E2).

    python -m bench.coverage [--rounds 1000]

A set of 200,000 answers stands for all there could be, so the true figures are known. From it as many test sets are
drawn as there are rounds; told is on which share of them each figure's 95 % interval held the truth. The same for the
difference of two models on the same rows, whose errors fall together as those of one recipe with two seeds do.
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
    """All the answers there could be: normal logits, the right class's raised by `margin`, all times `sharpness`.

    `rarer`: how many times as rare each class is as the one before it. At some sharpness confidence is honest; above
    it the model is too sure.
    """

    name: str
    classes: int
    margin: float
    sharpness: float
    rarer: float = 1.0

    def answers(self, *, seed: int = 0) -> Answers:
        """The whole of it."""
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
    """Each headline figure, by name and from its plain definition."""
    truth = np.bincount(answers.labels, minlength=answers.classes)
    answered = np.bincount(answers.predicted, minlength=answers.classes)
    hits = np.bincount(answers.labels[answers.correct], minlength=answers.classes)
    occurs = truth + answered > 0
    areas = [_area(answers.probabilities[:, one], answers.labels == one) for one in np.flatnonzero(truth)]
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
    """By figure, the share of `sets` test sets of `rows` rows whose interval holds the population's own figure."""
    settings = EvaluationSettings(resamples=resamples, top_k=max(2, min(3, population.classes - 1)))
    how = {"bins": settings.calibration_bins, "k": settings.top_k}
    everything = population.answers()
    truth = figures_of(everything, **how)
    generator = np.random.default_rng(1)
    held = dict.fromkeys(truth, 0)
    for number in range(sets):
        drawn = generator.integers(_EVERYTHING, size=rows)
        answers = Answers(everything.logits[drawn], everything.labels[drawn])
        found = intervals(answers, figures_of(answers, **how), settings=settings, seed=number)
        for name, interval in found.items():
            held[name] += interval.low <= truth[name] <= interval.high
    return {name: count / sets for name, count in held.items()}


def paired_held(pair: Pair, *, rows: int, sets: int, resamples: int) -> float:
    """The share of test sets on which the interval of the two models' difference holds the true one."""
    generator = np.random.default_rng(2)
    held = 0
    for number in range(sets):
        new, old = pair.draw(generator, rows)
        found = paired_difference(new, old, resamples=resamples, confidence=0.95, seed=number)
        held += found.low <= pair.better <= found.high
    return held / sets


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """The table's rows."""
    sets, resamples, sizes = (20, 100, (100,)) if quick else (rounds, 400, (300, 1000))
    rows = []
    for size, population in itertools.product(sizes, POPULATIONS[:1] if quick else POPULATIONS):
        held = figures_held(population, rows=size, sets=sets, resamples=resamples)
        # The calibration error's interval is a wide one on purpose
        met = all(0.93 <= share <= 0.97 for name, share in held.items() if name != "ece") and held["ece"] >= 0.95
        words = ", ".join(f"{name} {share:.3f}" for name, share in held.items())
        rows.append(_row(f"{population.name}, {size:,} rows", sets, words, "0.93 to 0.97, ece >= 0.95", met))
    for size in sizes:
        for pair in PAIRS:
            share = paired_held(pair, rows=size, sets=sets, resamples=4000)
            rows.append(
                _row(f"{pair.name}, {size:,} rows", sets, f"{share:.3f}", "0.93 to 0.97", 0.93 <= share <= 0.97)
            )
    return rows


def _row(condition: str, sets: int, words: str, claim: str, met: bool) -> Row:
    print(f"{condition}: {words}", flush=True)
    return Row("share of intervals that hold the truth", f"{condition}, {sets:,} sets", words, claim, met)


if __name__ == "__main__":
    alone(options(__doc__, rounds=1000), lambda asked: measure(asked.rounds, quick=asked.quick))
