"""A user's own augmentation: called with whole batches, part of the code that decides, its errors named."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ratchet.errors import TrainingError
from ratchet.settings.model import Params
from ratchet.training import ImageSplit
from ratchet.training.transforms import Augmentation
from tasks.code import own_code
from tests.training.conftest import Lab, make_plan

CPU = torch.device("cpu")
INVERT = """
class Invert:
    def __call__(self, images, numbers):
        return images.where((numbers % 2 == 0)[:, None, None, None], 255 - images)
"""


def batch(root: Path, code: str, *, name: str = "own.images:Invert") -> tuple[torch.Tensor, ImageSplit]:
    """Return 30 images as the class in `code` changes them."""
    (root / "own").mkdir(exist_ok=True)
    (root / "own" / "images.py").write_text(code)
    split = Lab.split("train", 30)
    plan = replace(make_plan(augment=({"flip": 0.5}, name)), own_code=(str(root), "own"))
    (images,), _ = split.batch(np.arange(30), CPU, plan=plan, epoch=1)
    return images, split


def test_an_own_class_changes_images_by_their_numbers(tmp_path: Path) -> None:
    images, split = batch(tmp_path, INVERT)
    (plain,), _ = split.batch(np.arange(30), CPU, plan=make_plan(augment=({"flip": 0.5},)), epoch=1)
    inverted = [torch.equal(image, 255 - before) for image, before in zip(images, plain, strict=True)]
    assert 5 < sum(inverted) < 25
    assert all(torch.equal(images[row], plain[row]) for row in range(30) if not inverted[row])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (INVERT.replace("255 - images", "255 - pixels"), r"raised NameError: .*pixels.*\(images.py, line 4\)"),
        (INVERT.replace("return images", "return images[:, 1:]"), r"own.images:Invert raised RuntimeError"),
        ("class Invert:\n    def __call__(self, images, numbers):\n        return images.float()\n",
         r"returned torch.float32 \[30, 8, 8, 1\] on cpu. Allowed: a tensor, torch.uint8 \[30, 8, 8, 1\] on cpu"),
        (INVERT.replace("return images", "return images.to('meta') #"), r"returned torch.uint8 .* on meta. Allowed"),
        (INVERT.replace("return", "return images.float().norm(dim=99) #"), r"IndexError: .* \(images.py, line 4\)"),
        ("class Invert:\n    def __call__(self, images, numbers):\n        pass\n", "returned NoneType"),
        ("class Invert:\n    def __init__(self, share):\n        pass\n", "raised TypeError: .*share'. Fix"),
        ("class Other:\n    pass\n", "has no function or class Invert. Allowed: Other"),
        ("import nothing_here\n", r"own.images does not import \(ModuleNotFoundError"),
    ],
)  # fmt: skip
def test_an_error_of_an_own_class_is_named(tmp_path: Path, code: str, message: str) -> None:
    with pytest.raises(TrainingError, match=f"training.augment: .*{message}"):
        batch(tmp_path, code)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("images.flip(2) if torch.rand(()) < 0.5 else images", "draws random numbers"),
        ("images + random.randint(0, 3)", "draws random numbers"),
        ("images + numpy.random.randint(0, 3)", "draws random numbers"),
        ("images.flip(0)", "gives an image another result in a batch than alone"),
        ("images[:, :1]", r"returned torch.uint8 \[4, 1, 6, 3\]"),
        ("images + self.calls", "or at the next call"),
        ("images + (numbers % 3)[:, None, None, None].to(torch.uint8)", ""),
        ("images + torch.randint(3, (1,), generator=torch.Generator().manual_seed(1)).to(torch.uint8)", ""),
    ],
)
def test_an_own_class_may_depend_on_image_and_number(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "tried.py").write_text(
        "import random, numpy, torch\nclass Tried:\n    calls = 0\n    def __call__(self, images, numbers):\n"
        f"        self.calls += 4\n        return {line}\n"
    )
    plan = replace(make_plan(augment=("tried:Tried",)), own_code=(str(tmp_path), "tried.py"))
    (own,) = Augmentation(plan).own
    allowed = pytest.raises(TrainingError, match=f"^training.augment: tried:Tried .*{message}")
    with allowed if message else nullcontext():
        own.check((5, 6, 3))


def test_numbers_that_a_thread_draws_refuse_no_own_class(tmp_path: Path) -> None:
    """Prefect's connections draw some every 20 seconds. Here they come while the first object is tried."""
    (tmp_path / "tried.py").write_text(
        "import random\nobjects = []\nclass Tried:\n    def __init__(self):\n        objects.append(self)\n"
        "    def __call__(self, images, numbers):\n        if self is objects[0]:\n            random.random()\n"
        "        return images\n"
    )
    plan = replace(make_plan(augment=("tried:Tried",)), own_code=(str(tmp_path), "tried.py"))
    (own,) = Augmentation(plan).own
    own.check((5, 6, 3))


def test_numbers_that_an_own_class_draws_change_no_step(lab: Lab, tmp_path: Path) -> None:
    """Its object is made before the first step, and with the same numbers when a training is resumed."""
    (tmp_path / "drawn.py").write_text(
        "import torch\nclass Drawn:\n    def __init__(self):\n        self.most = 255 * torch.rand(())\n"
        "    def __call__(self, images, numbers):\n        return images.clamp(max=int(self.most))\n"
    )
    plan = lab.plan(flip="none", augment=("drawn:Drawn",), own_code=(str(tmp_path), "drawn.py"))
    expected = lab.run(plan, name="whole")
    lab.stop_at(5, replace(plan), name="stopped")
    lab.assert_same(lab.run(replace(plan), name="stopped").weights, expected.weights)


def test_lack_of_memory_in_an_own_class_is_no_fault(tmp_path: Path) -> None:
    """Training goes on in smaller micro-batches."""
    with pytest.raises(MemoryError, match="too large"):
        batch(tmp_path, INVERT.replace("return images", "raise MemoryError('too large')  #"))


def test_an_own_class_outside_of_the_tracked_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(INVERT)
    with pytest.raises(TrainingError, match=r"outside model.code .own.*Fix: set model.code to other.py"):
        batch(tmp_path, INVERT, name="other:Invert")


def test_the_code_of_an_own_class_decides_the_training(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    params = Params.model_validate({"model": {"code": "own"}, "training": {"augment": ["own.images:Invert"]}})
    assert own_code(params, tmp_path, "train") == [tmp_path / "own"]
    assert own_code(params, tmp_path, "ingest") == []
