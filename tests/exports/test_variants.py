"""int8 variants are measured on the test samples, refused with figures, registered with checksums, and served."""

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ratchet import files
from ratchet.checksums import seal, verify
from ratchet.errors import RatchetError, RegistryError
from ratchet.evaluation.predictions import Predictions
from ratchet.evaluation.selective import abstention_of
from ratchet.exports import variants
from ratchet.exports.onnx_export import export
from ratchet.exports.parity import calibrations, judge, measure
from ratchet.exports.program import Program
from ratchet.exports.quantize import dynamic_int8, static_int8
from ratchet.exports.variants import FULL, Measured, Times, Variant
from ratchet.kinds import image_spec
from ratchet.kinds.protocol import InputError
from ratchet.problems.abstention import ABSTENTION
from ratchet.problems.labels import Labels
from ratchet.problems.novelty import NOVELTY, Novelty
from ratchet.problems.regions import CALIBRATION, Calibration, ClassSets
from ratchet.serving.versions.loaded import Identity, LoadedVersion
from ratchet.settings.model import EvaluationSettings, ExportSettings
from ratchet.training import build, load_model, save_model
from ratchet.typed_json import to_plain

SPEC = image_spec("convnet", ("ant", "bee", "cat"), 1, 8, 8, (120.0,), (60.0,))
ROWS = 96
PIXELS = np.random.default_rng(0).integers(0, 256, (ROWS, *SPEC.image.shape), dtype=np.uint8)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model, and data/variants of it: fp32, int8-static and int8-dynamic."""
    place = tmp_path_factory.mktemp("exported")
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        save_model(place / "model", build(SPEC).state_dict(), SPEC, about={"training": {}})
        for name in (FULL, *variants.VARIANTS):
            (place / "variants" / name).mkdir(parents=True)
        export(*load_model(place / "model"), place / "variants" / FULL)
    static_int8(program(place, FULL), place / "variants" / "int8-static", [(PIXELS,)])
    dynamic_int8(program(place, FULL), place / "variants" / "int8-dynamic")
    return place


def program(place: Path, name: str) -> Program:
    stored = Program.of(place / "variants" / name)
    assert isinstance(stored, Program)
    return stored


@pytest.fixture(scope="module")
def predictions(exported: Path) -> Predictions:
    """The model's own outputs; its answers count as the truth."""
    model, _ = load_model(exported / "model")
    with torch.inference_mode():
        outputs = model.eval()(torch.from_numpy(PIXELS).permute(0, 3, 1, 2)).numpy()
    return Predictions(outputs, outputs.argmax(1), tuple(map(str, range(ROWS))), SPEC.target)


