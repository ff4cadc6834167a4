"""Generation of text. The truth is a softmax computed with NumPy, and the model without a cache."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from mlflow.exceptions import MlflowException
from torch import nn
from typer.testing import CliRunner

from commands.cli import app
from ratchet.errors import TrainingError
from ratchet.kinds import ModelSpec, TokensInput, image_spec
from ratchet.problems import NextToken
from ratchet.registry.pyfunc import ServedModel
from ratchet.tokens.token_ids import encode, fit, tokens
from ratchet.training import build, save_model
from ratchet.training.generate import Generator, Sampling, choose, window_start
from ratchet.training.models import Model

TEXT = "the quick brown fox jumps over the lazy dog, é日🎭\n"
CONTEXT = 16
PROMPTS = ["the quick", " fox", "the quick brown fox jumps over the lazy dog, the quick"]
SAMPLINGS = {
    "greedy": Sampling(max_tokens=40, temperature=0.0),
    "plain": Sampling(max_tokens=40, temperature=1.0),
    "hot": Sampling(max_tokens=40, temperature=3.0, seed=5),
    "top k": Sampling(max_tokens=40, top_k=3, seed=1),
    "top p": Sampling(max_tokens=40, top_p=0.6, seed=2),
    "both": Sampling(max_tokens=40, top_k=9, top_p=0.9, temperature=1.5, seed=3),
}


def make_spec(kind: str = "characters") -> ModelSpec:
    described = fit(TEXT, kind, context=CONTEXT)
    return ModelSpec("decoder", described, NextToken(tokens(described)))


def make_model(kind: str = "characters", *, spread: float = 0.15) -> Model:
    """Return a model with random weights in all layers."""
    torch.manual_seed(0)
    model = build(make_spec(kind))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=spread)
    return model.eval()


def make_generator(kind: str = "characters", *, spread: float = 0.15) -> Generator:
    return Generator(make_model(kind, spread=spread), make_spec(kind).input)


@pytest.mark.parametrize(
    ("kind", "name"), [("characters", "greedy"), ("characters", "both"), ("words", "top p"), ("bytes", "hot")]
)
def test_the_cache_changes_no_token(kind: str, name: str) -> None:
    """The texts are longer than the context of 16 tokens, for characters and bytes several times."""
    generator, sampling = make_generator(kind), SAMPLINGS[name]
    for prompt in PROMPTS:
        ids = generator.prompt_ids(prompt)
        cached = list(generator.ids(ids, sampling))
        assert cached == list(generator.ids(ids, sampling, cached=False))
        assert len(cached) == 40


def test_ties_go_to_the_lower_id_with_and_without_cache() -> None:
    model = make_model()
    weight = model.network.embedding.weight.data
    weight[7:20] = weight[3]  # 14 tokens that always have equal logits
    generator = Generator(model, make_spec().input)
    for sampling in (SAMPLINGS["greedy"], SAMPLINGS["top k"]):
        texts = [list(generator.ids([1, 2], sampling, cached=cached)) for cached in (True, False)]
        assert texts[0] == texts[1]
        assert not set(texts[0]) & set(range(7, 20)) or sampling.temperature > 0


def test_prompts_together_equal_prompts_alone() -> None:
    generator, sampling = make_generator(), SAMPLINGS["plain"]
    together = generator.texts(PROMPTS, sampling)
    assert together == [generator.texts([prompt], sampling)[0] for prompt in PROMPTS]
    assert together == generator.texts(PROMPTS[::-1], sampling)[::-1]


def test_the_seed_decides_the_text() -> None:
    generator = make_generator()
    texts = [generator.texts(["the quick"], Sampling(max_tokens=40, seed=seed))[0] for seed in (0, 1, 0)]
    assert texts[0] == texts[2] != texts[1]


def test_generation_changes_neither_the_model_nor_the_random_state() -> None:
    model = make_model()
    before, state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    Generator(model, make_spec().input).texts(PROMPTS, SAMPLINGS["plain"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}
    assert torch.equal(torch.get_rng_state(), state)


def test_greedy_tokens_are_the_most_probable() -> None:
    model, generator = make_model(spread=0.4), make_generator(spread=0.4)
    known = generator.prompt_ids("the ")
    for token in generator.ids(list(known), Sampling(max_tokens=30, temperature=0.0)):
        with torch.no_grad():
            logits = model(torch.tensor([known[window_start(len(known), CONTEXT) :]]))[0, -1, :-1]  # without unknown
        assert logits[token] >= logits.max() - 1e-4
        known.append(token)


@pytest.mark.parametrize("context", [1, 2, 3, 16, 17])
def test_the_window_holds_at_least_half_the_context(context: int) -> None:
    starts = [window_start(length, context) for length in range(1, 200)]
    assert starts == sorted(starts)
    seen = [length - start for length, start in enumerate(starts, 1)]
    assert max(seen) <= context
    assert min(seen[context:]) >= max(1, context // 2)
    assert len(set(starts)) <= 200 / max(1, context // 2) + 1  # so rarely is a cache rebuilt


def shares(sampling: Sampling, logits: np.ndarray) -> np.ndarray:
    """Return how often each token is chosen, over evenly spaced random numbers."""
    drawn = [choose(logits, sampling, (number + 0.5) / 2000) for number in range(2000)]
    return np.bincount(drawn, minlength=len(logits)) / len(drawn)


LOGITS = np.array([1.0, 3.0, -2.0, 2.0, 2.0, -np.inf], np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_tokens_are_drawn_by_their_probability(temperature: float) -> None:
    expected = softmax(LOGITS / temperature)
    assert shares(Sampling(temperature=temperature), LOGITS) == pytest.approx(expected, abs=1e-3)


def test_top_k_keeps_the_most_probable() -> None:
    kept = np.array([-np.inf, 3.0, -np.inf, 2.0, -np.inf, -np.inf])  # the lower id of two that are equal
    assert shares(Sampling(temperature=1.0, top_k=2), LOGITS) == pytest.approx(softmax(kept), abs=1e-3)
    assert shares(Sampling(temperature=1.0, top_k=99), LOGITS) == pytest.approx(softmax(LOGITS), abs=1e-3)


@pytest.mark.parametrize(("top_p", "count"), [(0.01, 1), (0.5, 1), (0.6, 2), (0.77, 3), (0.99, 4), (1.0, 5)])
def test_top_p_keeps_the_fewest_that_reach_the_share(top_p: float, count: int) -> None:
    chosen = shares(Sampling(temperature=1.0, top_p=top_p), LOGITS)
    probabilities = np.sort(softmax(LOGITS))[::-1]
    assert np.count_nonzero(chosen) == count
    assert probabilities[:count].sum() >= top_p - 1e-6
    assert probabilities[: count - 1].sum() < top_p


def test_temperature_0_ignores_random_numbers() -> None:
    assert {choose(LOGITS, Sampling(temperature=0.0), position) for position in (0.0, 0.5, 0.999999)} == {1}


@pytest.mark.parametrize("temperature", [5e-324, 1e-200, 1e-12, 1e308])
def test_extreme_temperatures_are_allowed(temperature: float) -> None:
    expected = np.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0]) if temperature < 1 else np.array([0.2] * 5 + [0.0])
    assert shares(Sampling(temperature=temperature), LOGITS) == pytest.approx(expected, abs=1e-3)


def test_the_text_ends_before_a_stop_text() -> None:
    generator = make_generator(spread=0.05)
    sampling = Sampling(max_tokens=150, temperature=2.0)
    [whole] = generator.texts(["the "], sampling)
    for stop in (whole[100], whole[50:53], whole[0:2]):
        [text] = generator.texts(["the "], Sampling(max_tokens=150, temperature=2.0, stop=("@@@", stop)))
        assert text == whole[: whole.index(stop)]
    ids = encode(whole, generator.input_spec).tolist()
    ended = Sampling(max_tokens=150, temperature=2.0, stop_tokens=frozenset({ids[9]}))
    assert list(generator.ids(generator.prompt_ids("the "), ended)) == ids[: ids.index(ids[9])]


def test_a_stop_text_in_pieces_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def pieces(*_: object, **__: object) -> Iterator[str]:
        yield from ["aEN", "b", "EE", "ND", "after"]

    generator = make_generator()
    monkeypatch.setattr(generator, "_text", pieces)
    shown = list(generator("the ", Sampling(stop=("END",))))
    assert "".join(shown) == "aENbE"
    assert shown[0] == "a"  # what may begin the stop text waits
    assert "".join(generator("the ", Sampling(stop=("afterwards",)))) == "aENbEENDafter"


def test_pieces_of_bytes_are_whole_characters() -> None:
    generator = make_generator("bytes")
    prompt = "é日🎭"
    text = "".join(generator(prompt, SAMPLINGS["plain"]))
    ids = list(generator.ids(generator.prompt_ids(prompt), SAMPLINGS["plain"]))
    assert text == bytes(ids).decode(errors="replace")


def test_the_unknown_token_is_never_generated() -> None:
    model = make_model()
    other = tokens(make_spec().input) - 1
    generator = Generator(model, make_spec().input)
    assert other not in list(generator.ids([0], Sampling(max_tokens=100, temperature=50.0)))


def test_a_network_without_cache_generates_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(nn.Module):
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.inner = network

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.inner(ids)

    model = make_model()
    expected = Generator(model, make_spec().input).texts(PROMPTS, SAMPLINGS["plain"])
    model.network = Own(model.network)
    assert Generator(model, make_spec().input).texts(PROMPTS, SAMPLINGS["plain"]) == expected


def test_a_network_that_makes_float32_tensors_generates() -> None:
    """Recurrent networks begin with such a state. In float64 the evaluation of every one of them ended in an error."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.past = nn.Embedding(outputs, 8), nn.GRU(8, 8, batch_first=True)
            self.head = nn.Linear(8, outputs)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.past(self.embed(ids), torch.zeros(1, len(ids), 8))[0])

    spec = make_spec()
    outputs = spec.target.outputs
    torch.manual_seed(0)
    model = Model(Recurrent(), spec).eval()
    text = Generator(model, spec.input).texts([PROMPTS[0]], SAMPLINGS["greedy"])[0]
    ids = encode(PROMPTS[0] + text, spec.input)
    assert len(text) == 40
    for place in range(len(PROMPTS[0]), CONTEXT):
        assert int(model(torch.from_numpy(ids[None, :place]))[0, -1, :-1].argmax()) == ids[place]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", -0.1, "temperature: found -0.1. Allowed: 0 or more"),
        ("temperature", float("nan"), "temperature: found nan"),
        ("temperature", float("inf"), "temperature: found inf"),
        ("top_k", -1, "top_k: found -1"),
        ("top_p", 0.0, "top_p: found 0.0"),
        ("top_p", 1.5, "top_p: found 1.5"),
        ("max_tokens", -1, "max_tokens: found -1"),
        ("seed", -1, "seed: found -1"),
        ("stop", ("",), "stop: found"),
    ],
)
def test_wrong_settings_are_refused(name: str, value: object, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        Sampling(**{name: value})


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ("the \udce9", r"the prompt has '\\udce9', which is no character"),
        ("the %&% dog", "the prompt has characters that the model does not know: '%', '&'"),
    ],
)
def test_prompts_that_a_model_cannot_continue_are_refused(prompt: str, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        make_generator()(prompt, Sampling())


def test_the_served_model_writes_the_texts_of_the_command() -> None:
    served, prompts = ServedModel(make_model(), make_spec()), ["the ", "fox"]
    params = {"max_tokens": 20, "temperature": 1.5, "top_k": 9, "top_p": 0.9, "seed": 3}
    expected = make_generator().texts(prompts, Sampling(**params))
    for raw in (prompts, np.array(prompts, dtype=object), pl.DataFrame({"prompt": prompts}).to_pandas()):
        assert served.predict(raw, params).tolist() == expected
    assert served.predict(["the "]).tolist() == make_generator().texts(["the "], Sampling())
    assert served.predict(prompts, {"max_tokens": 0}).tolist() == ["", ""]
    with pytest.raises(MlflowException, match="top_p: found 2"):
        served.predict(prompts, {"top_p": 2.0})
    with pytest.raises(MlflowException, match=r"input\[1\]: found null; allowed: a text"):
        served.predict(["the ", None])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a saved language model."""
    save_model(tmp_path / "model", make_model().state_dict(), make_spec(), about={})
    return tmp_path / "model"


def run(*arguments: str, fails: bool = False) -> str:
    result = CliRunner().invoke(app, ["generate", *arguments])
    assert result.exit_code == int(fails), result.output
    return result.stderr if fails else result.stdout


def test_the_command_prints_prompts_and_texts(folder: Path) -> None:
    prompts = ["--prompt", "the ", "--prompt", "fox", "--max-tokens", "30", "--seed", "4"]
    texts = make_generator().texts(["the ", "fox"], Sampling(max_tokens=30, seed=4))
    expected = f"the {texts[0]}\n\nfox{texts[1]}\n"
    assert run(str(folder), *prompts) == expected
    assert run(str(folder), *prompts, "--no-cache") == expected
    stopped = run(str(folder), "--prompt", "the ", "--seed", "4", "--stop", texts[0][10])
    assert stopped == f"the {texts[0][: texts[0].index(texts[0][10])]}\n"


@pytest.mark.system
@pytest.mark.parametrize("end", ["closed pipe", "Ctrl-C", "ASCII"])
def test_the_command_ends_without_a_traceback(folder: Path, end: str) -> None:
    arguments = [sys.executable, "-m", "commands", "generate", str(folder), "--prompt", "the 日", "--max-tokens"]
    with subprocess.Popen(
        [*arguments, "20" if end == "ASCII" else "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONIOENCODING": "ascii" if end == "ASCII" else "utf-8"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        begun = process.stdout.read(5)
        if end == "closed pipe":
            process.stdout.close()
        elif end == "Ctrl-C":
            process.send_signal(signal.SIGINT)
            process.stdout.read()
        errors = process.stderr.read().decode()
        assert begun == ("the ?" if end == "ASCII" else "the 日").encode()[:5]
        interrupted = "ratchet: interrupted; the text is not complete\n"
        expected = {"closed pipe": (1, ""), "Ctrl-C": (130, interrupted), "ASCII": (0, "")}
        assert (process.wait(60), errors) == expected[end]


def test_a_swallowed_ctrl_c_ends_the_text_after_its_piece(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pieces(*_: object, **__: object) -> Iterator[str]:
        for piece in ["quick", " brown", " fox"]:
            if piece == " brown":
                with contextlib.suppress(KeyboardInterrupt):  # as extension code does that clears every error
                    signal.raise_signal(signal.SIGINT)
            yield piece

    monkeypatch.setattr(Generator, "_text", pieces)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores Ctrl-C
    result = CliRunner().invoke(app, ["generate", str(folder), "--prompt", "the "])
    signal.signal(signal.SIGINT, before)
    assert (result.exit_code, result.stdout) == (130, "the quick brown")
    assert result.stderr == "ratchet: interrupted; the text is not complete\n"


def test_the_command_explains_what_it_cannot_do(folder: Path, tmp_path: Path) -> None:
    assert "characters that the model does not know: '%'" in run(str(folder), "--prompt", "%", fails=True)
    assert "temperature: found -1.0" in run(str(folder), "--prompt", "a", "--temperature", "-1", fails=True)
    assert "has no model.json" in run(str(tmp_path), "--prompt", "a", fails=True)
    spec = image_spec("convnet", ("a", "b"), 1, 8, 8, (0.0,), (1.0,))
    save_model(tmp_path / "images", build(spec).state_dict(), spec, about={})
    assert "images: the model is not a language model" in run(str(tmp_path / "images"), "--prompt", "a", fails=True)


def test_a_description_of_tokens_is_read_back(folder: Path) -> None:
    described = make_spec().input
    assert isinstance(described, TokensInput)
    assert described.vocabulary[-1] == "🎭"


def test_a_prompt_has_the_line_ends_of_training() -> None:
    generator = make_generator()
    assert generator.prompt_ids("the\r\nfox\r") == generator.prompt_ids("the\nfox\n")
