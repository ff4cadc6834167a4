"""The settings file: allowed values, error messages and changes.

DVC's own reader is the reference for YAML: both must read the same values from the same file.
"""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from ratchet import files, settings
from ratchet.errors import SettingsError
from ratchet.settings import messages as settings_errors
from ratchet.settings import source_names
from ratchet.settings.model import GateSettings, Overrides, Params, RegistrySettings, ServingSettings, TrainingSettings
from ratchet.training import Plan

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "params.yaml"
    path.write_text(settings.template(), encoding="utf-8")
    return path


@pytest.fixture
def full(file: Path) -> Path:
    """Return a file with every setting, each on a line of its own."""
    shipped = settings.dotted(files.read_yaml(file))
    settings.override(file, {key: value for key, value in settings.flatten(Params()).items() if key not in shipped})
    return file


def change(file: Path, old: str, new: str) -> Path:
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
    file.write_text(text.replace(old, new), encoding="utf-8")
    return file


def refusal(file: Path) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        settings.load(file)
    return str(caught.value).splitlines()


def meaning(name: str) -> str:
    """Return the description of a training setting."""
    return str(TrainingSettings.model_fields[name].description)


def test_the_shipped_file_equals_the_template() -> None:
    assert (REPOSITORY / "params.yaml").read_text(encoding="utf-8") == settings.template()


def test_the_template_has_the_defaults(file: Path) -> None:
    assert settings.load(file) == Params()


def test_the_shipped_file_is_short() -> None:
    assert len(settings.template().splitlines()) <= 90


def test_added_settings_are_in_their_sections_in_order(file: Path) -> None:
    settings.override(file, {"platform.host": "::1", "data.drop": ["a"], "training.ema_decay": 0.5, "data.folds": 3})
    text = file.read_text(encoding="utf-8")
    assert (
        "  test_fraction: 0.15  # share of samples for testing, if the data have no split (default: 0.15)\n  folds: 3"
        in text
    )
    added = [line for line in text.splitlines() if line not in settings.template().splitlines()]
    assert [line.partition("  # ")[0] for line in added] == [
        "  drop: [a]",
        "  folds: 3",
        "  ema_decay: 0.5",
        "platform:",
        "  host: ::1",
    ]
    assert "(default: 0.0)" in added[2]


def test_a_key_that_is_assigned_twice_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"training\.epochs: is assigned twice"):
        settings.parse_assignments(["training.epochs=3", "seed=1", " training.epochs =4"])


