"""The section `search` of params.yaml: every kind of nonsense is refused with key, value, allowed values and fix."""

from typing import Any

import pytest
from pydantic import ValidationError

from ratchet import settings
from ratchet.errors import SettingsError
from ratchet.settings import messages as settings_errors
from ratchet.settings.model import Params
from ratchet.settings.search_faults import faults
from ratchet.settings.search_space import apply, parse_space, present_values

RATE, BATCH, MOMENTUM = "training.learning_rate", "training.batch_size", "training.momentum"
OPTIMIZER, BETAS = "training.optimizer", "training.betas"


def messages(space: object, **search: object) -> list[str]:
    """Messages about a section `search`; none: it is allowed."""
    try:
        return list(faults(Params.model_validate({"search": {"space": space, **search}})))
    except ValidationError as error:
        return settings_errors.explain(Params, error.errors())


NONSENSE: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"training.learningrate": {"choice": [1.0]}}, "Did you mean training.learning_rate?"),
    "no section": ({"learning_rate": {"choice": [1.0]}}, "Did you mean training.learning_rate?"),
    "a section": ({"training": {"choice": [1]}}, "it is a section and has no value"),
    "empty key": ({"": {"choice": [1]}}, "unknown key"),
    "null": ({RATE: None}, "found null. Allowed: for example {choice:"),
    "a number": ({RATE: 5}, "found 5. Allowed: for example {choice:"),
    "a list": ({RATE: [1e-3, 1e-2]}, "found [1.0e-3, 0.01]. Allowed: for example"),
    "no kind": ({RATE: {}}, "found none of them. Allowed: one of choice, float and int"),
    "two kinds": ({RATE: {"float": [0.1, 0.2], "choice": [0.1]}}, "found choice, float. Allowed: one of"),
    "unknown option": ({RATE: {"float": [0.1, 0.2], "lgo": True}}, "lgo is unknown"),
    "a word of others": ({RATE: {"loguniform": [0.1, 0.2]}}, "loguniform is unknown. Allowed: one of choice, float"),
    "empty choice": ({RATE: {"choice": []}}, "choice: found []. Allowed: a list of values"),
    "text as choice": ({RATE: {"choice": "ab"}}, "choice: found ab. Allowed: a list of values"),
    "a value twice": ({RATE: {"choice": [0.1, 0.1]}}, "0.1 is in the list more than once. Fix: remove one"),
    "a value as int and float": ({"training.weight_decay": {"choice": [1, 1.0]}}, "1.0 is in the list more than once"),
    "text as number": ({RATE: {"choice": ["1e-3"]}}, "found the text '1e-3', not a number"),
    "log of a choice": ({RATE: {"choice": [0.1], "log": True}}, "log: only for float and int"),
    "too many choices": ({RATE: {"choice": [place / 1e4 for place in range(1, 1002)]}}, "found 1,001 values"),
    "wrong text": ({OPTIMIZER: {"choice": ["adamw", "sdg"]}}, "found 'sdg'. Allowed: sgd, adam, adamw or muon"),
    "list too long": ({BETAS: {"choice": [[0.9, 0.99, 1]]}}, "found [0.9, 0.99, 1]. Allowed: a list of 2 values"),
    "number for a list": ({BETAS: {"float": [0.1, 0.2]}}, "found 0.1. Allowed: a list of 2 values"),
    "number for a boolean": ({"training.nesterov": {"choice": [1]}}, "found 1. Allowed: true or false"),
    "null as value": ({RATE: {"choice": [None]}}, "found null. Allowed: a finite number"),
    "floats for an int": ({BATCH: {"int": [16.0, 64.0]}}, "int: found [16.0, 64.0]. Allowed: [LOW, HIGH], two whole"),
    "float range of an int": ({BATCH: {"float": [16, 64]}}, "it is a whole number. Fix: write it as {int: [16, 64]}"),
    "reversed": ({BATCH: {"int": [64, 16]}}, "of which the second is larger"),
    "equal ends": ({BATCH: {"int": [16, 16]}}, "of which the second is larger"),
    "boolean as end": ({BATCH: {"int": [True, 64]}}, "int: found [true, 64]. Allowed: [LOW, HIGH]"),
    "below the minimum": ({BATCH: {"int": [0, 64]}}, "found 0. Allowed: a whole number, at least 1"),
    "above the maximum": ({RATE: {"float": [0.1, 1e6]}}, "found 1000000.0. Allowed: a finite number, above 0.0 and at"),
    "a number too large": ({BATCH: {"int": [1, 10**400]}}, "Allowed: [LOW, HIGH], two whole numbers"),
    "nan": ({RATE: {"float": [float("nan"), 1.0]}}, "found [nan, 1.0]. Allowed: [LOW, HIGH], two numbers"),
    "infinity": ({RATE: {"float": [0.1, float("inf")]}}, "found [0.1, inf]. Allowed: [LOW, HIGH]"),
    "1e-4 in YAML": ({RATE: {"float": ["1e-4", 0.1]}}, "Fix: write 1e-4 as 1.0e-4"),
    "log of zero": ({RATE: {"float": [0, 1], "log": True}}, "with log: true. Allowed with log: LOW above 0"),
    "log as text": ({RATE: {"float": [0.1, 1.0], "log": "yes"}}, "log: found yes. Allowed: true or false"),
    "step and log": ({BATCH: {"int": [1, 9], "step": 2, "log": True}}, "found step and log: true. Allowed: one of"),
    "step too large": ({BATCH: {"int": [1, 9], "step": 20}}, "step: found 20. Allowed: a number above 0, at most 8"),
    "step zero": ({RATE: {"float": [0.1, 0.2], "step": 0}}, "step: found 0. Allowed: a number above 0"),
    "when as text": ({MOMENTUM: {"float": [0.8, 0.9], "when": "sgd"}}, "when: found sgd. Allowed: {KEY: VALUE}"),
    "when of an unknown key": ({MOMENTUM: {"float": [0.8, 0.9], "when": {"x.y": 1}}}, "when: x.y: unknown key"),
    "when of a range": (
        {MOMENTUM: {"float": [0.8, 0.9], "when": {RATE: 0.1}}, RATE: {"float": [0.1, 0.2]}},
        "when: training.learning_rate is a range in the space",
    ),
    "when never": (
        {MOMENTUM: {"float": [0.8, 0.9], "when": {OPTIMIZER: "muon"}}, OPTIMIZER: {"choice": ["adamw", "sgd"]}},
        "when: training.optimizer is never muon. Allowed: [adamw, sgd]",
    ),
    "when of no value": ({MOMENTUM: {"float": [0.8, 0.9], "when": {OPTIMIZER: []}}}, "found an empty list"),
    "when of a wrong value": ({MOMENTUM: {"float": [0.8, 0.9], "when": {OPTIMIZER: "sdg"}}}, "found 'sdg'. Allowed:"),
    "when in a circle": (
        {OPTIMIZER: {"choice": ["sgd"], "when": {"training.flip": "none"}},
         "training.flip": {"choice": ["none"], "when": {OPTIMIZER: "sgd"}}},
        "depend on each other in a circle. Fix: remove one `when`",
    ),
    "the seed": ({"seed": {"int": [0, 9]}}, "the best of several seeds is chance"),
    "data": ({"data.image_size": {"choice": [8, 16]}}, "would change the data of some trials"),
    "no weight": ({"training.workers": {"choice": [0, 1]}}, "changes no weight of the model"),
    "another section": ({"search.trials": {"choice": [1, 2]}}, "changes no weight of the model"),
    "the measure": ({"training.best": {"choice": ["auto"]}}, "decides what counts as good"),
    "the length, with rungs": ({"training.epochs": {"int": [1, 9]}}, "`ratchet set search.pruner=median`"),
}  # fmt: skip


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_in_the_space_is_refused(name: str) -> None:
    space, expected = NONSENSE[name]
    texts = messages(space)
    assert texts
    assert expected in texts[0]
    assert all(text.startswith("search.space: ") for text in texts)
    assert all(len(text) < 1000 for text in texts)


