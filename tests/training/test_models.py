"""The models: parameter counts of the reference, sizes they take, and that what is saved is what is loaded."""

import json

import pytest
import torch
from torch import nn

from ratchet.errors import TrainingError
from ratchet.training import build, load_model, predict_outputs, save_model


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_reference_convnet_has_its_published_parameter_count(lab) -> None:
    assert parameters(build(lab.make_spec("convnet", size=32, channels=3, classes=10))) == 1_147_914


@pytest.mark.parametrize("name", ["convnet", "resnet", "fastnet"])
@pytest.mark.parametrize("size", [8, 28, 32, 64, 224])
@pytest.mark.parametrize("channels", [1, 3])
def test_own_models_take_any_size_and_learn_in_every_layer(lab, name: str, size: int, channels: int) -> None:
    model = build(lab.make_spec(name, size=size, channels=channels, classes=7))
    logits = model(torch.randint(0, 256, (2, channels, size, size), dtype=torch.uint8))
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_pooling_before_relu_is_relu_before_pooling(lab) -> None:
    """The order that the reference net is described in, with the same weights, in eval and in train mode."""
    model = build(lab.make_spec("convnet", size=32, channels=3, classes=10)).network.eval()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.weight)  # negative scales too
            nn.init.normal_(layer.running_mean)
    layers = list(model.features)
    described = [layers[block * 4 + place] for block in range(3) for place in (0, 1, 3, 2)]
    assert [type(layer) for layer in described[2:4]] == [nn.ReLU, nn.MaxPool2d]
    images = torch.randn(4, 3, 32, 32)
    assert torch.equal(nn.Sequential(*described)(images), model.features(images))
    model.features.train()
    assert torch.equal(nn.Sequential(*described)(images), model.features(images))


def test_residual_net_is_a_stem_and_three_blocks_of_64(lab) -> None:
    convolutions = 3 * 64 * 9 + 6 * 64 * 64 * 9
    norms, head = 7 * 2 * 64, 64 * 10 + 10
    assert parameters(build(lab.make_spec("resnet", size=32, channels=3, classes=10))) == convolutions + norms + head


@pytest.mark.parametrize("channels", [1, 3])
def test_a_torchvision_model_is_built_by_name(lab, channels: int) -> None:
    """For colour and for grey images."""
    model = build(lab.make_spec("mobilenet_v3_small", size=32, channels=channels, classes=5)).eval()
    assert model(torch.zeros(2, channels, 32, 32, dtype=torch.uint8)).shape == (2, 5)


def test_a_model_too_deep_for_the_images_is_refused(lab) -> None:
    """The message has a fix."""
    with pytest.raises(TrainingError, match=r"alexnet cannot take 8 x 8 x 3 pixels.*larger data\.image_size"):
        build(lab.make_spec("alexnet", channels=3))


def test_a_loaded_model_has_the_same_predictions(lab, tmp_path) -> None:
    """Loading does not change the random state."""
    spec = lab.make_spec("convnet", channels=3)
    model = build(spec).eval()
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    save_model(tmp_path, model.state_dict(), spec, about={"training": {"steps": 3}})
    before = torch.get_rng_state()
    loaded, loaded_spec = load_model(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert loaded_spec == spec
    assert not loaded.training
    lab.assert_same(loaded.state_dict(), model.state_dict())
    assert torch.equal(loaded(images), model(images))
    assert json.loads((tmp_path / "model.json").read_text())["training"] == {"steps": 3}


def test_saved_bytes_do_not_depend_on_memory_layout(lab, tmp_path) -> None:
    spec = lab.make_spec("convnet")
    model = build(spec)
    save_model(tmp_path / "a", model.state_dict(), spec, about={})
    save_model(tmp_path / "b", model.to(memory_format=torch.channels_last).state_dict(), spec, about={})
    item, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert item == other


@pytest.mark.parametrize("damage", ["no weights", "half the weights", "other weights", "no description"])
def test_a_damaged_model_folder_is_named(lab, tmp_path, damage: str) -> None:
    spec = lab.make_spec("convnet")
    save_model(tmp_path, build(spec).state_dict(), spec, about={})
    weights = tmp_path / "model.safetensors"
    if damage == "no weights":
        weights.unlink()
    elif damage == "half the weights":
        weights.write_bytes(weights.read_bytes()[:5000])
    elif damage == "other weights":
        save_model(tmp_path / "other", build(lab.make_spec("convnet", classes=4)).state_dict(), spec, about={})
        weights.write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    else:
        (tmp_path / "model.json").write_text("{}")
    with pytest.raises(TrainingError, match=str(tmp_path)):
        load_model(tmp_path)


def test_temperature_applies_only_in_eval_mode(lab) -> None:
    """The scaling of pixels is part of the model."""
    model = build(lab.make_spec("convnet")).eval()
    images = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(model(images), model.network((images.float() - 120.0) / 60.0))
    cold = model(images)
    model.temperature.fill_(2.0)
    assert torch.equal(model(images), cold / 2.0)


def test_predicted_logits_are_those_of_the_model_row_by_row(lab) -> None:
    split = lab.split("test", 700, shards=2)  # more than one of predict's batches
    model = build(lab.spec)
    reported: list[int] = []
    logits = predict_outputs(model, split, report=reported.append)
    assert logits.shape == (700, 3)
    assert reported[-1] == 700
    with torch.no_grad():
        images = torch.from_numpy(split.images(torch.arange(695, 700).numpy())).permute(0, 3, 1, 2)
        torch.testing.assert_close(torch.from_numpy(logits[695:]), model(images))
