"""The list `training.augment` in params.yaml: each refusal names the entry, what is allowed and a fix that works."""

import re
import shlex
from pathlib import Path

import pytest

from ratchet import files, settings
from ratchet.augmentations import MIXING, TRANSFORMS, entries
from ratchet.errors import SettingsError
from ratchet.settings.model import Params

ALL = [{name: transform.example} for name, transform in TRANSFORMS.items()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "params.yaml"
    path.write_text(settings.template(), encoding="utf-8")
    return path


def refused(file: Path, *assignments: str) -> str:
    before = file.read_bytes()
    with pytest.raises(SettingsError) as caught:
        settings.override(file, settings.parse_assignments(list(assignments)))
    assert file.read_bytes() == before
    return str(caught.value)


def test_every_example_is_accepted_and_read_back(file: Path) -> None:
    listed = [*ALL[:-2], "own.images:Invert", *ALL[-2:]]
    params = settings.override(file, {"training.augment": listed})
    assert files.read_yaml(file)["training"]["augment"] == listed
    assert [name for name, _ in entries(params.training)] == [*[*TRANSFORMS][:-2], "own", *MIXING]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("[{rotat: 15}]", "entry 1 is {rotat: 15}, and there is no rotat. Allowed: flip, .*Did you mean {rotate: 15}"),
        ("[{flip: 0.5}, {rotate: 200}]", "entry 2 is {rotate: 200}. Allowed: the largest angle .* at most 180, such"),
        ("[{rotate: .nan}]", "entry 1 is {rotate: NaN}. Allowed: the largest angle"),
        ("[{rotate: true}]", "entry 1 is {rotate: true}. Allowed: the largest angle"),
        ("[{rotate: '15'}]", "Allowed: the largest angle in degrees"),
        ("[{rotate: }]", "entry 1 is {rotate: null}. Allowed: the largest angle"),
        ("[{flip: 0}]", "entry 1 is {flip: 0}. Allowed: the share of images"),
        ("[{flip: random}]", "Allowed: the share of images that is mirrored .* or alternating"),
        ("[rotate]", "entry 1 is rotate, which has no value. Fix: write {rotate: 15}"),
        ("[Color_Jitter]", "Did you mean {color-jitter: 0.2}"),
        ("[{random-resized-crop: [1, 0.3]}]", "Allowed: .SMALLEST, LARGEST. share of the area"),
        ("[{random-resized-crop: 0.3}]", "Allowed: .SMALLEST, LARGEST. share of the area"),
        ("[{shift: [4, black]}]", "Allowed: the most pixels"),
        ("[{shift: 2.5}]", "Allowed: the most pixels"),
        ("[{rotate: 15, flip: 0.5}]", "Allowed: one {NAME: VALUE} for each entry"),
        ("[{}]", "Allowed: one {NAME: VALUE} for each entry"),
        ("{rotate: 15}", "Allowed: auto or a list"),
        ("rotate", "Allowed: auto or a list"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_named_with_allowed_values(file: Path, listed: str, message: str) -> None:
    text = refused(file, f"training.augment={listed}")
    assert text.startswith("params.yaml: training.augment: ")
    assert re.search(message, text), text


def test_mixing_comes_last_and_only_once(file: Path) -> None:
    text = refused(file, "training.augment=[{mixup: 0.2}, {rotate: 15}, {cutmix: 1.0}]")
    assert "mixup is before others. Allowed: at the end of the list" in text
    assert [name for name, _ in entries(fix(file, text).training)] == ["rotate", "mixup", "cutmix"]
    assert "mixup is in the list twice" in refused(file, "training.augment=[{mixup: 0.2}, {mixup: 0.1}]")
    assert "cutmix is in the list twice" in refused(file, "training.augment=[{mixup: 0.2}, {cutmix: 1}, {cutmix: 1}]")


def test_mixing_and_class_weights_exclude_each_other(file: Path) -> None:
    settings.override(file, {"training.class_weights": "balanced"})
    text = refused(file, "training.augment=[{rotate: 15}, {cutmix: 1}]")
    assert "training.class_weights: found balanced, and training.augment has cutmix" in text
    assert entries(fix(file, text).training) == (("rotate", 15),)


def test_a_list_with_another_kind_is_refused(file: Path) -> None:
    text = refused(file, "training.augment=[{rotate: 15}]", "data.kind=table")
    assert "Allowed: a list only with data.kind image, and it is table" in text
    fix(file, text, "data.kind=table")


@pytest.mark.parametrize(
    ("older", "listed"),
    [
        (["training.flip=random", "training.crop_padding=4"], [("shift", 4), ("flip", 0.5), ("rotate", 15)]),
        (["training.flip=alternating"], [("flip", "alternating"), ("rotate", 15)]),
        (
            ["training.cutout=8", "training.crop_fill=reflect"],
            [("shift", [1, "reflect"]), ("cutout", 8), ("rotate", 15)],
        ),
    ],
)
def test_older_settings_beside_a_list_get_the_new_line(file: Path, older: list[str], listed: list[object]) -> None:
    settings.override(file, settings.parse_assignments(older))
    text = refused(file, "training.augment=[{rotate: 15}]")
    assert older[0].replace("=", ": found ").split(":")[0] in text
    params = fix(file, text)
    assert list(entries(params.training)) == listed


def test_a_wrong_list_in_a_search_is_refused(file: Path) -> None:
    text = refused(file, "search.space={training.augment: {choice: [[{rotate: 15}], [{rotat: 15}]]}}")
    assert text.startswith("params.yaml: search.space: training.augment: entry 1 is {rotat: 15}, and there is no rotat")
    settings.override(file, {"search.space": {"training.augment": {"choice": [[{"rotate": 15}], "auto"]}}})


def test_values_in_a_search_that_a_list_excludes_are_refused(file: Path) -> None:
    """With a condition that the setting has no list, they are allowed."""
    settings.override(file, {"training.augment": [{"rotate": 15}]})
    text = refused(file, "search.space={training.flip: {choice: [none, random]}}")
    assert text.startswith("params.yaml: search.space: training.flip: found random, and training.augment is a list")
    assert "\n" not in text
    free = {"choice": ["none", "random"], "when": {"training.augment": "auto"}}
    lists = {"choice": ["auto", [{"rotate": 15}]]}
    settings.override(file, {"search.space": {"training.flip": free, "training.augment": lists}})


def test_a_wrong_list_has_one_message_beside_a_search(file: Path) -> None:
    space = "search.space={training.batch_size: {choice: [32, 64]}}"
    assert refused(file, "training.augment=[{rotat: 15}]", space).count("there is no rotat") == 1


def test_the_older_default_shift_needs_no_change(file: Path) -> None:
    params = settings.override(file, {"training.augment": [{"rotate": 15}], "training.crop_padding": 0})
    assert entries(params.training) == (("rotate", 15),)
    assert entries(settings.override(file, {"training.crop_padding": 1}).training) == (("rotate", 15),)


def fix(file: Path, message: str, *others: str) -> Params:
    """Run the last command that the message proposes."""
    command = re.findall(r"`ratchet set ([^`]*)`", message)[-1]
    return settings.override(file, settings.parse_assignments([*shlex.split(command), *others]))
