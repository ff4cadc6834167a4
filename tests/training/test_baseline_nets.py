"""Networks of baselines. The truth comes from scikit-learn's own predictions, and from counts made by hand."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import nn

from ratchet.baselines import FittedBaseline, fit_baseline
from ratchet.baselines.trees import columns
from ratchet.kinds import Column, ImageInput, Input, ModelSpec, TableInput, TextInput, TokensInput
from ratchet.problems import Classes, Labels, NextToken, Numbers, Target
from ratchet.settings.model import TrainingSettings
from ratchet.tokens.tokenizers import encode
from ratchet.tokens.words_and_pairs import encode_terms, learn_terms, terms_of
from ratchet.training.models.baseline_nets import BASELINES, Blend, Constant, Trees, blend_weights, blended
from ratchet.training.models.tabular import TableFront
from ratchet.training.texts import TextSplit
from tasks.baseline import Baseline
from tasks.training_job import TrainingJob, make_plan

Arrays = dict[str, NDArray[np.generic]]
TEXTS = ["good good film", "bad film", "a good story", "bad bad bad story", "Good FILM, good story", "bad plot", ""] * 8


@dataclass(frozen=True)
class Table:
    input: TableInput
    arrays: Arrays
    signal: NDArray[np.float64]  # of which targets are made

    def prepared(self) -> tuple[torch.Tensor, ...]:
        prepared: tuple[torch.Tensor, ...] = TableFront(self.input)(
            torch.from_numpy(self.arrays["numbers"]), torch.from_numpy(self.arrays["codes"])
        )
        return prepared


def table(rows: int = 1500, *, categories: int = 12, numeric: int = 4, seed: int = 0) -> Table:
    """Make a table with missing numbers, a number that is always missing, and missing and unknown categories."""
    generator = np.random.default_rng(seed)
    numbers = (1000 + generator.standard_t(2, (rows, numeric)) * 30).astype(np.float32)
    codes = generator.integers(0, categories + 2, (rows, 2))
    effect = generator.normal(size=categories + 2)
    signal = effect[codes[:, 0]] + generator.normal(size=rows) * 0.3
    if numeric:
        signal += np.sin(numbers[:, 0] / 20) + (numbers[:, 1] > 1010)
        numbers[generator.random((rows, numeric)) < 0.1] = np.nan
        numbers[:, -1] = np.nan
    names = tuple(f"category {number}" for number in range(categories))
    described = [Column(f"n{number}", "numeric", mean=1000.0, std=30.0) for number in range(numeric)]
    described += [Column(f"c{number}", "categorical", categories=names) for number in range(2)]
    return Table(TableInput(tuple(described)), {"numbers": numbers, "codes": codes}, signal)


def classes(count: int) -> Classes:
    return Classes(tuple(f"class {number}" for number in range(count)))


def cut(signal: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return classes by equal parts of the signal."""
    return np.searchsorted(np.quantile(signal, np.linspace(0, 1, count + 1)[1:-1]), signal).astype(np.int64)


def network(fitted: FittedBaseline, target: Target) -> nn.Module:
    """Build the network as a stored model is built: from its names, and then from the bytes of its tensors."""
    built = BASELINES[fitted.network_name](input=fitted.input, target=target)
    built.load_state_dict(load(save(fitted.weights)))
    return built.eval()