METHODS: dict[str, tuple[dict[str, Any], str]] = {
    "test metric": ({"objective": "test/accuracy"}, "search.objective: found 'test/accuracy'. Allowed: auto"),
    "no objective": ({"objective": []}, "search.objective: found []"),
    "rungs of several": ({"objective": ["validation/loss", "parameters"], "pruner": "hyperband"}, "pruner=none`"),
    "grid without end": ({"sampler": "grid"}, "search.sampler: found grid, and training.learning_rate has no end"),
    "a sampler with pickles": (
        {"sampler": "cma-es"},
        "search.sampler: found 'cma-es'. Allowed: tpe, random, grid or gp",
    ),
    "parent folder": ({"study": ".."}, "search.study: found '..'. Allowed: name of the study, of letters, digits"),
    "hidden": ({"study": ".git"}, "search.study: found '.git'"),
    "an option": ({"study": "--help"}, "search.study: found '--help'"),
    "a path": ({"study": "a/b"}, "search.study: found 'a/b'"),
    "two lines": ({"study": "a\n"}, "search.study: found 'a\\n'"),
    "too long": ({"study": "a" * 65}, "search.study: found 'aaa"),
    "markup": ({"study": "[red]x"}, "search.study: found '[red]x'"),
    "no trials": ({"trials": 0}, "search.trials: found 0. Allowed: a whole number, at least 1"),
    "negative hours": ({"hours": -1.0}, "search.hours: found -1.0"),
    "lease without a moment": ({"lease": 0.001}, "search.lease: found 1.0e-3. Allowed: a finite number, at least 1.0"),
    "memory of a process": ({"storage": "sqlite://"}, "search.storage: found sqlite://, which is in the memory of one"),
    "no winner": ({"winner": "x"}, "search.winner: found 'x'"),
}