@pytest.mark.parametrize(
    "text", ["seed: 1", "data: {path: x, code: y}", "data:\r\n    path: x # mine\r\n    # end\r\n\r\nmodel: {}\r\n"]
)
def test_settings_are_added_to_files_of_any_form(tmp_path: Path, text: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(text.encode())
    needed = {"data.path": "p", "data.code": "c", "model.code": "m"}
    params = settings.override(
        path, {**needed, "data.drop": ["a, b"], "budget.cpu_hours": 2.0, "budget.gpu_hours": 1.0}
    )
    assert settings.load(path) == params
    assert (params.data.drop, params.budget.cpu_hours, params.budget.gpu_hours) == (("a, b",), 2.0, 1.0)
    assert params.seed == int("seed" in text)


HEAD = "model:\n  code: m\ndata:\n  path: p\n  code: c\n"


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ("  drop:  # mine\n    - a\n    - b  # b\n\n  # end\n  folds: 0\n", ["data.drop=[c]"],
         "  drop: [c]  # mine  # b\n\n  # end\n  folds: 0\n"),
        ("  label_column:\n  - a\n  - b\n  fold: 0\n", ["data.label_column=price"],
         "  label_column: price\n  fold: 0\n"),
        ("  columns:\n    a: id\n\n# search\nsearch:\n  space:\n    training.epochs:\n      choice: [1]\n  trials: 2\n",
         ["data.columns={}", "search.space={}"],
         "  columns: {}\n\n# search\nsearch:\n  space: {}\n  trials: 2\n"),
        ("training:\n  epochs:\n  # mine\n  batch_size: 3\n  patience:  # no\n",
         ["training.epochs=3", "training.patience=1"],
         "training:\n  epochs: 3\n  # mine\n  batch_size: 3\n  patience: 1  # no\n"),
        ("  manifest: |\n    a\n    b\n\n  # end\n  fold: 0\n", ["data.manifest=x"],
         "  manifest: x\n\n  # end\n  fold: 0\n"),
    ],
)  # fmt: skip
def test_a_value_of_any_form_is_replaced(tmp_path: Path, before: str, changes: list[str], after: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(HEAD + before)
    settings.override(path, settings.parse_assignments(changes))
    assert path.read_text() == HEAD + after


def test_a_setting_is_added_above_the_comment_after_a_list(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(f"{HEAD}  drop:\n    - a\n\n# of training\ntraining:\n  epochs: 3\n")
    settings.override(path, {"data.folds": 4})
    added = path.read_text().splitlines()[7]
    assert added.startswith("  folds: 4  # ")
    assert path.read_text() == f"{HEAD}  drop:\n    - a\n{added}\n\n# of training\ntraining:\n  epochs: 3\n"


def test_a_change_that_would_change_another_setting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(f"{HEAD}  drop: &same [a]\n  formats: *same\n")
    with pytest.raises(SettingsError, match=r"data\.formats cannot be replaced .* without anchors\. Fix: "):
        settings.override(path, {"data.formats": ["png"]})


@pytest.mark.parametrize("heading", ["budget:  # mine", "budget: null  # mine"])
def test_a_section_may_lose_all_its_lines(tmp_path: Path, heading: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(f"{heading}\n{HEAD}")
    assert settings.load(path).budget == Params().budget
    settings.override(path, {"budget.wall_hours": 3.0, "budget.gpu_hours": 2.0})
    lines = [line.partition("#")[0].rstrip() for line in path.read_text().removesuffix(HEAD).splitlines()]
    assert lines == ["budget:", "  wall_hours: 3.0", "  gpu_hours: 2.0"]


def test_no_section_is_added_within_braces(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("{data: {path: x, code: y}, model: {code: z}}")
    assert settings.override(path, {"seed": 7, "data.folds": 2}).seed == 7
    before = path.read_text()
    with pytest.raises(SettingsError, match="to which the section training cannot be added"):
        settings.override(path, {"training.epochs": 3})
    assert path.read_text() == before


def test_paths_that_dvc_yaml_refers_to_are_required(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("model: {}\n")
    assert [line.partition(". Fix")[0] for line in refusal(path)] == [
        f"params.yaml: {key}: missing" for key in ("data.path", "data.code", "model.code")
    ]


def test_dvc_reads_the_same_values(full: Path) -> None:
    from dvc.utils.serialize import load_yaml

    file = full
    change(file, "learning_rate: 2.0e-3", "learning_rate: 1e-3")
    change(file, "weight_decay: 1.0e-4", "weight_decay: .5")
    change(file, "experiment: ratchet", "experiment: on")
    seen = load_yaml(str(file))
    assert seen == settings.load(file).model_dump(mode="json")
    assert (seen["training"]["learning_rate"], seen["tracking"]["experiment"]) == (0.001, "on")


def test_the_plan_has_the_training_settings_without_defaults() -> None:
    """Those with a value there are constants."""
    names = [field.name for field in dataclasses.fields(Plan) if field.default is dataclasses.MISSING]
    assert sorted(names) == sorted(["seed", *TrainingSettings.model_fields])


def test_an_unquoted_exponent_is_a_number(file: Path) -> None:
    change(file, "learning_rate: 2.0e-3", "learning_rate: 1e-3")
    assert settings.load(file).training.learning_rate == 1e-3


@pytest.mark.parametrize("seed", [2**64, 10**30, -1])
def test_a_seed_beyond_64_bits_is_refused(file: Path, seed: int) -> None:
    assert settings.load(change(file, "\nseed: 0  #", f"\nseed: {2**64 - 1}  #")).seed == 2**64 - 1
    assert refusal(change(file, f"seed: {2**64 - 1}  #", f"seed: {seed}  #"))[-1].endswith(
        f"seed: found {seed}. Allowed: a whole number, at least 0 and at most 18446744073709551615 "
        "(seed of sample order, augmentation and initial weights, not of the splits)"
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "learning_rate: 2.0e-3",
            'learning_rate: "1e-3"',
            "training.learning_rate: found the text '1e-3', not a number. Allowed: a finite number, above 0.0 and at "
            "most 100.0 (highest learning rate). Fix: write it without quotes: 1.0e-3",
        ),
        (
            "epochs: 30",
            "epochs: '3'",
            "training.epochs: found the text '3', not a number. Allowed: a whole number, at least 1 (passes over the "
            "training data). Fix: write it without quotes: 3",
        ),
        (
            "epochs: 30",
            "epochs: 1e3",
            "training.epochs: found 1000.0. Allowed: a whole number, at least 1 (passes over the training data). "
            "Fix: write it as 1000",
        ),
        (
            "epochs: 30",
            "epochs: 0",
            "training.epochs: found 0. Allowed: a whole number, at least 1 (passes over the training data)",
        ),
        (
            "epochs: 30",
            "epochs: true",
            "training.epochs: found true. Allowed: a whole number, at least 1 (passes over the training data)",
        ),
        (
            "resamples: 2000",
            "resamples: 3",
            "evaluation.resamples: found 3. Allowed: a whole number, at least 100 and at most 1000000 "
            "(bootstrap resamples)",
        ),
        (
            "optimizer: adamw",
            "optimizer: adagrad",
            f"training.optimizer: found 'adagrad'. Allowed: sgd, adam, adamw or muon ({meaning('optimizer')})",
        ),
        (
            "nesterov: true",
            "nesterov: no",
            "training.nesterov: found 'no'. Allowed: true or false (Nesterov momentum for sgd and muon)",
        ),
        (
            "class_weights: none",
            "class_weights: [1.0, 0.0]",
            "training.class_weights: found 0.0. Allowed: none or balanced or a list, not empty, with values: a finite "
            f"number, above 0.0 ({meaning('class_weights')})",
        ),
        (
            "columns: {}",
            "columns: {season: category}",
            "data.columns: found 'category'. Allowed: {NAME: VALUE, ...} with values: numeric, categorical, datetime, "
            "text, id or ignored (type of single columns: numeric, categorical, datetime, text, id or ignored; the "
            "others: by their values). Did you mean categorical?",
        ),
        (
            "formats: [jpeg, png, webp, bmp, tiff]",
            "formats: [jpeg, tga]",
            "data.formats: found 'tga'. Allowed: a list, not empty, with values: jpeg, png, webp, bmp, tiff, ppm, gif, "
            "avif or heif (accepted image formats; also possible: gif (first frame), avif, heif (needs pillow-heif), "
            "ppm)",
        ),
        (
            "classes: auto",
            "classes: [a, a, b]",
            "data.classes: found [a, a, b]. Allowed: auto or a list with different values: text, not empty (class "
            "names in order; auto: the labels found in the data)",
        ),
        (
            "allowed_hosts: []",
            "allowed_hosts: [a b]",
            "platform.allowed_hosts: found 'a b'. Allowed: a list with values: text (other host names that requests to "
            "the servers may use: HOST or HOST:PORT)",
        ),
        (
            "image_size: auto",
            "image_size: 4",
            "data.image_size: found 4. Allowed: auto or a whole number, at least 8 and at most 4096 (side of the "
            "packed square images, pixels; auto: their own size if equal and at most 64, else 64)",
        ),
        (
            "betas: [0.9, 0.999]",
            "betas: [0.9]",
            "training.betas: found [0.9]. Allowed: a list of 2 values, each a finite number, at least 0.0 and below "
            f"1.0 ({meaning('betas')})",
        ),
        (
            "loss: auto",
            "loss: mean",
            "training.loss: found 'mean'. Allowed: auto, cross-entropy, binary-cross-entropy, mse, l1 or smooth-l1 or "
            f"package.module:function ({meaning('loss')})",
        ),
        (
            "augment: auto",
            "augment: [5]",
            "training.augment: found 5. Allowed: auto or a list with values: {NAME: VALUE} or package.module:Class "
            f"({meaning('augment')})",
        ),
        ("device: auto", "device: gpu", "training.device: found 'gpu'. Allowed: auto, cpu, mps, cuda or cuda:N"),
        (
            "max_aspect: 10.0",
            "max_aspect: .inf",
            "data.max_aspect: found inf. Allowed: a finite number, at least 1.0 "
            "(largest accepted ratio of long side to short side)",
        ),
        (
            "source: digits",
            "source:",
            "data.source: found null. Allowed: text, not empty (digits, image-folder, image-manifest, or a "
            "torchvision data set)",
        ),
        (
            "validation_fraction: 0.15",
            "validation_fraction: 0.9",
            "data.validation_fraction + data.test_fraction is 1.05, which leaves nothing to train on. Allowed: "
            "below 1. Fix: lower one of them",
        ),
    ],
)
def test_a_wrong_value_is_reported_with_allowed_values(full: Path, old: str, new: str, expected: str) -> None:
    assert refusal(change(full, f"  {old}  #", f"  {new}  #")) == [f"params.yaml: {expected}"]


def test_class_names_need_one_label_column(file: Path) -> None:
    """With several, the problem is labels or numbers, and the names had no effect."""
    columns = {"data.kind": "table", "data.classes": ["a", "b"], "data.label_column": ["x", "y"]}
    with pytest.raises(SettingsError) as caught:
        settings.override(file, columns)
    assert str(caught.value) == (
        "params.yaml: data.classes: found [a, b]. Allowed: only with one data.label_column, and it is [x, y]. Fix: set "
        "it to auto, or name one column in data.label_column"
    )
    for fix in ({"data.classes": "auto"}, {"data.label_column": "x"}, {"data.label_column": ["x"]}):
        settings.override(file, columns | fix)


def test_all_faults_are_reported_at_once(full: Path) -> None:
    file = full
    change(file, "  epochs: 30", "  epohcs: 30")
    change(file, "optimizer: adamw", "optimizer: adagrad")
    change(file, "  code: src/ratchet/training/models  #", "  #")
    change(file, "min_side: 4", "min_side: four")
    faults = sorted(line.split(" (")[0].split(". Allowed")[0] for line in refusal(file))
    assert faults == [
        "params.yaml: data.min_side: found 'four'",
        "params.yaml: model.code: missing. Fix: add it",
        "params.yaml: training.epohcs: unknown key",
        "params.yaml: training.optimizer: found 'adagrad'",
    ]


def test_a_section_with_a_plain_value_is_reported_once(file: Path) -> None:
    text = file.read_text(encoding="utf-8").splitlines()
    start = text.index(next(line for line in text if line.startswith("gate:")))
    text[start : text.index("", start)] = ["gate: strict"]
    file.write_text("\n".join(text), encoding="utf-8")
    assert refusal(file) == [
        "params.yaml: gate: found 'strict'. Allowed: a section with one setting per line: "
        + ", ".join(GateSettings.model_fields)
    ]


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("training.learningrate", "Did you mean training.learning_rate?"),
        ("trainig.epochs", "Did you mean training.epochs?"),
        ("epochs", "Did you mean training.epochs?"),
        ("training.epochs.first", "Did you mean training.epochs?"),
        ("gate.zzz", f"Allowed in gate: {', '.join(GateSettings.model_fields)}"),
        (
            "zzz",
            "Allowed: seed, data, model, training, budget, evaluation, export, gate, registry, access, tracking, "
            "platform, serving, scale, search, alerts, monitoring",
        ),
    ],
)
def test_an_unknown_key_is_reported_with_the_nearest(file: Path, key: str, fix: str) -> None:
    before = file.read_bytes()
    with pytest.raises(SettingsError) as caught:
        settings.override(file, {key: 1})
    assert str(caught.value) == f"params.yaml: {key}: unknown key (value 1). {fix}"
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed: 0\ntraining: {epochs: 1\nx: 2", "line 3: not YAML"),
        ("seed: 0\nseed: 1\n", "line 2: not YAML (found duplicate key"),
        ("- seed", "contains a list. Allowed: sections of settings. Fix: restore it with `git checkout params.yaml`"),
        ("", "contains nothing. Allowed: sections of settings"),
        ("digits", "contains only 'digits'. Allowed: sections of settings"),
        ("seed: 2026-13-45", "not YAML (month must be in 1..12)"),
    ],
)
def test_a_file_without_settings_is_reported_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    [message] = refusal(path)
    assert message.startswith(f"{path}")
    assert expected in message


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(b"seed: \xff\xfe\n")
    assert "not YAML" in refusal(path)[0]


