"""The lineage of a run: each link describes itself, and a missing one says why it is missing."""

from dataclasses import replace

import pytest

from ratchet.provenance.archive import ArchivedRun
from ratchet.provenance.lineage import Link, data_link
from ratchet.registry.provenance_record import Hardware, Provenance
from ratchet.registry.versions import Version

RECORD = Provenance(
    id="0123456789abcdef",
    git_commit="commit",
    git_origin=None,
    git_uncommitted=None,
    git_left_out=(),
    dvc={"data/packed": "packed.dir"},
    dvc_inputs={"data/raw": "raw.dir"},
    inputs=None,
    settings="digest",
    lock=None,
    seed=3,
    python="3.11.0",
    packages={},
    hardware=Hardware("x86_64", "Linux", "processor", "AVX2", 1, None, None, (), None),
    prefect_flow_run="flow",
    weights="weights",
)
RUN = ArchivedRun(
    run_id="run",
    run_name="name",
    status="FINISHED",
    tags={"ratchet.gate": "passed", "mlflow.note.content": "Passed: all hold."},
    params={"data.source": "digits", "data.path": "data/raw"},
    metrics={"test/accuracy": 0.5, "test interval/accuracy_low": 0.4, "test interval/accuracy_high": 0.6},
    dataset={"name": "digits", "digest": "d", "profile": {"classes": 2, "rows": {"train": 5}, "quarantined": 1}},
    record=RECORD,
    versions=(Version("digits", "1", "", ()), Version("digits", "2", "", ("champion",))),
)


def lines(link: Link) -> dict[str, tuple[str, ...]]:
    by_title = {link.title: link.lines}
    for child in link.children:
        by_title |= lines(child)
    return by_title


def test_source_of_other_kinds_is_the_kind() -> None:
    params = {"data.kind": "table", "data.source": "digits", "data.path": "data/raw"}
    assert lines(data_link([replace(RUN, params=params)], storage=""))["source"][0] == "table, read from data/raw"


def test_a_complete_lineage_has_every_link() -> None:
    acts = {("digits", "2"): ["ann: promote: better"]}
    assert lines(data_link([RUN], storage="kept in DVC's cache", others=2, acts=acts)) == {
        "source": ("digits, read from data/raw", "DVC hash raw.dir"),
        "data version": (
            "DVC hash packed.dir",
            "digits: 2 classes, 5 train",
            "1 quarantined",
            "kept in DVC's cache",
            "2 more runs used it: `ratchet trace packed.dir` shows all",
        ),
        "run run": (
            "name, FINISHED",
            "Prefect flow run flow",
            "commit commit",
            "settings digest, seed 3",
            "weights SHA-256 weights",
            "provenance 0123456789abcdef",
        ),
        "evaluation": ("test accuracy 0.5000 (0.4000 to 0.6000)",),
        "verdict": ("Passed: all hold.",),
        "versions": (),
        "digits version 1 (no alias)": ("the ledger has no entry about it",),
        "digits version 2 (champion)": ("ann: promote: better",),
    }


@pytest.mark.parametrize(
    ("run", "title", "expected"),
    [
        (replace(RUN, params={}), "source", "unknown: the run's settings are not in MLflow"),
        (replace(RUN, record=replace(RECORD, dvc_inputs={})), "source", "DVC hash unknown"),
        (replace(RUN, dataset={}), "data version", "unknown: the run names no data set in MLflow"),
        (replace(RUN, record=replace(RECORD, dvc={})), "data version", "DVC hash unknown"),
        (
            replace(RUN, record=replace(RECORD, prefect_flow_run=None)),
            "run run",
            "no Prefect flow run: started by `dvc repro`",
        ),
        (replace(RUN, record=replace(RECORD, git_commit=None)), "run run", "no commit: made outside git"),
        (replace(RUN, record=replace(RECORD, git_uncommitted="x")), "run run", "commit, with uncommitted changes"),
        (replace(RUN, record=None), "run run", "no provenance record"),
        (replace(RUN, metrics={}), "evaluation", "none: the run was not evaluated"),
        (replace(RUN, metrics={"test/accuracy": 0.5}), "evaluation", "without an interval"),
        (replace(RUN, tags={}), "verdict", "none: the gate has not judged it"),
        (replace(RUN, versions=()), "versions", "its version is no longer in the registry"),
        (replace(RUN, versions=(), tags={"ratchet.gate": "refused"}), "versions", "none: the gate refused it"),
        (replace(RUN, versions=(), tags={}), "versions", "none: it was not judged"),
    ],
)
def test_a_missing_link_says_why(run: ArchivedRun, title: str, expected: str) -> None:
    assert expected in " | ".join(lines(data_link([run], storage="kept"))[title])


def test_a_doubt_is_shown_with_its_run() -> None:
    doubted = replace(RUN, doubts=("MLflow has metric test/accuracy = 0.9",))
    assert lines(data_link([doubted], storage="x"))["run run"][-1] == "! MLflow has metric test/accuracy = 0.9"