def seen(data: Table, fitted: FittedBaseline) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the columns that scikit-learn gets, and the categorical ones among them."""
    rows = columns(
        data.arrays["numbers"], data.arrays["codes"], data.input, fitted.weights["categories"].numpy().astype(np.int64)
    )
    kept = ~np.isnan(rows).all(0)
    return rows[:, kept], (np.arange(rows.shape[1]) >= len(data.input.numeric))[kept]


def onnx_outputs(model: nn.Module, traced: tuple[torch.Tensor, ...], inputs: tuple[torch.Tensor, ...], path: Path):
    """Export with a variable number of rows (and of ids), and run the program on other inputs."""
    shapes = tuple({0: torch.export.Dim("rows")} for _ in traced)
    if traced[0].dim() == 2 and len(traced) == 1:
        shapes = ({0: torch.export.Dim("rows"), 1: torch.export.Dim("ids", min=2)},)
    if isinstance(model, Blend):
        shapes = (shapes,)  # of its one argument, *inputs
    names = [f"input {number}" for number in range(len(traced))]
    with torch.no_grad():
        exported = torch.export.export(model, traced, dynamic_shapes=shapes, strict=False)
        program = torch.onnx.export(exported, input_names=names, verbose=False)
    assert program is not None
    program.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    present = {value.name for value in session.get_inputs()}
    feed = {name: value.numpy() for name, value in zip(names, inputs, strict=True) if name in present}
    return session.run(None, feed)[0]


@pytest.mark.parametrize(("count", "categories", "numeric"), [(2, 12, 4), (3, 12, 4), (2, 700, 4), (5, 40, 0)], ids=str)
def test_trees_give_the_logits_of_scikit_learn(count: int, categories: int, numeric: int) -> None:
    data = table(categories=categories, numeric=numeric)
    labels, target = cut(data.signal, count), classes(count)
    fitted = fit_baseline(data.arrays, labels, data.input, target, seed=3)
    rows, native = seen(data, fitted)
    expected = HistGradientBoostingClassifier(categorical_features=native, random_state=3).fit(rows, labels)
    with torch.no_grad():
        outputs = network(fitted, target)(*data.prepared()).numpy()
    raw = expected.decision_function(rows)
    np.testing.assert_allclose(outputs[:, 1] - outputs[:, 0] if count == 2 else outputs, raw, rtol=1e-6, atol=2e-6)
    np.testing.assert_allclose(target.predictions(outputs), expected.predict_proba(rows), atol=1e-6)


def test_trees_give_the_numbers_of_scikit_learn() -> None:
    data = table()
    values = np.stack([data.signal * 7 + 100, -data.signal], 1).astype(np.float32)
    target = Numbers(("a", "b"), tuple(values.mean(0).tolist()), tuple(values.std(0).tolist()))
    fitted = fit_baseline(data.arrays, values, data.input, target, seed=0)
    rows, native = seen(data, fitted)
    with torch.no_grad():
        outputs = network(fitted, target)(*data.prepared()).numpy()
    for number in range(2):
        scaled = (values[:, number].astype(np.float64) - target.mean[number]) / target.std[number]
        expected = HistGradientBoostingRegressor(categorical_features=native, random_state=0).fit(rows, scaled)
        np.testing.assert_allclose(outputs[:, number], expected.predict(rows), rtol=1e-6, atol=1e-6)


def test_a_number_at_a_threshold_goes_left() -> None:
    data = table(numeric=3)
    values = data.arrays["numbers"]
    values[:] = np.random.default_rng(0).integers(0, 5, values.shape) / 3  # thresholds lie between few values
    labels = (values[:, 0] > 0.7).astype(np.int64)
    fitted = fit_baseline(data.arrays, labels, data.input, classes(2), seed=0)
    threshold = fitted.weights["threshold"][0, 0, 0]
    model = network(fitted, classes(2))
    numbers = torch.full((3, 3), float(threshold))
    numbers[1, 0] = torch.nextafter(threshold, torch.tensor(torch.inf))
    numbers[2, 0] = torch.nextafter(threshold, torch.tensor(-torch.inf))
    with torch.no_grad():
        outputs = model(numbers, torch.zeros(3, 3), torch.zeros(3, 2, dtype=torch.int64))
    assert torch.equal(outputs[0], outputs[2])
    assert outputs[0, 1] < outputs[1, 1]


def test_unknown_categories_and_missing_rows_count_as_missing() -> None:
    data = table()
    fitted = fit_baseline(data.arrays, cut(data.signal, 2), data.input, classes(2), seed=0)
    front, model = TableFront(data.input), network(fitted, classes(2))
    with torch.no_grad():
        missing = model(*front(torch.full((1, 4), torch.nan), torch.zeros(1, 2, dtype=torch.int64)))
        unknown = model(*front(torch.full((1, 4), torch.nan), torch.ones(1, 2, dtype=torch.int64)))
    assert torch.equal(missing, unknown)
    assert missing.isfinite().all()


def test_each_label_has_trees_of_its_own() -> None:
    data = table()
    labels = np.stack([data.signal > 0, np.zeros(len(data.signal)), data.signal > 1], 1).astype(np.float32)
    target = Labels(("a", "never", "b"))
    fitted = fit_baseline(data.arrays, labels, data.input, target, seed=0)
    with torch.no_grad():
        probabilities = target.predictions(network(fitted, target)(*data.prepared()).numpy())
    assert ((probabilities > 0.5) == (labels > 0)).mean(0).min() > 0.9
    np.testing.assert_allclose(probabilities[:, 1], 0.5 / (len(labels) + 1), rtol=1e-5)


@pytest.mark.parametrize("present", [[1, 3], [0, 2, 3]])
def test_classes_without_rows_are_improbable_but_possible(present: list[int]) -> None:
    data = table()
    labels = np.array(present)[cut(data.signal, len(present))]
    fitted = fit_baseline(data.arrays, labels, data.input, classes(4), seed=0)
    with torch.no_grad():
        probabilities = classes(4).predictions(network(fitted, classes(4))(*data.prepared()).numpy())
    absent = [number for number in range(4) if number not in present]
    assert (probabilities.argmax(1) == labels).mean() > 0.8
    assert probabilities[:, absent].min() > 0
    assert np.median(probabilities[:, absent]) < 0.01


def padded(texts: list[str], described: TextInput) -> torch.Tensor:
    ids, starts = encode_terms(texts, described)
    lengths = np.diff(starts)
    inside = np.arange(max(2, lengths.max())) < lengths[:, None]
    rows = np.zeros(inside.shape, np.int64)
    rows[inside] = ids
    return torch.from_numpy(rows)


def text_arrays(texts: list[str]) -> Arrays:
    content = [text.encode() for text in texts]
    starts = np.cumsum([0, *map(len, content)])
    return {"text": np.frombuffer(b"".join(content), np.uint8), "starts": starts.astype(np.int64)}


@pytest.mark.parametrize("count", [2, 3])
def test_linear_bag_gives_the_logits_of_scikit_learn(count: int) -> None:
    labels = np.arange(len(TEXTS), dtype=np.int64) % 7 % count
    fitted = fit_baseline(text_arrays(TEXTS), labels, TextInput(), classes(count), seed=0)
    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    expected = LogisticRegression(C=10.0, max_iter=300).fit(vectors.fit_transform(TEXTS), labels)
    assert sorted(vectors.vocabulary_) == list(fitted.input.vocabulary)
    fresh = [*TEXTS[:7], "unknown words only", "good good good bad unknown film"]
    with torch.no_grad():
        outputs = network(fitted, classes(count))(padded(fresh, fitted.input)).numpy()
    raw = expected.decision_function(vectors.transform(fresh))
    np.testing.assert_allclose(outputs[:, 1] - outputs[:, 0] if count == 2 else outputs, raw, atol=2e-6)


def test_padding_and_order_do_not_change_a_text() -> None:
    fitted = fit_baseline(text_arrays(TEXTS), np.arange(56) % 2, TextInput(), classes(2), seed=0)
    model, ids = network(fitted, classes(2)), padded(TEXTS[:4], fitted.input)
    longer = torch.cat([torch.zeros_like(ids), ids.flip(1)], 1)
    with torch.no_grad():
        torch.testing.assert_close(model(ids), model(longer), rtol=0, atol=1e-6)


def test_linear_bag_predicts_labels_and_numbers() -> None:
    good = np.array(["good" in text.lower() for text in TEXTS], np.float32)
    story = np.array(["story" in text for text in TEXTS], np.float32)
    labels = Labels(("good", "story", "never"))
    fitted = fit_baseline(text_arrays(TEXTS), np.stack([good, story, 0 * good], 1), TextInput(), labels, seed=0)
    with torch.no_grad():
        outputs = network(fitted, labels)(padded(TEXTS, fitted.input)).numpy()
    assert ((outputs[:, :2] > 0) == np.stack([good, story], 1)).all()
    assert outputs[:, 2].max() < -4
    numbers = Numbers(("n",), (0.5,), (0.5,))
    fitted = fit_baseline(text_arrays(TEXTS), good[:, None], TextInput(), numbers, seed=0)
    with torch.no_grad():
        predicted = numbers.predictions(network(fitted, numbers)(padded(TEXTS, fitted.input)).numpy())
    assert fitted.name == "TF-IDF + ridge regression"
    assert np.abs(predicted[:, 0] - good).mean() < 0.2


def test_linear_bag_takes_ids_of_another_tokenizer() -> None:
    ids, starts = encode_terms(TEXTS, learn_terms(TEXTS))
    described = TextInput("hashed", buckets=64)
    arrays: Arrays = {"ids": ids % 62 + 2, "starts": starts}
    labels = np.array(["good" in text.lower() for text in TEXTS], np.int64)
    fitted = fit_baseline(arrays, labels, described, classes(2), seed=0)
    assert fitted.input == described
    assert fitted.weights["idf"].shape == (64,)


def test_baseline_of_a_part_of_very_many_texts_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    content = [text.encode() for text in TEXTS]
    starts = np.cumsum([0, *map(len, content)], dtype=np.int64)
    ids, targets = encode(TEXTS, TextInput("hashed", buckets=64)), np.arange(len(TEXTS)) // 4 % 2
    split = TextSplit(
        "train", (ids,), targets, np.arange(len(TEXTS), dtype=np.uint64),
        content=np.frombuffer(b"".join(content), np.uint8), starts=starts, rows=np.arange(len(TEXTS)),
    )  # fmt: skip
    spec = ModelSpec("bag", TextInput("hashed", buckets=64), classes(2))
    job = TrainingJob(make_plan(TrainingSettings(), spec.target, seed=0), spec, None, None, "network", {}, {})
    assert Baseline.fit(job, split).name == "TF-IDF + logistic regression"
    monkeypatch.setattr("tasks.baseline._MOST_BYTES", split.bytes // 4)
    fitted = Baseline.fit(job, split)
    assert fitted.name == f"TF-IDF + logistic regression of {len(TEXTS) // 4} training samples"
    chosen = [TEXTS[number * 4] for number in range(len(TEXTS) // 4)]
    assert fitted.spec.input.vocabulary == learn_terms(chosen).vocabulary


def test_terms_are_words_and_neighbours_in_any_script() -> None:
    assert terms_of("It's GOOD, a film") == ["it", "good", "film", "it good", "good film"]
    assert terms_of("電影好") == ["電", "影", "好", "電 影", "影 好"]
    assert terms_of(" . ") == []


def stream(count: int = 4000, *, tokens: int = 7, seed: int = 0) -> NDArray[np.int64]:
    """Make a stream in which the last two tokens mostly decide the next one."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(0, tokens, count)
    for place in range(2, count):
        if ids[place] < tokens - 1:
            ids[place] = (ids[place - 1] * 2 + ids[place - 2]) % (tokens - 1)
    return ids


