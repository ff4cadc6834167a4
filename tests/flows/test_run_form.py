"""The form of train-flow's deployments: Prefect's schema of it, and Prefect's own check of what is sent."""

from collections.abc import Iterator
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import ValidationError, build_error_obj, validate

from flows.train import train_flow
from ratchet import settings
from ratchet.settings.model import Overrides, Params


@pytest.fixture(scope="module")
def form() -> dict[str, Any]:
    schema: dict[str, Any] = parameter_schema(train_flow).model_dump()
    return schema


def fields(form: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field of every group, by name."""
    for group in form["definitions"].values():
        yield from group["properties"].items()


@pytest.mark.parametrize(
    ("overrides", "field", "reason"),
    [
        ({"training": {"epochs": 0}}, "training.epochs", "0 is less than the minimum of 1"),
        ({"training": {"optimizer": "x"}}, "training.optimizer", "'x' is not one of ['sgd', 'adam', 'adamw', 'muon']"),
        ({"training": {"deterministic": "x"}}, "training.deterministic", "'x' is not one of [True, False]"),
        ({"training": {"class_weights": []}}, "training.class_weights", "[] should be non-empty"),
        ({"data": {"image_size": 3}}, "data.image_size", "3 is less than the minimum of 8"),
        ({"model": {"factory": "!"}}, "model.factory", "'!' does not match"),
        ({"training": {"loss": "mean"}}, "training.loss", "'mean' does not match"),
        ({"model": "convnet"}, "model", "'convnet' is not of type 'object'"),
    ],
)
def test_a_refusal_names_the_field_and_its_bound(
    overrides: dict[str, Any], field: str, reason: str, form: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as refused:  # what the API answers, and the page shows
        validate({"overrides": overrides}, form, raise_on_error=True)
    assert str(refused.value).startswith(f"Validation failed for field 'overrides.{field}'. Failure reason: {reason}")
    assert len(str(refused.value)) < 250


def test_a_refusal_is_at_its_field(form: dict[str, Any]) -> None:
    """Prefect's other check, by which a page can mark the field."""
    errors = build_error_obj(validate({"overrides": {"training": {"epochs": 0}}}, form))
    [overrides] = errors["errors"]
    [training] = overrides["errors"]
    assert training["errors"] == [{"property": "epochs", "errors": ["0 is less than the minimum of 1"]}]


def test_no_field_of_the_form_is_null_or_a_switch(form: dict[str, Any]) -> None:
    """Prefect's page sends false for an untouched switch."""
    known = dict(fields(form))
    assert len(known) > 80
    for name, field in known.items():
        alternatives = [field, *field.get("anyOf", [])]
        assert not [each for each in alternatives if each.get("type") in ("null", "boolean")], name
        assert "default" not in field, name
        assert "enum" in field or "$ref" in field or "type" in field or "anyOf" in field, name


def test_every_default_can_be_sent(form: dict[str, Any]) -> None:
    usual = Params().model_dump(mode="json")
    allowed: dict[str, Any] = {}
    for group, model in Overrides.model_fields.items():
        value = usual[group]
        if isinstance(value, dict):
            known = form["definitions"][f"{group.capitalize()}Overrides"]["properties"]
            value = {key: default for key, default in value.items() if key in known}
        allowed[group] = value
        assert model.description
    assert validate({"overrides": allowed, "revision": "main"}, form, raise_on_error=True) == []
    changes = settings.flatten(Overrides.model_validate(allowed))
    assert len(changes) > 80


def test_a_name_or_a_function_can_be_sent(form: dict[str, Any]) -> None:
    for loss, metric in (("mse", "accuracy"), ("own.losses:focal", "own.metrics:cost")):
        sent = {"training": {"loss": loss}, "gate": {"minimum_metric": metric}}
        assert validate({"overrides": sent}, form, raise_on_error=True) == []


def test_an_untouched_form_changes_nothing(form: dict[str, Any]) -> None:
    assert form["properties"]["overrides"]["default"] == {}
    assert form["properties"]["revision"]["default"] == ""
    assert validate({"overrides": {}, "revision": ""}, form, raise_on_error=True) == []
    assert settings.flatten(Overrides()) == {}
    assert settings.flatten(Overrides.model_validate({"training": {"deterministic": False}})) == {
        "training.deterministic": False
    }