def measured(exported: Path, predictions: Predictions, name: str) -> Measured:
    columns = {"half": ["first" if row < ROWS // 2 else "second" for row in range(ROWS)]}
    settings = EvaluationSettings(resamples=200)
    return measure(
        program(exported, name), program(exported, FULL), lambda rows: (PIXELS[rows],), predictions, columns, settings
    )


def test_a_sheet_has_the_differences_computed_directly(exported: Path, predictions: Predictions) -> None:
    sheet = measured(exported, predictions, "int8-static")
    computed = program(exported, "int8-static").predict((PIXELS,))
    expected = SPEC.target.predictions(predictions.outputs)
    right = computed.argmax(1) == predictions.targets
    assert sheet.rows == ROWS
    assert sheet.largest_difference == pytest.approx(np.abs(computed - expected).max(), abs=1e-6)
    assert 0 < sheet.largest_difference < 0.1
    assert sheet.value.value == pytest.approx(right.mean())
    assert sheet.difference.value == pytest.approx(right.mean() - 1.0)
    halves = [right[: ROWS // 2].mean() - 1.0, right[ROWS // 2 :].mean() - 1.0]
    assert [part.difference.value for part in sheet.slices] == pytest.approx(halves)
    assert sheet.size < sheet.full_size / 2
    assert sheet.independent


def test_dynamic_int8_is_refused_by_measurement(exported: Path, predictions: Predictions) -> None:
    sheet = measured(exported, predictions, "int8-dynamic")
    assert sheet.speedup.batch < 1.0
    slow, dependent = judge(sheet, ExportSettings(tolerance=0.9))
    assert "required 1.1 times (export.speedup)" in slow
    assert dependent == "an answer depends on the other samples of its batch"


def test_the_limits_of_speed_and_accuracy_decide(exported: Path, predictions: Predictions) -> None:
    sheet = replace(measured(exported, predictions, "int8-static"), full_times=Times(2.0, 3.0), times=Times(1.0, 1.0))
    assert judge(sheet, ExportSettings(speedup=2.0, tolerance=0.5)) == ()
    (reason,) = judge(sheet, ExportSettings(speedup=2.5, tolerance=0.5))
    assert reason.startswith("2.00 times as fast as fp32 on one sample and 3.00 times on 32, required 2.5 times")
    worse = replace(sheet.difference, low=-0.03, value=-0.01, high=0.01)
    slices = (replace(sheet.slices[0], difference=replace(worse, low=-0.6, value=-0.5, high=-0.4)),)
    assert judge(replace(sheet, difference=worse, slices=slices), ExportSettings(speedup=1.1)) == (
        "accuracy -1.00 points (CI -3.00 to +1.00), limit -0.20 (export.tolerance)",
        "accuracy -50.00 points (CI -60.00 to -40.00) where half is first, significantly worse than -0.20 "
        "(export.tolerance)",
    )


@pytest.fixture
def stored(exported: Path, predictions: Predictions, tmp_path: Path) -> Path:
    """A stored model whose int8-static passed and is twice as fast; int8-dynamic was refused."""
    sheet = replace(measured(exported, predictions, "int8-static"), full_times=Times(2.0, 2.0), times=Times(1.0, 1.0))
    sheets = Variant("int8-static", (), sheet), Variant("int8-dynamic", ("too slow",), sheet)
    variants.write(exported / "variants", sheets, model=exported / "model")
    place = tmp_path / "stored"
    save_model(place, load_model(exported / "model")[0].state_dict(), SPEC, about={"training": {}})
    variants.add_exported(exported / "variants", place)
    seal(place)
    return place


def loaded(folder: Path, variant: str) -> LoadedVersion:
    verify(folder)
    return LoadedVersion(Identity("insects", "3", "run", None), folder, variant=variant)


def test_each_variant_has_the_calibrations_of_its_own_answers(exported: Path, predictions: Predictions) -> None:
    def samples(rows: np.ndarray) -> tuple[np.ndarray]:
        return (PIXELS[rows],)

    targets = np.arange(ROWS) % SPEC.target.outputs
    stored = [
        calibrations(program(exported, name), samples, targets, SPEC.target, (samples, ROWS), 0.95)
        for name in (FULL, "int8-static")
    ]
    for each, name in zip(stored, (FULL, "int8-static"), strict=True):
        answers = program(exported, name).predict((PIXELS,))
        assert each[CALIBRATION] == Calibration.of(ClassSets.scores(answers, targets))
        assert each[ABSTENTION] == abstention_of(SPEC.target, answers, targets, 0.95)
        assert each[NOVELTY] == Novelty.of(answers)
    assert stored[0][CALIBRATION] != stored[1][CALIBRATION]


def test_a_variant_of_labels_computes_no_calibration(exported: Path) -> None:
    """Its answers have neither intervals nor thresholds."""
    rows = list[np.ndarray]()
    samples: Any = rows.append
    targets = np.zeros((ROWS, 2), np.float32)
    variant = program(exported, "int8-static")
    assert calibrations(variant, samples, targets, Labels(("red", "round")), (samples, ROWS), 0.95) == {}
    assert rows == []


def test_a_variant_without_calibration_does_not_use_that_of_fp32(stored: Path) -> None:
    files.write_json(stored / CALIBRATION, to_plain(Calibration.of(np.zeros((ROWS, 1)))))
    seal(stored)
    assert loaded(stored, "fp32").additions.read({"interval": 0.9}, "").interval == 90
    message = (
        r"^interval: insects version 3 \(int8-static\) was registered without .* Fix: serve the fp32 program, "
        "`ratchet set serving.variant=fp32`, train a new version, "
    )
    with pytest.raises(InputError, match=message):
        loaded(stored, "auto").additions.read({"interval": 0.9}, "")
    with pytest.raises(InputError, match=r"without thresholds for abstention\. Fix: train a new version, "):
        loaded(stored, "auto").additions.read({"abstain": 0.1}, "")


def test_auto_serves_the_fastest_that_passed(stored: Path) -> None:
    fast, full = loaded(stored, "auto"), loaded(stored, "fp32")
    assert (fast.identity.variant, full.identity.variant) == ("int8-static", "fp32")
    for version, name in ((fast, "variants/int8-static/model.onnx"), (full, "model.onnx")):
        expected = Program(stored / name, ("pixels",), threads=1).predict((PIXELS[:32],))
        assert version.predict((PIXELS[:32],)).tobytes() == expected.tobytes()
        assert version.predict((PIXELS[4:5],)).tobytes() == expected[4].tobytes()


def test_a_refused_variant_is_not_stored_and_named(stored: Path) -> None:
    assert set(verify(stored) or ()) >= {"variants/int8-static/model.onnx", "variants.json"}
    assert not (stored / "variants" / "int8-dynamic").exists()
    with pytest.raises(RegistryError) as caught:
        loaded(stored, "int8-dynamic")
    assert str(caught.value) == (
        "insects version 3: has no variant int8-dynamic. It has fp32, int8-static. It was refused: too slow. "
        "Fix: `ratchet set serving.variant=auto`"
    )


def test_a_damaged_variant_is_not_loaded(stored: Path) -> None:
    path = stored / "variants" / "int8-static" / "model.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(RatchetError, match=r"variants/int8-static/model\.onnx"):
        loaded(stored, "auto")


def test_a_version_without_variants_is_served_as_fp32(exported: Path, stored: Path) -> None:
    for path in (stored / "variants.json", stored / "checksums.json"):
        path.unlink()
    assert loaded(stored, "auto").identity.variant == FULL


def test_programs_of_another_model_are_refused(exported: Path, stored: Path) -> None:
    described = json.loads((stored / "model.json").read_text())
    (stored / "model.json").write_text(json.dumps({**described, "training": {"key": "another"}}))
    with pytest.raises(RegistryError, match="was made from another model"):
        variants.add_exported(exported / "variants", stored)


@pytest.fixture(autouse=True)
def allowed() -> Iterator[Any]:
    """Ignore the libraries' own deprecation warnings."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch|onnxscript|copyreg|onnxruntime")
        yield
