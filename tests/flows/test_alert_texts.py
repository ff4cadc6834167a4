"""Texts of alerts, by Prefect's own renderer."""

import re
from pathlib import Path
from types import SimpleNamespace

import prefect.server.events.jinja_filters as filters
import pytest
from prefect.server.utilities.user_templates import register_user_template_filters, render_user_template_sync

from flows.server.alert_rules import ALERT_RULES


@pytest.mark.parametrize(
    ("deployment", "advice"),
    [
        (SimpleNamespace(name="local"), "`prefect flow-run retry 7`, which runs it with the same parameters"),
        (None, "start it again as before"),
    ],
)
@pytest.mark.parametrize("kind", ["failed-run", "failed-data-load"])
def test_alert_names_a_retry_only_where_prefect_can(kind: str, deployment: object, advice: str) -> None:
    """Prefect retries the runs of deployments, not those of `ratchet train`."""
    register_user_template_filters(filters.all_filters)
    event = {"resource": {
        "prefect.resource.id": "prefect.flow-run.7", "prefect.resource.name": "digits", "prefect.state-message": "full",
    }}  # fmt: skip
    context = {"event": event, "flow": SimpleNamespace(name="train-flow"), "deployment": deployment, "flow_run": None}
    [rule] = [rule for rule in ALERT_RULES if rule.kind == kind]
    text = render_user_template_sync(rule.body, context)
    assert f"then {advice}" in text
    assert ("retry" in text) == bool(deployment)


def test_docs_list_every_alert_and_its_kind() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operate.md").read_text()
    table = text.partition("| alert | when |\n|---|---|\n")[2].partition("\n\n")[0]
    names = [line.split("|")[1].strip() for line in table.splitlines()]
    assert sorted(names) == sorted(rule.name.removeprefix("Ratchet: ") for rule in ALERT_RULES)
    kinds = re.findall("`([a-z-]+)`", text.partition("`kind` is ")[2].partition(". ")[0])
    assert sorted(kinds) == sorted(rule.kind for rule in ALERT_RULES)
    assert len(ALERT_RULES) == 7  # docs: "these seven", "removes the seven"
