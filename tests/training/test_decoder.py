"""The decoder-only transformer: causal, the same with a cache, deterministic, in bf16, and exported."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from ratchet.kinds import ModelSpec, TokensInput
from ratchet.problems import NextToken
from ratchet.training.models import build, load_model, save_model
from ratchet.training.models.decoder import Cache, Decoder
from ratchet.training.optim import inputs_and_outputs

CONTEXT, TOKENS = 16, 11
INPUT, TARGET = TokensInput("characters", tuple("abcdefghij"), CONTEXT), NextToken(TOKENS)


@pytest.fixture
def decoder() -> Decoder:
    """Return a net with random weights in all layers, in float64 so that differences are errors."""
    torch.manual_seed(0)
    network = Decoder(INPUT, TARGET, layers=3, heads=2, width=32)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    return network.double().eval()


def ids(rows: int = 2, length: int = CONTEXT) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, TOKENS, (rows, length)))


def test_logits_depend_on_earlier_tokens_only(decoder: Decoder) -> None:
    seen = ids(1)
    logits = decoder(seen)
    for place in range(CONTEXT):
        other = seen.clone()
        other[0, place] = (other[0, place] + 1) % TOKENS
        changed = (decoder(other) != logits).any(2)[0]
        assert not changed[:place].any()
        assert changed[place:].all()


def test_logits_depend_on_the_order_of_tokens(decoder: Decoder) -> None:
    seen = ids(1)
    swapped = seen[:, [1, 0, *range(2, CONTEXT)]]
    assert not torch.allclose(decoder(seen)[0, -1], decoder(swapped)[0, -1])


@pytest.mark.parametrize("pieces", [[16], [1] * 16, [5, 1, 1, 9], [3, 4, 9]])
def test_pieces_with_a_cache_equal_the_whole(decoder: Decoder, pieces: list[int]) -> None:
    seen, cache = ids(), Cache()
    parts = [decoder(part, cache) for part in seen.split(pieces, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), decoder(seen), rtol=1e-12, atol=1e-12)
    assert len(cache) == 3
    assert all(tensor.shape == (2, 2, CONTEXT, 16) for pair in cache for tensor in pair)


def test_attention_equals_its_formula(decoder: Decoder) -> None:
    """A single block computed with plain products and a softmax."""
    seen = ids(1)
    block, turns = decoder.blocks[0], decoder.turns.double()
    x = decoder.embedding(seen)
    norm = functional.layer_norm(x, (32,))
    queries, keys, values = block.attention_in(norm).view(CONTEXT, 3, 2, 16).permute(1, 2, 0, 3)
    rotation = torch.complex(*turns)
    turned = []
    for heads in (queries, keys):
        pairs = functional.layer_norm(heads, (16,))
        both = torch.complex(pairs[..., :8].contiguous(), pairs[..., 8:].contiguous()) * rotation
        turned.append(torch.cat([both.real, both.imag], -1))
    scores = (turned[0] @ turned[1].mT / 4).masked_fill(torch.ones(CONTEXT, CONTEXT).triu(1).bool(), float("-inf"))
    attended = (scores.softmax(-1) @ values).permute(1, 0, 2).reshape(1, CONTEXT, 32)
    after = x + block.attention_out(attended)
    after = after + block.mlp_out(block.mlp_in(functional.layer_norm(after, (32,))).relu() ** 2)
    torch.testing.assert_close(block(x, turns, None, 0), after, rtol=1e-10, atol=1e-10)


def test_every_block_is_the_identity_at_first() -> None:
    network = Decoder(INPUT, TARGET)
    x = network.embedding(ids())
    assert all(torch.equal(block(x, network.turns, None, 0), x) for block in network.blocks)


def test_the_embedding_is_the_output_layer_and_is_saved_once(tmp_path) -> None:
    spec = ModelSpec("decoder", INPUT, TARGET)
    torch.manual_seed(1)
    model = build(spec)
    names = [name for name in model.state_dict() if "embedding" in name or "head" in name]
    assert names == ["network.embedding.weight"]
    save_model(tmp_path, model.state_dict(), spec, about={})
    loaded, loaded_spec = load_model(tmp_path)
    assert loaded_spec == spec
    assert torch.equal(loaded(ids()), model.eval()(ids()))
    loaded.network.embedding.weight.data.zero_()
    assert not loaded(ids()).any()


def test_muon_trains_the_layers_between() -> None:
    assert inputs_and_outputs(build(ModelSpec("decoder", INPUT, TARGET))) == {"network.embedding.weight"}


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_step_is_deterministic_and_reaches_every_weight(precision: torch.dtype) -> None:
    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(0)
        network = Decoder(INPUT, TARGET, dropout=0.1)
        for parameter in network.parameters():
            nn.init.normal_(parameter, std=0.1)
        with torch.autocast("cpu", precision, enabled=precision != torch.float32):
            logits = network(ids(8))
        functional.cross_entropy(logits.float().flatten(0, 1), ids(8).roll(-1, 1).flatten()).backward()
        return [parameter.grad for parameter in network.parameters()]

    torch.use_deterministic_algorithms(True)
    try:
        first, second = gradients(), gradients()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(gradient.abs().sum() > 0 and gradient.isfinite().all() for gradient in first)


def test_bf16_is_near_fp32(decoder: Decoder) -> None:
    network = decoder.float()
    with torch.autocast("cpu", torch.bfloat16):
        half = network(ids())
    assert half.dtype == torch.bfloat16
    full = network(ids())
    assert (half - full).abs().max() < 0.03 * full.abs().max()


def test_the_exported_program_has_any_number_of_rows(decoder: Decoder, tmp_path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    network = decoder.float()
    exported = torch.export.export(network, (ids(),), dynamic_shapes=({0: torch.export.Dim("rows")},), strict=False)
    program = torch.onnx.export(exported, input_names=["ids"], output_names=["logits"], verbose=False)
    program.save(tmp_path / "decoder.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "decoder.onnx", providers=["CPUExecutionProvider"])
    for rows in (1, 5):
        (logits,) = session.run(["logits"], {"ids": ids(rows).numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), network(ids(rows)), rtol=1e-4, atol=1e-4)