def test_ngram_probabilities_sum_to_one_and_use_the_context() -> None:
    ids, target = stream(), NextToken(9)  # two ids never occur
    described = TokensInput("characters", tuple("abcdefgh"), 16)
    fitted = fit_baseline({"ids": ids[:3000]}, np.zeros(0), described, target, seed=0)
    rows = torch.from_numpy(ids[3000:3960].reshape(60, 16))
    with torch.no_grad():
        logits = network(fitted, target)(rows)
    torch.testing.assert_close(logits.exp().sum(2), torch.ones(60, 16), rtol=0, atol=1e-5)
    loss = -logits[:, :-1].gather(2, rows[:, 1:, None])
    assert fitted.name == "5-gram counts"
    assert loss[:, 2:].mean() < 0.8 < loss[:, 0].mean()


def test_ngram_shares_follow_kneser_and_ney_by_hand() -> None:
    # Of the bigrams aa ab aa ab ac: (a,a) 2, (a,b) 2, (a,c) 1, (b,a) 2, (c,...) none. Too few for estimated discounts.
    fitted = fit_baseline(
        {"ids": np.array([0, 0, 1, 0, 0, 1, 0, 2])},
        np.zeros(0),
        TokensInput("words", ("a", "b"), 8),
        NextToken(3),
        seed=0,
    )
    weights = fitted.weights
    assert fitted.name == "3-gram counts"
    assert weights["levels"].tolist() == [2, 3]  # contexts a, b; then aa, ba, ab
    assert weights["keys"].tolist() == [0, 1, 3, 4, 6]
    # After (a, b) came a, twice: (2 - 1/2) / 2, and the rest is left to the shorter context.
    last = slice(int(weights["starts"][4]), int(weights["starts"][5]))
    assert weights["tokens"][last].tolist() == [0]
    assert weights["shares"][last].tolist() == [0.75]
    assert weights["rest"][4].item() == 0.25
    # Different tokens before each token, that is, different bigrams: a after a and b, b after a, c after a.
    torch.testing.assert_close(weights["unigrams"], torch.tensor([1.5, 0.5, 0.5]) / 4 + 1.5 / 4 / 3)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_ngrams_of_a_short_stream_are_finite(count: int) -> None:
    target, described = NextToken(4), TokensInput("bytes", (), 5)
    fitted = fit_baseline({"ids": np.arange(count) % 4}, np.zeros(0), described, target, seed=0)
    logits = network(fitted, target)(torch.zeros(2, 5, dtype=torch.int64))
    assert logits.isfinite().all()
    torch.testing.assert_close(logits.exp().sum(2), torch.ones(2, 5))