def test_a_missing_file_is_reported_with_its_fix(tmp_path: Path) -> None:
    assert refusal(tmp_path / "params.yaml") == [
        f"{tmp_path / 'params.yaml'}: missing. Fix: restore it with `git checkout params.yaml`"
    ]


def test_an_override_without_a_change_does_not_write(file: Path) -> None:
    before = file.stat()
    settings.override(file, {"training.epochs": 30, "data.source": "digits"})
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("key", ["training.epochs", "training.nothing"])
def test_a_bad_override_writes_nothing(file: Path, key: str) -> None:
    before = file.read_bytes()
    with pytest.raises(SettingsError, match=key):
        settings.override(file, {"seed": 7, key: -1})
    assert file.read_bytes() == before


def test_assignments_are_read_as_yaml() -> None:
    read = settings.parse_assignments(["a.b=1e-3", "c=off", "d=true", "e='7'", "f=[x, y]", " g =h=i"])
    assert read == {"a.b": 0.001, "c": "off", "d": True, "e": "7", "f": ["x", "y"], "g": "h=i"}


@pytest.mark.parametrize(
    "assignment", ["training.epochs", "=3", "training.epochs='", "data.formats=[png", "seed=2026-13-45"]
)
def test_a_wrong_assignment_is_reported_with_an_example(assignment: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings.parse_assignments([assignment])
    assert f"{assignment}: " in str(caught.value)
    assert "for example training.epochs=3" in str(caught.value)


def test_overrides_of_a_flow_are_optional_settings() -> None:
    def chosen(**content: Any) -> dict[str, object]:
        return settings.flatten(Overrides.model_validate(content))

    assert chosen() == {}
    assert chosen(training={"epochs": 3, "nesterov": False}, seed=0) == {
        "seed": 0,
        "training.epochs": 3,
        "training.nesterov": False,
    }
    assert chosen(data={"formats": ["png"]}) == {"data.formats": ("png",)}
    for bad in ({"training": {"epochs": 0}}, {"training": {"epoch": 1}}, {"training": {"epochs": "3"}}):
        with pytest.raises(ValueError, match="epoch"):
            chosen(**bad)


LEDGER = ("ledger", "promotion")  # not for a caller of a flow


def test_every_override_has_the_description_of_its_setting() -> None:
    def described(schema: dict[str, Any]) -> set[str]:
        groups = [
            group
            for name, group in schema["$defs"].items()
            if name not in ("AccessSettings", "AlertSettings", "PlatformSettings")
        ]
        withheld = {RegistrySettings.model_fields[name].description for name in LEDGER}
        withheld.add(ServingSettings.model_fields["keys"].description)
        return {
            f["description"] for group in [schema, *groups] for f in group["properties"].values() if "description" in f
        } - withheld

    assert described(Params.model_json_schema()) <= described(Overrides.model_json_schema())


def test_callers_of_flows_cannot_change_permissions() -> None:
    assert "access" in Params.model_fields
    for bad in (
        {"access": {"admins": ("me",)}},
        {"registry": {"promotion": "automatic"}},
        {"registry": {"ledger": "x"}},
        {"serving": {"keys": "auto"}},
        {"alerts": {"webhook": "none"}},
        {"platform": {"gpus": 9}},
    ):
        with pytest.raises(ValueError, match="Extra inputs are not permitted"):
            Overrides.model_validate(bad)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"alerts.webhook": "https://hooks.slack.com/services/T0/B0/5ecret"}, "an address of hooks.slack.com, which"),
        ({"alerts.webhook": "https://a.b.webhook.office.com/5ecret"}, "an address of a.b.webhook.office.com, which"),
        (
            {"alerts.webhook": "https://me:5ecret@chat.example/in"},
            "found https://me:***@chat.example/in, whose password",
        ),
        ({"alerts.smtp": "mail.example:25", "alerts.smtp_user": "me"}, "would send the password of me to mail.example"),
    ],
)
def test_alert_settings_that_expose_a_secret_are_refused(file: Path, changes: dict[str, object], expected: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(expected)) as caught:
        settings.override(file, changes)
    assert "5ecret" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"alerts.webhook": "environment"},
        {"alerts.webhook": "http://chat.example:8065/in"},
        {"alerts.smtp": "[::1]:25", "alerts.smtp_user": "me"},
        {"alerts.smtp": "mail.example:465", "alerts.smtp_user": "me", "alerts.smtp_security": "tls"},
    ],
)
def test_alert_settings_without_a_secret_are_accepted(file: Path, changes: dict[str, object]) -> None:
    assert settings.override(file, changes).alerts.smtp_security in ("none", "tls")


