"""The differences between two runs, without MLflow."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commands.compare import print_comparison
from ratchet.data.difference import difference
from ratchet.evaluation.intervals import Interval, paired_difference
from ratchet.evaluation.predictions import Predictions
from ratchet.problems import Classes
from ratchet.provenance import comparison, record
from ratchet.provenance.comparison import (
    Change,
    CodeChange,
    Comparison,
    MetricChange,
    changes,
    compare_answers,
    environment_changes,
    patched_files,
)
from ratchet.registry.provenance_record import Hardware, Provenance

CLASSES = ("cat", "dog", "emu")
PATCH = b"""diff --git a/a.py b/a.py
index 1..2 100644
--- a/a.py
+++ b/a.py
@@ -1 +1 @@
-a = 1
+a = %d
"""
NEW = b"""diff --git a/nets/my net.py b/nets/my net.py
new file mode 100644
--- /dev/null
+++ b/nets/my net.py
@@ -0,0 +1 @@
+diff --git a/not b/not
"""


def predictions(ids: str, labels: str, answers: str, classes: tuple[str, ...] = CLASSES) -> Predictions:
    """Return predictions of one sample per letter: its id, and the first letters of its label and answer."""
    at = {name[0]: number for number, name in enumerate(classes)}
    logits = np.zeros((len(ids), len(classes)), np.float32)
    logits[np.arange(len(ids)), [at[letter] for letter in answers]] = 1
    return Predictions(logits, np.array([at[letter] for letter in labels], np.int64), tuple(ids), Classes(classes))


def test_flips_are_answers_that_became_right_or_wrong() -> None:
    answers = compare_answers(predictions("abcd", "cccd", "ccdd"), predictions("abcd", "cccd", "cdce"), {})
    assert [(flip.id, flip.label, flip.before, flip.after) for flip in answers.worse] == [
        ("b", "cat", "cat", "dog"),
        ("d", "dog", "dog", "emu"),
    ]
    assert [(flip.id, flip.label, flip.before, flip.after) for flip in answers.better] == [("c", "cat", "dog", "cat")]


def test_samples_are_matched_by_id_and_label_in_any_order() -> None:
    before = predictions("abcde", "ccdde", "ccdde")
    after = predictions("fedcba", "cedcdc", "cccccc", classes=("emu", "dog", "cat"))
    answers = compare_answers(before, after, {}, altered=frozenset("a"))
    # b and c have other labels, a has another image, and f is new.
    assert (answers.common, answers.totals) == (2, (5, 6))
    assert [flip.id for flip in answers.worse] == ["e", "d"]


def test_the_difference_is_a_paired_bootstrap_with_the_settings() -> None:
    generator = np.random.default_rng(0)
    labels, answers_a, answers_b = ("".join(generator.choice(list("cde"), 200)) for _ in range(3))
    ids = "".join(chr(1000 + number) for number in range(200))
    a, b = predictions(ids, labels, answers_a), predictions(ids, labels, answers_b)
    settings = {"evaluation.confidence": 0.8, "evaluation.resamples": 300, "seed": 7}
    expected = paired_difference(b.score, a.score, resamples=300, confidence=0.8, seed=7)
    answers = compare_answers(a, b, settings)
    assert answers.accuracy == expected
    assert f"{100 * expected.value:+.2f} points in accuracy (80 % CI" in answers.summary
    assert len(answers.better) - len(answers.worse) == round(200 * expected.value)


def test_one_sample_is_not_counted_as_several() -> None:
    answers = compare_answers(predictions("ab", "cc", "cd"), predictions("ab", "cc", "cc"), {})
    assert answers.summary.startswith("On the 2 test samples in common, ")
    assert answers.summary.endswith(" to right: 1 sample; right to wrong: 0.")


def test_without_common_samples_there_is_no_difference() -> None:
    answers = compare_answers(predictions("ab", "cc", "cc"), predictions("cd", "cc", "dd"), {})
    assert answers.accuracy is None
    assert "cannot be compared" in answers.summary


def test_files_with_the_same_patch_are_omitted() -> None:
    assert patched_files(PATCH % 2, PATCH % 2) == {}
    assert patched_files(PATCH % 2 + NEW, PATCH % 3) == {"a.py": "A and B, not the same", "nets/my net.py": "A only"}
    assert patched_files(b"", NEW) == {"nets/my net.py": "B only"}


def test_metrics_are_of_the_test_split_with_accuracy_first() -> None:
    before = {"test/accuracy": 0.5, "test interval/accuracy_low": 0.4, "test interval/accuracy_high": 0.6, "loss": 1.0}
    after = {"test/accuracy": 0.7, "test/a": 0.1, "test/temperature": 1.5, "validation/accuracy": 1.0}
    assert comparison.metric_changes(before, after) == [
        MetricChange("accuracy", Interval(0.4, 0.5, 0.6), 0.7),
        MetricChange("a", None, 0.1),
    ]


def test_changes_have_dotted_keys() -> None:
    before = {"seed": 0, "training": {"epochs": 3, "loss": "mse"}, "old": 1}
    after = {"seed": 0, "training": {"epochs": 4, "loss": "mse"}, "new": [1]}
    assert changes(before, after) == [Change("training.epochs", 3, 4), Change("old", 1, None), Change("new", None, [1])]


def test_the_environment_is_packages_python_lock_and_machine() -> None:
    hardware = Hardware("x86_64", "Linux", "processor", "AVX2", 1, None, None, (), None)
    first = Provenance(
        id="a", git_commit=None, git_origin=None, git_uncommitted=None, git_left_out=(), dvc={}, dvc_inputs={},
        inputs=None, settings="s", lock="l", seed=0, python="3.11", packages={"torch": "2.0"}, hardware=hardware,
        prefect_flow_run=None,
    )  # fmt: skip
    other = replace(first, id="b", seed=1, packages={"torch": "2.1"}, hardware=replace(hardware, threads=2))
    assert environment_changes(first, first) == []
    assert [change.name for change in environment_changes(first, other)] == ["packages.torch", "hardware.threads"]


def test_folder_with_the_name_of_an_extra_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vendored_models").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(record, "_EXTRAS", ("vendored_models", "pytest"))
    assert record.installed_packages().keys() == {*record.PACKAGES, "pytest"}


@pytest.fixture
def differing() -> Comparison:
    import polars

    index = polars.DataFrame({"id": ["<b>"], "split": ["test"], "class": ["cat"], "content": ["1"]})
    return Comparison(
        names=("one/1", "<script>"),
        code=CodeChange(("c1", "c2"), ("a.py | 2 +-",), {"<x>": "A only"}),
        settings=[Change("training.epochs", 3, 4)],
        data=("d1", "d2"),
        samples=difference(index, index.with_columns(polars.lit("dog").alias("class"))),
        environment=[Change("hardware.gpus", [], ["one", "two"])],
        metrics=[MetricChange("accuracy", Interval(0.4, 0.5, 0.6), None)],
        answers=compare_answers(predictions("abcd", "cccd", "ccdd"), predictions("abcd", "cccd", "cdce"), {}),
        missing=("this is missing",),
    )


def test_all_differences_are_printed_as_plain_text(differing: Comparison, capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(differing, most=1)
    output = capsys.readouterr().out
    for text in (
        "<script>",
        "a.py | 2 +-",
        "<x>: A only",
        "1 relabelled",
        "one, two",
        "this is missing",
        "-25.00 points",
    ):
        assert text in output, text
    assert "0.5000 (0.4000 to 0.6000)" in output
    assert "right -> wrong: 2\n  b: cat, predicted cat -> dog\n  ... and 1 more: --most 0 lists all" in output


def test_unknown_parts_are_named_and_have_no_section(differing: Comparison, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = replace(
        differing, code=CodeChange((None, None), (), {}), settings=None, data=(None, "d2"), samples=None,
        environment=(), metrics=(), answers=None, doubts=("one/1: was changed",),
    )  # fmt: skip
    print_comparison(unknown, most=0)
    output = capsys.readouterr().out
    for text in ("one/1: was changed", "unknown for both", "nothing uncommitted differs", "unknown -> d2"):
        assert text in output, text
    assert "the same, or not recorded for both" in output
    for heading in ("settings", "test metrics", "test samples"):
        assert f"\n{heading}\n" not in output
