"""The best `precision`, `channels_last` and `compile` on this device.

    python -m bench.precision [--rounds 5] [--no-compile]

The built-in models on a resident batch of 256, images of 8 to 64 pixels: fp32 and bf16, contiguous and channels-last,
plain and compiled. All variants of one model and size run in one process and take turns, a few steps each. Values are
medians over rounds of the ratio to plain contiguous fp32.
"""

import argparse
import itertools
import math
import statistics

import torch

from bench.report import Row, alone, options
from bench.resident import seconds_of, spec_of, step_on_resident_batch
from ratchet.errors import TrainingError
from ratchet.training.device import choose_device
from ratchet.training.precision import Precision, choose_precision

__all__ = ["measure"]

_SLICE = 0.5  # seconds that a variant runs before the next one's turn
_Variant = tuple[str, bool, bool]  # arithmetic, channels-last, compiled


def measure(rounds: int, *, quick: bool, compiled: bool) -> list[Row]:
    """The table's rows: one for each model and size."""
    sides, batch = ((8, 16), 16) if quick else ((8, 16, 28, 32, 64), 256)
    models = ("convnet",) if quick else ("convnet", "resnet", "fastnet")
    rows = []
    for model, side in itertools.product(models, sides):
        try:
            rows.append(_row(model, side, batch, rounds, compiled=compiled))
        except TrainingError as error:
            rows.append(Row(f"{model}, {side} px", str(error), "not measured"))
        print(f"{rows[-1].measured}: {rows[-1].figure}")
    return rows


def _row(model: str, side: int, batch: int, rounds: int, *, compiled: bool) -> Row:
    device = choose_device("auto")
    auto = choose_precision("auto", device)
    variants: list[_Variant] = list(
        itertools.product(("fp32", "bf16"), (False, True), (False, True) if compiled else (False,))
    )
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 2 * len(variants))
    steps = {
        variant: step_on_resident_batch(
            spec_of(model, side=side), Precision(variant[0], variant[1], ""), device, batch=batch, compiled=variant[2]
        )
        for variant in variants
    }
    with Precision("fp32", False, "").in_force():
        counts = {}
        for variant, step in steps.items():
            seconds_of(step, device, steps=2)
            counts[variant] = max(1, math.ceil(_SLICE / seconds_of(step, device, steps=2) * 2))
        times: dict[_Variant, list[float]] = {variant: [] for variant in variants}
        for _ in range(rounds):
            for variant, step in steps.items():
                times[variant].append(seconds_of(step, device, steps=counts[variant]) / counts[variant])
    base = times[("fp32", False, False)]
    gains = {
        variant: statistics.median(other / mine for mine, other in zip(taken, base, strict=True))
        for variant, taken in times.items()
    }
    taken = (auto.name, auto.channels_last, False)
    plain = {variant: gain for variant, gain in gains.items() if not variant[2]}
    best = max(plain, key=lambda variant: plain[variant])
    expected = ", ".join(f"{_called(variant)} {gain:.2f}" for variant, gain in gains.items())
    rate = batch / statistics.median(base)
    return Row(
        f"{model}, {side} px: speed against fp32",
        f"{rate:,.0f} images/s in fp32; auto is {_called(taken)}, fastest uncompiled is {_called(best)}",
        expected,
        "auto >= 0.95 of the fastest",
        gains[taken] >= 0.95 * gains[best],
    )


def _called(variant: _Variant) -> str:
    name, channels_last, compiled = variant
    return name + " channels-last" * channels_last + " compiled" * compiled


def main() -> None:
    """Measure and print."""
    parser = options(__doc__)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="measure torch.compile")
    alone(parser, lambda requested: measure(requested.rounds, quick=requested.quick, compiled=requested.compile))


if __name__ == "__main__":
    main()
