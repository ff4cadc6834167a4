"""Shadow versions: their answers are compared row by row, and are no part of the answered requests."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ratchet.errors import DataError, RegistryError
from ratchet.problems import Classes, Labels, Numbers, Target
from ratchet.registry.shadow_rule import judge_shadow
from ratchet.settings.model import GateSettings
from ratchet.traffic.log_reader import find, read, read_shadow
from ratchet.traffic.log_summary import summary
from ratchet.traffic.request_log import RequestLog
from ratchet.traffic.schema import SHADOW, Logged, target_id
from ratchet.traffic.shadow_comparison import comparisons

NOON = 1_800_014_400.0
CLASSES = Classes(("a", "b"))


def write(folder: Path, given: NDArray[np.float32], other: NDArray[np.float32], target: Target = CLASSES) -> Path:
    """Write requests of two rows, answered by version 1 and in shadow by version 2."""
    log = RequestLog(folder, share=1.0, inputs="none", days=30.0, mib=64.0)
    for number in range(0, len(given), 2):
        for version, envelope, answers in (("1", "own", given), ("2", SHADOW, other)):
            logged = Logged(
                f"{number:032x}", NOON + number, 0.25, envelope, "digits", version, "", "", {},
                answers[number : number + 2], target_id(target),
            )  # fmt: skip
            log.add(logged.answer, lambda logged=logged: logged)
    log.close()
    return folder


def test_agreement_counts_equal_classes(tmp_path: Path) -> None:
    given = np.eye(2, dtype=np.float32)[[0, 1] * 10]
    other = given.copy()
    other[:3] = other[:3, ::-1]
    folder = write(tmp_path, given, other)
    (pair,) = comparisons(folder)
    assert (pair.served, pair.shadow, pair.requests, pair.rows) == ("digits/1", "digits/2", 10, 20)
    assert pair.agreement is not None
    assert pair.agreement.value == pytest.approx(17 / 20)
    assert pair.agreement.low < 17 / 20 < pair.agreement.high
    assert (len(read(folder)), len(read_shadow(folder))) == (20, 20)
    assert set(find(folder, f"{0:032x}")["version"]) == {"1"}
    assert [(hour.version, hour.requests) for hour in summary(folder)] == [("digits/1", 10)]


def test_failed_requests_agree_in_no_row(tmp_path: Path) -> None:
    """A failed one has NaN, whose best class would be the first one."""
    given = np.eye(2, dtype=np.float32)[[0, 1] * 10]
    other = given.copy()
    other[:6] = np.nan
    folder = write(tmp_path / "c", given, other)
    (pair,) = comparisons(folder)
    assert (pair.requests, pair.failed, pair.rows) == (7, 3, 20)
    assert pair.agreement is not None
    assert pair.agreement.value == pytest.approx(14 / 20)
    with pytest.raises(RegistryError, match="answered 7 live requests in shadow"):
        judge_shadow(GateSettings(shadow_requests=8), folder, champion="digits/1", version="digits/2")
    numbers = Numbers(("x", "y"), (0.0, 0.0), (1.0, 1.0))
    (pair,) = comparisons(write(tmp_path / "n", given, other + 0.5, numbers))
    assert pair.difference is not None
    assert (pair.failed, pair.difference.value) == (3, pytest.approx(0.5))
    (pair,) = comparisons(write(tmp_path / "none", given, np.full_like(given, np.nan), numbers))
    assert (pair.requests, pair.failed, pair.difference) == (0, 10, None)


def test_versions_are_compared_in_slices_of_a_logged_column(tmp_path: Path) -> None:
    log = RequestLog(tmp_path, share=1.0, inputs="none", days=30.0, mib=64.0)
    for number in range(30):
        site, age = "ab"[number % 2], float(number)
        for version, envelope, best in (("1", "own", 0), ("2", SHADOW, number % 2)):
            columns = {"site": [site], "age": [age if number else None]} if envelope == "own" else {}
            answers = np.eye(2, dtype=np.float32)[[best]]
            logged = Logged(
                f"{number:032x}", NOON, 0.25, envelope, "digits", version, "", "", {}, answers, target_id(CLASSES),
                lambda columns=columns: columns,
            )  # fmt: skip
            log.add(logged.answer, lambda logged=logged: logged)
    log.close()
    agreements = {pair.part: pair.agreement and pair.agreement.value for pair in comparisons(tmp_path, by="site")}
    assert agreements == {"a": 1.0, "b": 0.0}
    assert {pair.part: pair.rows for pair in comparisons(tmp_path, by="age")} == {
        "(missing)": 1, "low": 9, "middle": 10, "high": 10,
    }  # fmt: skip
    assert [pair.served_seconds for pair in comparisons(tmp_path)] == [0.25]
    with pytest.raises(DataError, match=r"--by: found height; the log has site, age"):
        comparisons(tmp_path, by="height")


def test_numbers_and_labels_are_compared_in_their_way(tmp_path: Path) -> None:
    given, other = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), np.array([[1.5, 2.0], [3.0, 2.0]], np.float32)
    (numbers,) = comparisons(write(tmp_path / "n", given, other, Numbers(("x", "y"), (0.0, 0.0), (1.0, 1.0))))
    assert numbers.agreement is None
    assert numbers.difference is not None
    assert numbers.difference.value == pytest.approx((0.25 + 1.0) / 2)
    (labels,) = comparisons(write(tmp_path / "l", given - 2.0, other - 2.0, Labels(("x", "y"))))
    assert labels.agreement is not None
    assert labels.agreement.value == 0.5


def test_rule_requires_requests_and_agreement(tmp_path: Path) -> None:
    given = np.eye(2, dtype=np.float32)[[0, 1] * 100]
    other = given.copy()
    other[:20] = other[:20, ::-1]
    folder = write(tmp_path, given, other)
    names = {"champion": "digits/1", "version": "digits/2"}
    assert judge_shadow(GateSettings(), folder, **names) == {}
    figures = judge_shadow(GateSettings(shadow_requests=100, shadow_agreement=0.8), folder, **names)
    assert (figures["requests"], figures["rows"], figures["agreement"]) == (100, 200, pytest.approx(0.9))
    for gate, message in (
        (GateSettings(shadow_requests=101), "answered 100 live requests in shadow beside digits/1; required 101"),
        (GateSettings(shadow_agreement=0.9), r"agrees with digits/1 on 90\.0% .* required: 90\.0% for the lower bound"),
    ):
        with pytest.raises(RegistryError, match=message):
            judge_shadow(gate, folder, **names)
    with pytest.raises(RegistryError, match="answered 0 live requests in shadow beside digits/1; required 1 "):
        judge_shadow(GateSettings(shadow_agreement=0.5), tmp_path / "none", **names)
