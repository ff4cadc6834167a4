"""The chain of a run: each link says what it is, or which is not there and why."""

import html
from dataclasses import replace

import pytest

from ratchet.provenance.archive import Made, Release
from ratchet.provenance.chain import Link, data_link
from ratchet.reports import chain_page

RECORD = {
    "id": "0123456789abcdef",
    "dvc": {"data/packed": "packed.dir"},
    "dvc_inputs": {"data/raw": "raw.dir"},
    "prefect_flow_run": "flow",
    "git_commit": "commit",
    "git_uncommitted": None,
    "settings": "digest",
    "seed": 3,
    "weights": "weights",
}
WHOLE = Made(
    run_id="run",
    run_name="name",
    status="FINISHED",
    tags={"ratchet.gate": "passed", "mlflow.note.content": "Passed: all hold."},
    params={"data.source": "digits", "data.path": "data/raw"},
    metrics={"test/accuracy": 0.5, "test interval/accuracy_low": 0.4, "test interval/accuracy_high": 0.6},
    dataset={"name": "digits", "digest": "d", "profile": {"classes": 2, "rows": {"train": 5}, "quarantined": 1}},
    record=RECORD,
    releases=(Release("digits", "1", (), {}), Release("digits", "2", ("champion",), {})),
)


def lines(link: Link) -> dict[str, tuple[str, ...]]:
    found = {link.title: link.lines}
    for one in link.made:
        found |= lines(one)
    return found


def test_a_whole_chain_tells_every_link() -> None:
    acts = {("digits", "2"): ["ann: promote: better"]}
    assert lines(data_link([WHOLE], kept="kept in DVC's cache", others=2, acts=acts)) == {
        "source": ("digits, read from data/raw", "DVC hash raw.dir"),
        "data version": (
            "DVC hash packed.dir",
            "digits: 2 classes, 5 train",
            "1 quarantined",
            "kept in DVC's cache",
            "2 more runs were made of it: `ratchet trace packed.dir` shows all",
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
        "digits version 1 (no alias)": ("the ledger knows nothing of it",),
        "digits version 2 (champion)": ("ann: promote: better",),
    }


@pytest.mark.parametrize(
    ("made", "title", "told"),
    [
        (replace(WHOLE, params={}), "source", "unknown: the run's settings are not in MLflow"),
        (replace(WHOLE, record={**RECORD, "dvc_inputs": {}}), "source", "its hash is not known"),
        (replace(WHOLE, dataset={}), "data version", "unknown: the run names no data set in MLflow"),
        (replace(WHOLE, record={**RECORD, "dvc": {}}), "data version", "its DVC hash is not known"),
        (
            replace(WHOLE, record={**RECORD, "prefect_flow_run": None}),
            "run run",
            "no Prefect flow run: made by `dvc repro`",
        ),
        (replace(WHOLE, record={**RECORD, "git_commit": None}), "run run", "no commit: it was made outside git"),
        (replace(WHOLE, record={**RECORD, "git_uncommitted": "x"}), "run run", "commit, with uncommitted changes"),
        (replace(WHOLE, record=None), "run run", "no provenance record"),
        (replace(WHOLE, metrics={}), "evaluation", "none: the run was not evaluated"),
        (replace(WHOLE, metrics={"test/accuracy": 0.5}), "evaluation", "without an interval"),
        (replace(WHOLE, tags={}), "verdict", "none: the gate has not judged it"),
        (replace(WHOLE, releases=()), "versions", "the registry has no version of it any more"),
        (replace(WHOLE, releases=(), tags={"ratchet.gate": "refused"}), "versions", "none: the gate refused it"),
        (replace(WHOLE, releases=(), tags={}), "versions", "none: it was not judged"),
    ],
)
def test_a_link_that_is_not_there_says_which_and_why(made: Made, title: str, told: str) -> None:
    assert told in " | ".join(lines(data_link([made], kept="kept"))[title])


def test_page_shows_every_link_and_escapes_every_text() -> None:
    nasty = "<script>alert('x')</script>"
    chain = data_link([replace(WHOLE, run_name=nasty)], kept="kept in DVC's cache")
    page = chain_page.render("digits/2", ["digits version 2"], [chain])
    assert "<script" not in page
    shown = html.unescape(page)
    assert all(line in shown for title, found in lines(chain).items() for line in (title, *found))
    assert nasty in shown


def test_a_doubt_is_shown_with_its_run() -> None:
    doubted = replace(WHOLE, doubts=("MLflow has metric test/accuracy = 0.9",))
    assert lines(data_link([doubted], kept="x"))["run run"][-1] == "! MLflow has metric test/accuracy = 0.9"