def test_only_equal_settings_have_equal_digests(file: Path) -> None:
    assert settings.load(file).digest == Params().digest
    assert settings.override(file, {"training.epochs": 29}).digest != Params().digest


@pytest.mark.parametrize("hosts", [["gpu.lan:8080", "[::1]:4200"], ["gpu.lan"], []])
def test_a_list_of_addresses_is_written_and_read_back(file: Path, hosts: list[str]) -> None:
    assert settings.override(file, {"platform.allowed_hosts": hosts}).platform.allowed_hosts == tuple(hosts)
    assert settings.load(file).platform.allowed_hosts == tuple(hosts)


def test_an_override_changes_no_other_byte(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(settings.template())
    changes = {"model.name": "resnet", "data.drop": ("id",), "training.learning_rate": 0.125, "seed": 7}
    settings.override(path, changes)
    lines = zip(settings.template().splitlines(), path.read_text().splitlines(), strict=True)
    changed = [(old.partition("  #"), new.partition("  #")) for old, new in lines if old != new]
    assert {new[0].strip() for _, new in changed} == {
        "seed: 7",
        "name: resnet",
        "drop: [id]",
        "learning_rate: 0.125",
    }
    assert all(old[1:] == new[1:] for old, new in changed)
    usual = Params()
    settings.override(
        path,
        {
            "model.name": usual.model.name,
            "data.drop": usual.data.drop,
            "training.learning_rate": settings.parse_assignments(["training.learning_rate=2.0e-3"])[
                "training.learning_rate"
            ],
            "seed": usual.seed,
        },
    )
    assert path.read_text() == settings.template()


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("nonsense", ""),
        ("wrap_dataset_for_transforms_v2", ""),
        ("photos", ""),
        ("imagefolder", " Did you mean image-folder?"),
        ("Image_Folder", " Did you mean image-folder?"),
        ("fashion-mnist", " Did you mean FashionMNIST?"),
        ("cifar", " Did you mean CIFAR10 or CIFAR100?"),
    ],
)
def test_an_unknown_source_is_refused_with_the_nearest(file: Path, name: str, near: str) -> None:
    """The message lists no set that cannot be used, and imports no torch, which takes seconds."""
    with pytest.raises(SettingsError) as refused:
        settings.override(file, {"data.source": name})
    assert file.read_text() == settings.template()
    assert str(refused.value) == (
        f"params.yaml: data.source: found {name!r}, which is not a source. Allowed: digits, image-folder, "
        "image-manifest, or a classification set of torchvision.datasets, such as CIFAR10, FashionMNIST or "
        f"Flowers102{near and '.'}{near}"
    )