def test_constant_predicts_frequencies_or_the_mean() -> None:
    image = ImageInput(4, 4, 1, (0.0,), (1.0,))
    images = torch.zeros(5, 1, 4, 4)
    fitted = fit_baseline({}, np.array([0, 1, 1, 1]), image, classes(2), seed=0)
    assert fitted.name == "majority class"
    np.testing.assert_allclose(classes(2).predictions(network(fitted, classes(2))(images).numpy())[4], [0.3, 0.7])
    numbers = Numbers(("n",), (5.0,), (2.0,))
    fitted = fit_baseline({}, np.array([[4.0], [6.0]]), image, numbers, seed=0)
    assert fitted.name == "mean"
    assert numbers.predictions(network(fitted, numbers)(images).numpy()).tolist() == [[5.0]] * 5
    assert Constant(classes=3, channels=1, height=4, width=4)(images).shape == (5, 3)


@pytest.mark.parametrize(
    "target", [classes(3), Labels(("a", "b", "c")), Numbers(("a", "b", "c"), (0.0,) * 3, (1.0,) * 3)]
)
def test_blend_is_the_mean_of_both_predictions(target: Target) -> None:
    described = TableInput(())
    build = blended("blend:first+constant", {"first": Constant})
    assert build is not None
    blend = build(input=described, target=target)
    first, second = torch.tensor([1.0, -2.0, 40.0]), torch.tensor([0.5, 3.0, -40.0])
    blend.load_state_dict(blend_weights({"value": first}, {"value": second}))
    outputs = blend(torch.zeros(1, 0)).numpy()
    assert np.isfinite(outputs).all()
    means = (target.predictions(value[None].numpy()) for value in (first, second))
    np.testing.assert_allclose(target.predictions(outputs), sum(means) / 2, atol=1e-6)
    assert blended("constant", {}) is None


