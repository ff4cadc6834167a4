"""Texts of alerts, by Prefect's own renderer."""

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
