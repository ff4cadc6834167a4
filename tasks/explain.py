"""Explanations of the evaluated model for the report: what each kind of samples allows."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ratchet.evaluation.details import Details, ExplainedText
from ratchet.evaluation.importance import Importance, following_columns, measure_importance
from ratchet.settings.model import EvaluationSettings

if TYPE_CHECKING:
    from ratchet.evaluation.predictions import Predictions
    from ratchet.kinds import ModelSpec
    from ratchet.training import Model, Split, TableSplit
    from ratchet.training.streams import StreamSplit
    from ratchet.training.texts import TextSplit

__all__ = ["explain_samples"]

_IMPORTANCE_ROWS = 2000  # test rows whose columns are shuffled
_IMPORTANCE_COLUMNS = 100  # each of which costs three predictions of these rows
_PROMPTS, _CHARACTERS, _TOKENS = 3, 60, 200  # of generated text: prompts, their length, and tokens of each answer


def explain_samples(
    model: "Model", spec: "ModelSpec", test: "Split", predictions: "Predictions", settings: EvaluationSettings
) -> Details:
    """Return the importance of a table's columns, the words of wrong answers to texts, or generated text."""
    from ratchet.training import TableSplit
    from ratchet.training.streams import StreamSplit
    from ratchet.training.texts import TextSplit

    match test:
        case TableSplit():
            return Details(importance=_importance(model, spec, test, predictions, settings))
        case TextSplit() if spec.target.classes:
            return Details(texts=_words(model, spec, test, predictions, settings))
        case StreamSplit():
            return Details(generated=_generated(model, spec, test))
        case _:
            return Details()


def _importance(
    model: "Model", spec: "ModelSpec", test: "TableSplit", predictions: "Predictions", settings: EvaluationSettings
) -> Importance | None:
    from ratchet.evaluation.problems import answers_to
    from ratchet.evaluation.robustness import evenly_spaced
    from ratchet.training import ShardedArray, predict_outputs

    rows = evenly_spaced(len(test), _IMPORTANCE_ROWS)
    chosen = test.only(rows)
    arrays = chosen.gather(np.arange(len(rows)))
    targets, places = predictions.targets[rows], {"number": 0, "code": 0}
    columns = []
    for column in spec.table.columns:
        array = "code" if column.type == "categorical" else "number"
        columns.append((column.name, int(array == "code"), places[array]))
        places[array] += 1

    def score(values: "tuple[NDArray[np.generic], ...]") -> NDArray[np.float64]:
        split = type(test)(test.name, tuple(ShardedArray([each]) for each in values), targets, chosen.keys)
        outputs = predict_outputs(model, split)
        return answers_to(spec.target, outputs, targets, thresholds=predictions.thresholds).score

    if not columns:
        return None
    measured = columns
    if len(columns) > _IMPORTANCE_COLUMNS:
        measured = following_columns(arrays, columns, predict_outputs(model, chosen), most=_IMPORTANCE_COLUMNS)
    importance = measure_importance(
        score, arrays, measured, unit=predictions.answers.unit, confidence=settings.confidence
    )
    return replace(importance, left_out=len(columns) - len(measured))


def _words(
    model: "Model", spec: "ModelSpec", test: "TextSplit", predictions: "Predictions", settings: EvaluationSettings
) -> tuple[ExplainedText, ...]:
    from ratchet.evaluation.text_explanations import word_contributions

    rows = predictions.worst_errors(settings.explained_errors)
    texts, answers = test.texts(rows), predictions.answers.predicted[rows].tolist()
    model = model.eval()
    return tuple(
        ExplainedText(predictions.ids[row], tuple(word_contributions(model, spec, text, answer)))
        for row, text, answer in zip(rows, texts, answers, strict=True)
    )


def _generated(model: "Model", spec: "ModelSpec", test: "StreamSplit") -> tuple[tuple[str, str], ...]:
    from ratchet.errors import TrainingError
    from ratchet.training.generate import Generator, Sampling

    generator, samples = Generator(model, spec.stream), []
    text = test.text.tobytes().decode()
    for number in range(_PROMPTS):
        start = text.find("\n", len(text) * number // _PROMPTS) + 1
        prompt = text[start : start + _CHARACTERS] or text[:_CHARACTERS]
        try:
            samples.append((prompt, "".join(generator(prompt, Sampling(max_tokens=_TOKENS)))))
        except TrainingError:  # the vocabulary does not have all of the prompt: another text may serve
            continue
    return tuple(samples)