@pytest.mark.parametrize("name", METHODS)
def test_nonsense_in_the_method_is_refused(name: str) -> None:
    search, expected = METHODS[name]
    texts = messages({RATE: {"float": [0.1, 0.2]}}, **search)
    assert texts
    assert any(expected in text for text in texts), texts


def test_a_grid_with_too_many_points_is_refused() -> None:
    """Its points are not counted one by one, which takes hours."""
    (text,) = messages({BATCH: {"int": [1, 10**9]}, RATE: {"float": [0.0001, 0.1], "step": 1e-9}}, sampler="grid")
    assert "points. Allowed with grid: at most 100,000. Fix: larger steps" in text
    assert messages({BATCH: {"int": [1, 10**9]}}) == []


def test_a_large_space_is_checked_in_a_moment() -> None:
    keys = [key for key in settings_errors.dotted_keys(Params) if key.startswith("training.")]
    space = {key: {"choice": [value]} for key, value in settings_errors.dotted_keys(Params).items() if key in keys}
    refused = messages(space)
    assert {text.split(": ")[1] for text in refused} < {*keys}
    space = {RATE: {"choice": [place / 1e4 for place in range(1, 1001)]}, BATCH: {"int": [1, 2**53]}}
    assert messages(space) == []


def test_lists_booleans_and_texts_are_values() -> None:
    space = {
        BETAS: {"choice": [[0.9, 0.99], [0.9, 0.999]]},
        "training.nesterov": {"choice": [True, False], "when": {BETAS: [[0.9, 0.99]]}},
        "training.channels_last": {"choice": ["auto", True]},
        OPTIMIZER: {"choice": ["adamw", "sgd"]},
    }
    assert messages(space) == []
    params = Params.model_validate({"search": {"space": space}})
    dimensions = parse_space(params)
    assert [dimension.key for dimension in dimensions].index(BETAS) == 0
    nested = next(dimension for dimension in dimensions if dimension.key == "training.nesterov")
    assert nested.is_active({BETAS: (0.9, 0.99)}, params)
    assert not nested.is_active({BETAS: (0.9, 0.999)}, params)
    assert present_values(dimensions, params) == {
        BETAS: (0.9, 0.999), "training.channels_last": "auto", OPTIMIZER: "adamw"
    }  # fmt: skip
    changed = apply(params, {BETAS: [0.9, 0.99], "training.nesterov": False, "seed": 3})
    assert (changed.training.betas, changed.training.nesterov, changed.seed) == ((0.9, 0.99), False, 3)


def test_ends_of_a_range_are_its_first_and_last_value() -> None:
    space = {
        BATCH: {"int": [1, 8], "step": 3},
        RATE: {"float": [0.1, 0.75], "step": 0.2},
        MOMENTUM: {"float": [0, 0.9]},
    }
    batch, rate, momentum = parse_space(Params.model_validate({"search": {"space": space}}))
    assert (batch.size, batch.ends) == (3, (1, 7))
    assert (rate.size, rate.ends) == (4, (0.1, 0.7))
    assert (momentum.size, momentum.ends) == (None, (0.0, 0.9))


@pytest.fixture
def params_file(tmp_path):
    """The shipped params.yaml, in a folder of its own."""
    from conftest import REPOSITORY

    path = tmp_path / "params.yaml"
    path.write_bytes((REPOSITORY / "params.yaml").read_bytes())
    return path


def test_a_space_can_be_set_on_the_command_line(params_file) -> None:
    """Written as YAML, it is checked as one in the file."""
    given = "search.space={training.learning_rate: {float: [1.0e-4, 1.0e-1], log: true}}"
    settings.override(params_file, settings.parse_assignments([given]))
    assert parse_space(settings.load(params_file))[0].log
    for wrong, expected in (
        ("search.space=5", "search.space: found 5. Allowed: {NAME: VALUE, ...}"),
        ("search.space={training.learning_rat: {float: [0.1, 1.0]}}", "Did you mean training.learning_rate?"),
        ("search.space.training.learning_rate=5", "search.space.training.learning_rate"),
    ):
        before = params_file.read_bytes()
        with pytest.raises(SettingsError) as refused:
            settings.override(params_file, settings.parse_assignments([wrong]))
        assert expected in str(refused.value)
        assert params_file.read_bytes() == before


def test_a_key_that_is_twice_in_the_space_is_refused(params_file) -> None:
    twice = "space:\n    training.learning_rate: {choice: [0.1]}\n    training.learning_rate: {choice: [0.2]}"
    params_file.write_text(params_file.read_text().replace("space: {}", twice, 1))
    with pytest.raises(SettingsError, match="learning_rate"):
        settings.load(params_file)


def test_a_password_in_the_storage_is_refused(params_file) -> None:
    change = {"search.storage": "postgresql://me:hunter2@db/search"}
    with pytest.raises(SettingsError) as refused:
        settings.override(params_file, change)
    assert "search.storage: found postgresql://me:***@db/" in str(refused.value)
    assert "hunter2" not in str(refused.value)