def test_suggested_sets_need_no_more_than_a_split() -> None:
    import torchvision.datasets as sets

    for name in source_names.CLASSIFICATION:
        parameters = list(inspect.signature(getattr(sets, name).__init__).parameters.values())[1:]
        required = {parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty}
        assert required - {"kwargs", "split"} == {"root"}, name


@pytest.mark.parametrize(
    ("assignment", "near"),
    [
        ("training.optimizer=AdamW", "adamw"),
        ("training.optimizer=Muon", "muon"),
        ("training.schedule=Cosine", "cosine"),
        ("training.schedule=warmup_linear", "warmup-linear"),
        ("training.device=CUDA", "cuda"),
        ("data.kind=Images", "image"),
        ("data.image_size=Auto", "auto"),
        ("data.formats=[jpg]", "jpeg"),
        ("data.columns={age: Numerical}", "numeric"),
        ("model.factory=None", "none"),
        ("training.nesterov=flase", "false"),
    ],
)
def test_a_value_in_another_spelling_is_guessed(file: Path, assignment: str, near: str) -> None:
    with pytest.raises(SettingsError) as refused:
        settings.override(file, settings.parse_assignments([assignment]))
    assert str(refused.value).endswith(f". Did you mean {near}?")
    assert file.read_text() == settings.template()


def test_every_existing_source_can_be_set(tmp_path: Path) -> None:
    import torchvision.datasets as sets

    classes = {name for name in sets.__all__ if isinstance(getattr(sets, name), type)}
    assert set(source_names.torchvision_names()) == classes
    path = tmp_path / "params.yaml"
    path.write_text(settings.template())
    for name in (*source_names.OWN, "MNIST", "Flowers102"):
        assert settings.override(path, {"data.source": name}).data.source == name


def test_renamed_or_removed_setting_gets_its_fix() -> None:
    message = settings_errors.unknown(Params, "gate.minimum_accuracy", 0.8)
    assert message == "gate.minimum_accuracy: renamed. Fix: write it as gate.minimum"
    for removed in ("platform.person_runs", "registry.ledger_keys", "search.min_epochs", "training.epsilon"):
        assert settings_errors.unknown(Params, removed, 1) == f"{removed}: removed. Fix: delete it"
    message = settings_errors.unknown(Params, "data.factory", "own:make")
    assert message.startswith(
        "data.factory: removed. Fix: delete the line. A Dataset of your own becomes your own kind"
    )
