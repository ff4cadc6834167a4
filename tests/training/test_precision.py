"""The choice of precision and its message. The abilities of the device are simulated, the arithmetic is real."""

import pytest
import torch

from ratchet.training import Notice, Points, Started
from ratchet.training.precision import choose_precision

CPU = torch.device("cpu")


@pytest.fixture
def has(monkeypatch: pytest.MonkeyPatch):
    """Let the device have the arithmetic named, and fp32."""

    def only(*names: str) -> None:
        monkeypatch.setattr("ratchet.training.precision._has", lambda name, _device: name in ("fp32", *names))

    return only


@pytest.mark.parametrize(
    ("there", "name", "expected"),
    [
        (("bf16",), "bf16", "multiplies bf16 fastest"),
        (("bf16", "fp16"), "bf16", "multiplies bf16 fastest"),
        ((), "fp32", "has no bf16 arithmetic"),
        (("fp16",), "fp32", "has no bf16 arithmetic"),  # fp16 may overflow: never unasked
    ],
)
def test_auto_takes_the_fastest_that_is_safe_and_says_why(lab, has, there, name: str, expected: str) -> None:
    has(*there)
    chosen = choose_precision("auto", CPU)
    assert chosen.name == name
    assert chosen.channels_last == (name == "bf16")
    assert chosen.why.startswith(f"precision auto: {name}")
    assert expected in chosen.why


@pytest.mark.parametrize("name", ["tf32", "bf16", "fp16"])
def test_what_the_device_lacks_is_said_and_fp32_is_used(lab, has, name: str) -> None:
    has()
    chosen = choose_precision(name, CPU)
    assert chosen.name == "fp32"
    assert f"no {name} arithmetic: training in fp32 instead" in chosen.why


def test_a_memory_layout_that_is_asked_for_is_taken(lab, has) -> None:
    has("bf16")
    for wanted in (True, False):
        assert choose_precision("bf16", CPU, channels_last=wanted).channels_last is wanted


def test_tf32_is_in_force_only_where_it_was_chosen(lab, has) -> None:
    has("tf32")
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    for name, precision, allowed in (("tf32", "high", True), ("fp32", "highest", False)):
        with choose_precision(name, CPU).in_force():
            assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == (precision, allowed)
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_fp16_scales_its_loss_reports_the_scale_and_resumes_exactly(lab, has) -> None:
    """PyTorch computes fp16 on any CPU, slowly where the CPU has none; its loss scaler is the one CUDA uses."""
    has("fp16")
    plan = lab.plan(precision="fp16", learning_rate=0.01, clip_norm=0.5)
    events = list(lab.events(plan))
    assert lab.every(events, Started)[0].precision == "fp16"
    points = lab.every(events, Points)
    scales = [point.values["step/loss_scale"] for point in points]
    assert scales[0] in (65536.0, 32768.0)  # the first may be passed over
    assert len(set(scales)) == 1
    norms = [point.values.get("step/gradient_norm", 0.0) for point in points]  # none where a step was passed over
    assert 0 < max(norms) < 1000  # unscaled before it is clipped
    _, end = lab.store(plan).newest()
    assert end.state["scaler"]["_growth_tracker"] in (11, 12)
    for step in (2, 7):
        lab.stop_at(step, plan, name=f"stopped at {step}")
        lab.assert_same(lab.run(plan, name=f"stopped at {step}").weights, events[-1].weights)
        _, again = lab.store(plan, f"stopped at {step}").newest()
        assert again.state == end.state


def test_an_overflow_halves_the_scale_and_skips_the_step(lab, has) -> None:
    """A loss so large that 65,536 times it is beyond fp16: such steps change nothing, and the run goes on."""
    has("fp16")
    lab.spec = lab.make_spec("tiny", classes=3)
    plan = lab.plan(precision="fp16", loss="mse", learning_rate=1e-3, optimizer="sgd", clip_norm=0.0)
    import ratchet.training.losses as losses

    whole = losses.Objective.__call__
    try:
        losses.Objective.__call__ = lambda self, logits, labels: whole(self, logits, labels) * 1e4
        points = lab.every(lab.events(plan), Points)
    finally:
        losses.Objective.__call__ = whole
    scales = [point.values["step/loss_scale"] for point in points]
    assert scales[0] == 32768.0
    assert scales == sorted(scales, reverse=True)
    assert len(points) == 12


def test_chosen_precision_is_reported_before_the_first_step(lab, has) -> None:
    has("bf16")
    events = list(lab.events(lab.plan(precision="auto")))
    assert isinstance(events[0], Notice)
    assert events[0].text.startswith("precision auto: bf16")
    assert lab.every(events, Started)[0].precision == "bf16"