def test_loading_takes_over_shapes_but_refuses_missing_tensors() -> None:
    data = table()
    fitted = fit_baseline(data.arrays, cut(data.signal, 2), data.input, classes(2), seed=0)
    weights = {name: value for name, value in fitted.weights.items() if name != "threshold"}
    with pytest.raises(RuntimeError, match="threshold"):
        Trees(data.input, classes(2)).load_state_dict(weights)
    with pytest.raises(RuntimeError, match="size mismatch"):
        Trees(data.input, classes(2)).load_state_dict({**fitted.weights, "base": torch.zeros(1, 2)})


def cases() -> list[tuple[str, Input, Target, Arrays, NDArray[np.generic], tuple[torch.Tensor, ...]]]:
    data, terms = table(300), learn_terms(TEXTS)
    tokens = TokensInput("characters", tuple("abcdef"), 8)
    streams = {"ids": stream(2000)}
    return [
        ("trees", data.input, classes(3), data.arrays, cut(data.signal, 3), data.prepared()),
        ("linear-bag", TextInput(), classes(2), text_arrays(TEXTS), np.arange(56) % 2, (padded(TEXTS, terms),)),
        (
            "ngrams",
            tokens,
            NextToken(7),
            streams,
            np.zeros(0),
            (torch.from_numpy(stream(400, seed=1).reshape(40, 10)),),
        ),
        ("constant", TextInput(), classes(2), {}, np.zeros(4, np.int64), (padded(TEXTS, terms),)),
    ]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case[0])
def test_onnx_program_gives_the_same_outputs(case, tmp_path: Path) -> None:
    name, described, target, arrays, targets, inputs = case
    fitted = fit_baseline(arrays, targets, described, target, seed=0)
    assert fitted.network_name == name
    model = network(fitted, target)
    outputs = onnx_outputs(model, tuple(value[:3] for value in inputs), inputs, tmp_path / "model.onnx")
    with torch.no_grad():
        np.testing.assert_allclose(outputs, model(*inputs).numpy(), rtol=1e-5, atol=2e-6)


def test_onnx_program_of_a_blend_gives_the_same_outputs(tmp_path: Path) -> None:
    data = table(300)
    fitted = fit_baseline(data.arrays, cut(data.signal, 2), data.input, classes(2), seed=0)
    blend = Blend(data.input, classes(2), network=Trees, baseline=Trees).eval()
    blend.load_state_dict(blend_weights(fitted.weights, fitted.weights))
    inputs = data.prepared()
    outputs = onnx_outputs(blend, tuple(value[:3] for value in inputs), inputs, tmp_path / "model.onnx")
    with torch.no_grad():
        np.testing.assert_allclose(outputs, blend(*inputs).numpy(), rtol=1e-5, atol=2e-6)
