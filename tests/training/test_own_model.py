"""A user's own model: import, saved code, error messages; and pretrained weights from a file."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ratchet.errors import TrainingError
from ratchet.kinds import ModelSpec
from ratchet.training import Notice, build, find_pretrained, load_model, require, save_model
from ratchet.training.models import code_files, keep_code, load_pretrained

NET = """
from torch import nn

from ownnet.parts import hidden


class Net(nn.Module):
    def __init__(self, inside, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(inside, hidden()), nn.Tanh())
        self.head = nn.Linear(hidden(), classes)

    def forward(self, images):
        return self.head(self.body(images))


def net(*, classes, channels, height, width):
    return Net(channels * height * width, classes)
"""


@pytest.fixture
def own(lab: Any, tmp_path: Path) -> ModelSpec:
    """The spec of a model of two files, `ownnet/net.py` and `ownnet/parts.py`."""
    folder = tmp_path / "project" / "ownnet"
    folder.mkdir(parents=True)
    (folder / "net.py").write_text(NET)
    (folder / "parts.py").write_text("def hidden():\n    return 5\n")
    return replace(lab.make_spec(), factory="ownnet.net:net", code="ownnet", root=str(folder.parent))


def images(spec: ModelSpec) -> torch.Tensor:
    return torch.randint(0, 256, (4, spec.image.channels, spec.image.height, spec.image.width), dtype=torch.uint8)


def save(spec: ModelSpec, folder: Path) -> nn.Module:
    model = build(spec).eval()
    save_model(folder, model.state_dict(), spec, about={})
    return model


def test_a_saved_model_loads_without_its_project(own, tmp_path) -> None:
    """Its predictions are the same."""
    model = save(own, tmp_path / "model")
    shutil.rmtree(own.root)
    loaded, spec = load_model(tmp_path / "model")
    batch = images(own)
    assert torch.equal(loaded(batch), model(batch))
    assert spec.factory == own.factory
    assert own.root not in (tmp_path / "model" / "model.json").read_text()


def training_fault(lab: Any, own: ModelSpec, forward: str) -> str:
    """Train with this end of the network's forward, and return the error's message."""
    source = Path(own.root) / "ownnet" / "net.py"
    source.write_text(NET.replace("        return self.head(self.body(images))", forward))
    lab.spec = own
    with pytest.raises(TrainingError) as caught:
        lab.run(lab.plan())
    return str(caught.value)


def test_an_error_in_a_step_names_its_line(lab, own) -> None:
    """30 rows in steps of 8: the trial before training has one row, and the last step has 6."""
    fault = "        if len(images) == 6:\n            raise KeyError('odd batch')\n"
    message = training_fault(lab, own, fault + "        return self.head(self.body(images))")
    assert message == "ownnet/net.py, line 15, raised KeyError: 'odd batch'. Fix: correct it"
    (Path(own.root) / "ownnet" / "net.py").write_text(NET)
    lab.run(lab.plan(), name="fixed")


def test_layers_in_a_plain_list_are_refused_with_the_fix(own) -> None:
    """PyTorch does not see them as parameters."""
    source = Path(own.root) / "ownnet" / "net.py"
    listed = NET.replace("self.body =", "self.layers = [None, None]\n        self.layers[0] =")
    listed = listed.replace("self.head =", "self.layers[1] =").replace(
        "self.head(self.body(", "self.layers[1](self.layers[0]("
    )
    source.write_text(listed)
    with pytest.raises(TrainingError, match=r"ownnet.net:net has no parameters.* Fix: .* nn\.ModuleList"):
        build(own)
    fixed = listed.replace("[None, None]", "nn.ModuleList([nn.Identity(), nn.Identity()])")
    source.write_text(fixed)
    assert build(own).network.layers[1].out_features == 3


@pytest.mark.parametrize("persistent", [False, True])
def test_a_buffer_that_is_not_saved_is_named(lab, own, persistent: bool) -> None:
    """The saved model would answer otherwise than the one that was validated, and a resume would end otherwise."""
    head = "        self.head = nn.Linear(hidden(), classes)\n"
    buffer = f"        self.register_buffer('mean', torch.zeros(hidden()), persistent={persistent})\n"
    kept = "        hidden = self.body(images)\n        self.mean = 0.9 * self.mean + 0.1 * hidden.mean(0).detach()\n"
    source = NET.replace("from torch import nn", "import torch\nfrom torch import nn").replace(head, head + buffer)
    source = source.replace(
        "        return self.head(self.body(images))", f"{kept}        return self.head(hidden - self.mean)"
    )
    (Path(own.root) / "ownnet" / "net.py").write_text(source)
    lab.spec = own
    notices = [event.text for event in lab.events(lab.plan()) if isinstance(event, Notice)]
    named = [text for text in notices if "training changes mean of the network, which its state_dict lacks" in text]
    assert len(named) == (not persistent)


def test_a_buffer_that_is_cast_to_the_inputs_trains(lab, own) -> None:
    """Such as a table of angles that has the type of the activations, which is another one in training."""
    head = "        self.head = nn.Linear(hidden(), classes)\n"
    buffer = "        self.register_buffer('table', torch.full((2,), 0.1, dtype=torch.float64), persistent=False)\n"
    cast = "        if self.training:\n            self.table = self.table.to(images.dtype)\n"
    source = NET.replace("from torch import nn", "import torch\nfrom torch import nn").replace(head, head + buffer)
    source = source.replace("        return self.head(", f"{cast}        return self.table.sum() * self.head(")
    (Path(own.root) / "ownnet" / "net.py").write_text(source)
    lab.spec = own
    assert not [event for event in lab.events(lab.plan()) if isinstance(event, Notice) and "table" in event.text]


def test_a_tuple_in_training_mode_is_refused_before_a_step(lab, own) -> None:
    pair = "        logits = self.head(self.body(images))\n        return (logits, images) if self.training else logits"
    assert training_fault(lab, own, pair) == (
        "the model returns a tuple in training mode. Allowed: a tensor, as in eval mode: one logit per class. Fix: let "
        "forward return that alone"
    )


def test_two_models_of_one_name_each_run_their_own_code(own, tmp_path) -> None:
    """A champion and its challenger do this in one process, when the file was changed in between."""
    save(own, tmp_path / "first")
    Path(own.root, "ownnet", "parts.py").write_text("def hidden():\n    return 7\n")
    save(own, tmp_path / "second")
    for folder, hidden in (("first", 5), ("second", 7), ("first", 5)):
        assert load_model(tmp_path / folder)[0].network.head.in_features == hidden


def test_importing_leaves_neither_compiled_files_nor_a_longer_search_path(own) -> None:
    before = list(sys.path)
    build(own)
    assert sys.path == before
    assert sorted(path.name for path in Path(own.root, "ownnet").iterdir()) == ["net.py", "parts.py"]


def test_code_files_are_all_files_of_the_folder(own, lab) -> None:
    """A built-in model has none."""
    Path(own.root, "ownnet", "__pycache__").mkdir()
    Path(own.root, "ownnet", "__pycache__", "net.pyc").touch()
    Path(own.root, "ownnet", ".hidden").touch()
    assert list(code_files(own)) == [Path("ownnet/net.py"), Path("ownnet/parts.py")]
    assert not code_files(lab.make_spec("convnet"))


def test_what_was_kept_is_built_though_the_project_goes_on(own, tmp_path) -> None:
    kept = keep_code(own, tmp_path / "kept")
    Path(own.root, "ownnet", "net.py").write_text("what")
    assert kept.to_json() == own.to_json()
    assert build(kept).network.head.in_features == 5


def test_a_model_saved_before_there_were_factories_still_loads(lab, tmp_path) -> None:
    spec = lab.make_spec("convnet")
    save(spec, tmp_path)
    described = json.loads((tmp_path / "model.json").read_text())
    del described["spec"]["factory"], described["spec"]["code"]
    (tmp_path / "model.json").write_text(json.dumps(described))
    assert load_model(tmp_path)[1] == spec


@pytest.mark.parametrize(
    ("changes", "content", "expected"),
    [
        ({"factory": "ownnet.nets:net"}, NET, r"no module ownnet\.nets: .*ownnet/nets\.py .*project folder /"),
        ({"factory": "ownnet.net:make"}, NET, r"ownnet\.net has no function or class make\. Allowed: Net, net"),
        ({"factory": "json:net"}, NET, r"the name json is taken"),
        ({"factory": "torch.nn:Linear"}, NET, r"the name torch is taken"),
        ({"code": "src"}, NET, r"model\.code: src is not a file or folder in the project folder"),
        ({"code": ".."}, NET, r"model\.code: \.\. is not a file or folder in the project folder"),
        (
            {"code": "other.py"},
            NET,
            r"ownnet\.net \(ownnet/net\.py\) is outside model\.code \(other\.py\).*to ownnet",
        ),
        ({"code": "ownnet/net.py"}, NET, r"ownnet\.parts \(ownnet/parts\.py\) is outside model\.code .*to ownnet"),
        ({}, "import other\n" + NET, r"other \(other\.py\) is outside model\.code \(ownnet\)"),
        ({}, "import nowhere\n" + NET, r"does not import \(ModuleNotFoundError: .*nowhere.*correct .*ownnet/net\.py"),
        ({}, "def net(:", r"ownnet\.net does not import \(SyntaxError"),
        ({}, NET.replace("return Net(", "return net.missing("), r"ownnet\.net:net raised AttributeError: .*classes=3"),
        ({}, NET.replace("(*, classes", "(*, labels"), r"ownnet\.net:net raised TypeError: .*classes"),
        ({}, NET.replace("return Net(", "return str("), r"raised TypeError|returned a str, not an nn\.Module"),
        ({}, NET.replace("height * width, classes", "height, classes"), r"cannot take 8 x 8 x 1 pixels"),
        ({}, NET.replace("width, classes)", "width, 9)"), r"returns shape \(1, 9\) for one sample.*\(1, 3\)"),
        ({}, NET.replace("return self.head(", "return 3, self.head("), r"returns a tuple for one sample"),
    ],
)
def test_a_wrong_model_is_reported_in_one_line(own, changes, content: str, expected: str) -> None:
    Path(own.root, "ownnet", "net.py").write_text(content)
    Path(own.root, "other.py").write_text("")
    for _ in range(2):  # the second time too, when modules of the first are there
        with pytest.raises(TrainingError, match=expected) as caught:
            build(replace(own, **changes))
        assert "\n" not in str(caught.value)
        assert re.match(r"model\.(factory|code): ", str(caught.value))


def test_a_missing_factory_is_refused(own) -> None:
    with pytest.raises(TrainingError, match="no module gone"):
        require("convnet", factory="gone:net", code=own.code, root=own.root)
    require("of no model", factory=own.factory, code=own.code, root=own.root)


def write(weights: dict[str, Any], path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file(weights, path)
    else:
        torch.save(weights, path)
    return path


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("prefix", ["", "module.", "network.", "model._orig_mod."])
def test_weights_are_found_whatever_their_names_begin_with(lab, tmp_path, suffix: str, prefix: str) -> None:
    source, model = (build(lab.make_spec("resnet", channels=3)) for _ in range(2))
    weights = {prefix + name: tensor for name, tensor in source.network.state_dict().items()}
    report = load_pretrained(model, write(weights, tmp_path / f"weights{suffix}"))
    lab.assert_same(model.network.state_dict(), source.network.state_dict())
    assert (report.missing, report.misshaped, report.unexpected) == ((), (), ())


def test_pretrained_weights_from_a_training_checkpoint(lab, tmp_path) -> None:
    """The optimizer state in it is ignored."""
    source, model = (build(lab.make_spec("resnet", channels=3)) for _ in range(2))
    optimizer = torch.optim.AdamW(source.network.parameters())
    source.network(torch.zeros(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    content = {"epoch": 3, "optimizer": optimizer.state_dict(), "state_dict": source.network.state_dict()}
    load_pretrained(model, write(content, tmp_path / "checkpoint.pth"))
    lab.assert_same(model.network.state_dict(), source.network.state_dict())


def test_pretrained_weights_from_a_saved_model(lab, tmp_path) -> None:
    """The scaling of its data is ignored."""
    spec = lab.make_spec("resnet", channels=3)
    source = save(replace(spec, input=replace(spec.image, mean=(1.0,) * 3)), tmp_path)
    model = build(spec)
    load_pretrained(model, tmp_path / "model.safetensors")
    lab.assert_same(model.network.state_dict(), source.network.state_dict())
    assert model.mean.flatten().tolist() == list(spec.image.mean)


def test_a_grey_net_loads_weights_for_colour(lab, tmp_path) -> None:
    source, model = (build(lab.make_spec("resnet18", size=32, channels=channels)) for channels in (3, 1))
    report = load_pretrained(model, write(source.network.state_dict(), tmp_path / "resnet18.pth"))
    lab.assert_same(model.network[1].state_dict(), source.network.state_dict())
    assert not report.missing


def test_a_head_for_other_classes_is_not_loaded(lab, tmp_path) -> None:
    """Every other difference is reported."""
    source, model = (build(lab.make_spec("resnet", channels=3, classes=classes)) for classes in (10, 3))
    fresh = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    weights = {f"module.{name}": tensor for name, tensor in source.network.state_dict().items()}
    del weights["module.stem.0.weight"], weights["module.stem.1.num_batches_tracked"]
    weights["module.extra.weight"] = torch.zeros(2)
    report = load_pretrained(model, write(weights, tmp_path / "ten.pt"))
    assert report.misshaped == ("head.weight", "head.bias")
    assert report.missing == ("stem.0.weight",)
    assert report.unexpected == ("module.extra.weight",)
    kept = model.network.state_dict()
    assert all(torch.equal(kept[name], fresh[name]) for name in (*report.misshaped, *report.missing))
    assert all(torch.equal(kept[name], source.network.state_dict()[name]) for name in report.fitting)
    loaded = f"{len(kept) - 4} of the network's {len(kept) - 1} tensors"
    for expected in ("of ten.pt", loaded, "head.weight, head.bias", "stem.0.weight", "module.extra.weight"):
        assert expected in report.summary


def test_a_file_of_another_network_is_refused(lab, tmp_path) -> None:
    path = write({"encoder.weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(TrainingError, match=r"0 of the network's \d+ tensors fit.*stem\.0\.weight.*encoder\.weight"):
        load_pretrained(build(lab.make_spec("resnet")), path)
    model = build(lab.make_spec("resnet"))
    fresh = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    wider = {name: torch.cat([tensor, tensor]) for name, tensor in fresh.items() if tensor.dim()}
    with pytest.raises(TrainingError, match=r"Only the head is expected to differ.*the same network in another size"):
        load_pretrained(model, write(wider, tmp_path / "wider.safetensors"))
    lab.assert_same(model.network.state_dict(), fresh)


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path(sys.argv[0]).parent / "sprung",))


@pytest.mark.parametrize("damage", ["code inside", "half a file", "text"])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_pickle_with_code_is_refused(lab, tmp_path, monkeypatch, damage, suffix):
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "program")])
    path = write({"stem.0.weight": torch.zeros(64, 1, 3, 3)}, tmp_path / f"weights{suffix}")
    if damage == "code inside":
        torch.save({"stem.0.weight": Trap()}, path)
    elif damage == "half a file":
        path.write_bytes(path.read_bytes()[:150])
    else:
        path.write_text("weights")
    with pytest.raises(TrainingError, match=rf"weights\{suffix} is not a state dict") as caught:
        load_pretrained(build(lab.make_spec("resnet")), path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "sprung").exists()


def test_pretrained_weights_are_looked_for_in_their_folder_alone(tmp_path) -> None:
    """A file that is not a state dict is an error, and its code never runs."""
    folder = tmp_path / "pretrained"
    folder.mkdir()
    save_file({"a": torch.zeros(1)}, folder / "there.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "outside.safetensors")
    assert find_pretrained(folder, "none") is None
    assert find_pretrained(folder, "there.safetensors") == folder / "there.safetensors"
    for name in ("gone.pt", "../outside.safetensors"):
        with pytest.raises(TrainingError, match=rf"no file {name} in .*Existing: there\.safetensors"):
            find_pretrained(folder, name)
