"""Networks for texts. Their input is token ids, int64 (n, tokens), where 0 is padding; see `tokens.tokenizers`."""

from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from ratchet.errors import TrainingError
from ratchet.kinds import TextInput
from ratchet.problems import Target
from ratchet.tokens.tokenizers import PADDING, UNKNOWN, id_count

__all__ = ["VECTOR_FILES", "Bag", "Transformer", "VectorReport", "load_vectors"]

CHOSEN_BY = {"model": ("bag", "transformer")}

VECTOR_FILES = (".txt", ".vec")  # of word vectors

_WIDEST_BAG = 32
_WIDTH, _HEADS, _BLOCKS = 128, 4, 2  # of the transformer
_NEVER = -1e9  # score of padding; an infinity would give NaN for a text without tokens


class Bag(nn.Module):
    """The sum of the embeddings of a text's tokens, divided by the root of their number.

    Up to 32 outputs the embeddings are the outputs: a linear model of the tokens, whose weights begin at 0. For more
    outputs a linear layer follows. Root and not number, so that a longer text may be more certain. See Joulin et al.
    2016, arXiv:1607.01759.

    Measured on rt-polarity with examples/text-sentiment.yaml, two times 10 folds: accuracy .795, standard deviation
    of the folds .012, 1.2 CPU-seconds per fold; see bench/texts.py.
    """

    def __init__(self, input: TextInput, target: Target) -> None:
        super().__init__()
        width = min(target.outputs, _WIDEST_BAG)
        self.embedding = nn.Embedding(id_count(input), width, padding_idx=PADDING)
        self.head = nn.Linear(width, target.outputs) if width < target.outputs else None
        self.bias = nn.Parameter(torch.zeros(width))
        with torch.no_grad():
            if self.head is None:
                self.embedding.weight.zero_()
            else:
                self.embedding.weight.normal_(std=width**-0.5)[PADDING] = 0.0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return outputs (n, outputs) for token ids (n, tokens)."""
        count = (ids != PADDING).sum(1, keepdim=True).clamp(min=1)
        total: torch.Tensor = self.embedding(ids).sum(1) / count.to(self.bias.dtype).sqrt() + self.bias
        if self.head is not None:
            total = self.head(torch.relu(total))
        return total


class Transformer(nn.Module):
    """A small encoder: learned positions, two pre-norm blocks, and the mean of the tokens that are not padding.

    It needs a tokenizer that keeps the order of the words. Longer texts than `input.longest` are cut off there.

    Measured on one fold of rt-polarity with AdamW, 4 epochs in batches of 64, learning rate .001 with a linear warm-up
    and decay, weight decay .01: accuracy .779, 86 CPU-seconds.
    """

    def __init__(self, input: TextInput, target: Target, *, dropout: float = 0.3) -> None:
        super().__init__()
        if input.tokenizer == "hashed":
            raise TrainingError(
                "model.name: transformer needs the order of the words, which model.tokenizer=hashed does not keep. "
                "Fix: set model.tokenizer=words"
            )
        self.embedding = nn.Embedding(id_count(input), _WIDTH, padding_idx=PADDING)
        self.positions = nn.Embedding(max(input.longest, 1), _WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(_Block(_WIDTH, _HEADS, dropout) for _ in range(_BLOCKS))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, target.outputs)
        with torch.no_grad():
            self.embedding.weight.normal_(std=0.02)[PADDING] = 0.0
            self.positions.weight.normal_(std=0.02)
            self.head.weight.normal_(std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return outputs (n, outputs) for token ids (n, tokens)."""
        is_token = ids != PADDING
        # Clamped, because an exported program may be given more columns than the longest text has.
        places = torch.arange(ids.shape[1], device=ids.device).clamp(max=self.positions.num_embeddings - 1)
        x = self.dropout(self.embedding(ids) + self.positions(places))
        mask = torch.where(is_token, 0.0, _NEVER).to(x.dtype)[:, None, None, :]
        for block in self.blocks:
            x = block(x, mask)
        share = is_token.to(x.dtype) / is_token.sum(1, keepdim=True).clamp(min=1).to(x.dtype)
        logits: torch.Tensor = self.head((self.norm(x) * share[:, :, None]).sum(1))
        return logits


class _Block(nn.Module):
    """Attention and a layer of four times the width, each on its normed input and added to it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows, tokens, width = x.shape
        parts = self.queries_keys_values(self.attention_norm(x)).view(rows, tokens, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        x = x + self.dropout(self.attended(mixed.transpose(1, 2).reshape(rows, tokens, width)))
        result: torch.Tensor = x + self.dropout(self.layers(self.norm(x)))
        return result


@dataclass(frozen=True)
class VectorReport:
    """Result of loading word vectors: words with a vector, words of the vocabulary, and the width of the vectors."""

    vectors: int
    vocabulary: int
    width: int

    @property
    def summary(self) -> str:
        """Text for people."""
        return f"word vectors of width {self.width}: {self.vectors:,} of {self.vocabulary:,} words of the vocabulary"


def load_vectors(network: Bag | Transformer, input: TextInput, path: Path) -> VectorReport:
    """Load word vectors in the format of GloVe or word2vec's text format: a word and its numbers in each line.

    They become the embeddings of the words, scaled to the spread of the initial embeddings. Narrower vectors fill the
    first columns; of wider ones the rest is cut off. Words without a vector keep their initial embedding.

    Raises:
        TrainingError: the tokenizer has no words, the file cannot be read, or no word matches.
    """
    if input.tokenizer != "words":
        raise TrainingError(
            f"model.pretrained: word vectors need words, and model.tokenizer is {input.tokenizer}. Fix: set "
            "model.tokenizer=words"
        )
    ids = {word: number for number, word in enumerate(input.vocabulary, UNKNOWN + 1)}
    chosen = {ids[word]: vector for word, vector in _vectors(path, wanted=ids.keys())}
    if not chosen:
        raise TrainingError(
            f"model.pretrained: {path} has none of the {len(ids):,} words of the vocabulary. "
            "Fix: use vectors of the texts' language, with lower-case words"
        )
    rows = torch.tensor(list(chosen), device=network.embedding.weight.device)
    vectors = torch.from_numpy(np.stack(list(chosen.values())))
    columns = min(vectors.shape[1], network.embedding.embedding_dim)
    with torch.no_grad():
        weight = network.embedding.weight
        spread = float(weight.std()) or 1.0
        weight[rows, :columns] = (vectors[:, :columns] * (spread / (float(vectors.std()) or 1.0))).to(weight)
    return VectorReport(len(chosen), len(ids), vectors.shape[1])


def _vectors(path: Path, *, wanted: Container[str]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the wanted words and their vectors, float32 (width,)."""
    width = 0
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                word, *numbers = line.rstrip().split(" ")
                if number == 1 and len(numbers) == 1:  # word2vec's header: words and width
                    continue
                width = width or len(numbers)
                vector = np.array(numbers, dtype=np.float32)
                if len(numbers) != width or not width or not np.isfinite(vector).all():
                    raise ValueError(f"{len(numbers)} finite numbers expected {width}")
                if word in wanted:
                    yield word, vector
    except OSError as error:
        raise TrainingError(f"model.pretrained: {path}: {error.strerror or error}. Fix: correct the path") from None
    except ValueError as error:
        raise TrainingError(
            f"model.pretrained: {path}: line {number} is not a word and {width or 'some'} finite numbers ({error}). "
            "Allowed: GloVe's or word2vec's text format in UTF-8. Fix: correct or remove the line"
        ) from None
