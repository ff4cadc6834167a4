"""Accuracy and time of examples/text-sentiment.yaml on rt-polarity in 10 folds, beside TF-IDF with logistic regression.

    RATCHET_DATASETS=FOLDER python -m bench.texts [--rounds 3]

FOLDER holds text/rt-polarity. A round is one division of the 10,662 texts into 10 folds of equal class shares. In each
fold the tokenizer, the model and the baseline learn from nine parts, and the tenth is predicted once. The loop is the
shipped one. It chooses the best epoch by 512 of the training rows, so the tenth part chooses nothing. The seconds are
of the ten folds together, tokenizer included.

Published on the same texts, in 10 folds: Kim 2014 (arXiv:1408.5882), CNN without pretrained vectors, .761. Wang and
Manning 2012, NBSVM with word pairs, .794.
"""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bench.project import ROOT, scratch
from bench.report import Row, alone, options, spread
from ratchet import settings
from ratchet.data.split import keys
from ratchet.kinds import ModelSpec
from ratchet.problems import Classes
from ratchet.settings.example_files import Example, compose
from ratchet.tokens.tokenizers import encode, fit_tokenizer
from ratchet.training import CheckpointStore, Finished, Plan, Split, TrainingInputs, fit
from ratchet.training.models import build
from tasks.training_job import make_plan

__all__ = ["measure"]

_GOAL, _SECONDS = 0.790, 120.0
_FOLDS = 10
_CHECKED = 512  # training rows that the loop uses as validation rows
_TARGET = Classes(("neg", "pos"))

Texts = list[str]
Labels = NDArray[np.int64]


def measure(rounds: int, *, quick: bool) -> list[Row]:
    """Return the rows of the table."""
    folder = Path(os.environ.get("RATCHET_DATASETS", "")).absolute() / "text" / "rt-polarity"
    if not folder.is_dir():
        return [Row("accuracy: reviews", "no text/rt-polarity in RATCHET_DATASETS", "not measured", f">= {_GOAL}")]
    parts = [(folder / f"rt-polarity.{name}").read_text(encoding="utf-8").split("\n") for name in _TARGET.names]
    texts = [line.strip() for lines in parts for line in lines if line.strip()]
    labels = np.repeat([0, 1], [sum(bool(line.strip()) for line in lines) for lines in parts]).astype(np.int64)
    ours, baseline = [], []
    for seed in range(rounds):
        ours.append(_folds(texts, labels, seed, _bag(seed), quick=quick))
        baseline.append(_folds(texts, labels, seed, _logistic, quick=quick))
        print(f"round {seed}: bag {ours[-1][0]:.4f}, {ours[-1][1]:.1f} s; TF-IDF {baseline[-1][0]:.4f}", flush=True)
    return _rows(ours, baseline, rounds)


def _rows(ours: list[tuple[float, ...]], baseline: list[tuple[float, ...]], rounds: int) -> list[Row]:
    condition = f"rt-polarity, {_FOLDS} folds, mean of {rounds} rounds (standard deviation of the folds)"
    accuracy, seconds = statistics.mean(row[0] for row in ours), statistics.median(row[1] for row in ours)
    return [
        Row("accuracy: examples/text-sentiment.yaml", condition, _share(ours), f">= {_GOAL}", accuracy >= _GOAL),
        Row("accuracy: TF-IDF of words and pairs, logistic regression", condition, _share(baseline)),
        Row("s: examples/text-sentiment.yaml, all folds", f"median of {rounds}",
            spread([row[1] for row in ours], form=".1f"),
            f"<= {_SECONDS:.0f}", seconds <= _SECONDS),
        Row("CPU-s: the same", f"median of {rounds}", spread([row[2] for row in ours], form=".1f")),
        Row("s: TF-IDF, all folds", f"median of {rounds}", spread([row[1] for row in baseline], form=".1f")),
    ]  # fmt: skip


def _share(rows: list[tuple[float, ...]]) -> str:
    return f"{statistics.mean(row[0] for row in rows):.4f} ({statistics.mean(row[3] for row in rows):.4f})"


def _folds(
    texts: Texts, labels: Labels, seed: int, predict: Callable[[Texts, Labels, Texts], Labels], *, quick: bool
) -> tuple[float, ...]:
    """Return mean accuracy, seconds, CPU-seconds, and the standard deviation of the folds."""
    from sklearn.model_selection import StratifiedKFold

    began, processor = time.perf_counter(), time.process_time()
    accuracies: list[float] = []
    for train, test in StratifiedKFold(_FOLDS, shuffle=True, random_state=seed).split(texts, labels):
        if quick and len(accuracies) == 2:
            break
        train = train[:: 10 if quick else 1]
        answers = predict([texts[row] for row in train], labels[train], [texts[row] for row in test])
        accuracies.append(float((answers == labels[test]).mean()))
    used = time.perf_counter() - began, time.process_time() - processor
    return statistics.mean(accuracies), *used, statistics.stdev(accuracies)


def _bag(seed: int) -> Callable[[Texts, Labels, Texts], Labels]:
    example = Example(ROOT / "examples" / "text-sentiment.yaml")
    with scratch() as folder:
        (folder / "params.yaml").write_text(compose(example), encoding="utf-8")
        plan = make_plan(settings.load(folder / "params.yaml").training, _TARGET, seed=seed)

    def predict(texts: Texts, labels: Labels, others: Texts) -> Labels:
        described = fit_tokenizer(texts, "hashed")
        spec = ModelSpec("bag", described, _TARGET)
        split = Split("train", (encode(texts, described),), labels, keys(map(str, range(len(texts)))))
        model = build(spec)
        model.load_state_dict(_trained(split, spec, plan))
        rows = encode(others, described)
        with torch.inference_mode():
            outputs = model.eval()(torch.from_numpy(rows.gather(np.arange(len(rows)))))
        answers: Labels = outputs.argmax(1).numpy()
        return answers

    return predict


def _trained(split: Split, spec: ModelSpec, plan: Plan) -> dict[str, torch.Tensor]:
    """Return the weights of the epoch that is best on some of the training rows."""
    chosen = split.only(np.arange(0, len(split), max(1, len(split) // _CHECKED)))
    with scratch() as folder:
        *_, last = fit(TrainingInputs(split, chosen, spec, plan), store=CheckpointStore(folder))
    assert isinstance(last, Finished), "nothing stops it"
    return last.weights


def _logistic(texts: Texts, labels: Labels, others: Texts) -> Labels:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = LogisticRegression(C=10.0, max_iter=300).fit(vectors.fit_transform(texts), labels)
    answers: Labels = model.predict(vectors.transform(others))
    return answers


if __name__ == "__main__":
    alone(options(__doc__, rounds=3), lambda requested: measure(requested.rounds, quick=requested.quick))
