"""Text from a language model: sampling, stop texts and streaming.

The same tokens follow with and without a cache of keys and values. Both compute in float64 and round the logits to
float32, so a difference in the last bits, which another shape of a matrix product makes, is rounded away. A network
without a cache computes in its own precision: its code may make float32 tensors. Ties go to the lower id. Each prompt
is generated alone, from a random generator of its own, so a list of prompts gives the same texts as its prompts one by
one.

A model sees at most `context` tokens. When the text grows longer, its window moves on by half the context at a time, so
that the cache is rebuilt once in context / 2 tokens.
"""

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ratchet.errors import TrainingError
from ratchet.kinds import TokensInput
from ratchet.kinds.registry import kind_of
from ratchet.tokens.token_ids import decode, encode, tokens, unknown
from ratchet.training.duplicate import duplicate
from ratchet.training.models import Model
from ratchet.training.models.decoder import Cache, Decoder

__all__ = ["Generator", "Sampling", "choose", "window_start"]

_SHOWN = 5  # unknown tokens that an error names


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The choice of the next token, and the end of a text.

    Attributes:
        temperature: logits are divided by it; 0: always the most probable token.
        top_k: only so many of the most probable tokens; 0: all.
        top_p: only the fewest most probable tokens whose probabilities add up to at least this; 1: all.
        stop: texts that end the generation and are not part of it.
        stop_tokens: ids that do the same.
    """

    max_tokens: int = 200
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        allowed = {
            "max_tokens": (self.max_tokens >= 0, "0 or more"),
            "temperature": (0.0 <= self.temperature < float("inf"), "0 or more"),
            "top_k": (self.top_k >= 0, "0 (all) or more"),
            "top_p": (0.0 < self.top_p <= 1.0, "above 0, at most 1"),
            "seed": (self.seed >= 0, "0 or more"),
            "stop": (all(self.stop), "texts that are not empty"),
        }
        for name, (is_allowed, range_) in allowed.items():
            if not is_allowed:
                raise TrainingError(f"{name}: found {getattr(self, name)}. Allowed: {range_}")


def choose(logits: NDArray[np.float32], sampling: Sampling, position: float) -> int:
    """Return the id of the next token.

    Args:
        logits: (tokens,); -inf excludes a token.
        position: a random number in [0, 1), the place in the cumulative probability of the tokens.
    """
    order = np.argsort(-logits, kind="stable")
    if sampling.temperature == 0.0:
        return int(order[0])
    if sampling.top_k:
        order = order[: sampling.top_k]
    with np.errstate(over="ignore"):  # of a very low temperature: all but the most probable have exp(-inf)
        scaled = (logits[order].astype(np.float64) - float(logits[order[0]])) / sampling.temperature
    cumulative = np.cumsum(np.exp(scaled))
    if sampling.top_p < 1.0:
        count = int(np.searchsorted(cumulative, sampling.top_p * cumulative[-1])) + 1
        order, cumulative = order[:count], cumulative[:count]
    place = int(np.searchsorted(cumulative, position * cumulative[-1], side="right"))
    return int(order[min(place, len(order) - 1)])


def window_start(length: int, context: int) -> int:
    """Return the place of the first token that the model sees of a text of `length` tokens."""
    if length <= context:
        return 0
    half = max(1, context // 2)
    return -(-(length - context) // half) * half


class Generator:
    """Generation of text with a trained language model, on the CPU.

    Raises:
        TrainingError: the model is not a language model.
    """

    def __init__(self, model: Model, input_spec: Any) -> None:
        if not kind_of(input_spec).generates:
            raise TrainingError(
                "the model is not a language model, so it generates no text. Fix: name a model that was trained with "
                "data.kind: tokens"
            )
        self.input_spec: TokensInput = input_spec
        own = duplicate(model).cpu().eval()
        self._model = own.double() if isinstance(own.network, Decoder) else own

    def __call__(self, prompt: str, sampling: Sampling, *, cached: bool = True) -> Iterator[str]:
        """Yield the text that follows the prompt, in pieces, as soon as they are certain.

        Raises:
            TrainingError: the prompt is empty, or the vocabulary does not have all of it.
        """
        return _unstopped(self._text(self.prompt_ids(prompt), sampling, cached=cached), sampling.stop)

    def texts(self, prompts: Sequence[str], sampling: Sampling, *, cached: bool = True) -> list[str]:
        """Return the text that follows each prompt."""
        return ["".join(self(prompt, sampling, cached=cached)) for prompt in prompts]

    def prompt_ids(self, prompt: str) -> list[int]:
        """Return the ids of a prompt.

        Raises:
            TrainingError: it is empty or not Unicode, or the vocabulary does not have all of it.
        """
        prompt = prompt.replace("\r\n", "\n").replace("\r", "\n")  # as in the packed text
        if not prompt:
            raise TrainingError("the prompt is empty. Fix: begin the text with at least one character")
        if half := next((character for character in prompt if "\ud800" <= character <= "\udfff"), None):
            raise TrainingError(f"the prompt has {half!a}, which is no character. Fix: write the prompt in UTF-8")
        if missing := unknown(prompt, self.input_spec):
            listed = ", ".join(map(repr, missing[:_SHOWN])) + (" and more" if len(missing) > _SHOWN else "")
            raise TrainingError(
                f"the prompt has {self.input_spec.tokenizer} that the model does not know: {listed}. Allowed: those of "
                "the text that it was trained on"
            )
        return [int(token) for token in encode(prompt, self.input_spec)]

    def ids(self, prompt: Sequence[int], sampling: Sampling, *, cached: bool = True) -> Iterator[int]:
        """Yield the ids that follow the ids of a prompt, until a stop token, which is not yielded."""
        sequence = list(prompt)
        random = np.random.default_rng(sampling.seed)
        next_logits = self._cached_logits() if cached and isinstance(self._model.network, Decoder) else self._logits
        for _ in range(sampling.max_tokens):
            logits = next_logits(sequence).copy()
            if self.input_spec.tokenizer != "bytes":
                logits[tokens(self.input_spec) - 1] = -np.inf  # the unknown token has no text
            chosen = choose(logits, sampling, random.random())
            if chosen in sampling.stop_tokens:
                return
            sequence.append(chosen)
            yield chosen

    def _text(self, prompt: list[int], sampling: Sampling, *, cached: bool) -> Iterator[str]:
        new = self.ids(prompt, sampling, cached=cached)
        if self.input_spec.tokenizer != "bytes":
            yield from (decode([token], self.input_spec) for token in new)
            return
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        yield from (decoder.decode(bytes([token])) for token in new)
        yield decoder.decode(b"", final=True)

    @torch.no_grad()
    def _logits(self, sequence: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits of the next token, float32 (tokens,), from all tokens that the model sees."""
        seen = torch.tensor([sequence[window_start(len(sequence), self.input_spec.context) :]])
        return _rounded(self._model(seen))

    def _cached_logits(self) -> Callable[[Sequence[int]], NDArray[np.float32]]:
        """Return a function like `_logits` that computes only the tokens since its last call."""
        network, temperature = self._model.network, self._model.temperature
        assert isinstance(network, Decoder), "only it has a cache"
        cache: Cache = []
        start = done = 0

        @torch.no_grad()
        def logits(sequence: Sequence[int]) -> NDArray[np.float32]:
            nonlocal start, done
            if (now := window_start(len(sequence), self.input_spec.context)) != start:
                start = done = now
                cache.clear()
            answer = network(torch.tensor([sequence[done:]]), cache) / temperature
            done = len(sequence)
            return _rounded(answer)

        return logits


def _rounded(logits: torch.Tensor) -> NDArray[np.float32]:
    """Return the last logits of the only text, (tokens,)."""
    last: NDArray[np.float32] = logits[0, -1].float().numpy()
    return last


def _unstopped(pieces: Iterator[str], stop: Sequence[str]) -> Iterator[str]:
    """Yield the pieces up to the first stop text. What may be the beginning of a stop text waits for the next piece."""
    waiting = ""
    for piece in pieces:
        waiting += piece
        places = [place for text in stop if (place := waiting.find(text)) >= 0]
        if places:
            waiting = waiting[: min(places)]
            break
        held = max((_overlap(waiting, text) for text in stop), default=0)
        if held < len(waiting):
            yield waiting[: len(waiting) - held]
            waiting = waiting[len(waiting) - held :]
    if waiting:
        yield waiting


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop`, without being all of it."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
