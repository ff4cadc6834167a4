"""Alert rules: the kinds of alerts, the events that trigger them, and the Jinja templates of their messages.

Prefect's server renders the templates with the event and the run that it is about.
"""

from dataclasses import dataclass

from prefect.events.schemas.automations import EventTrigger, Posture

from flows.server.pressure_events import PRESSURE
from flows.server.serving_events import NOT_SERVED, WITHDRAWN

__all__ = ["ALERT_RULES", "DRIFT", "AlertRule"]

DRIFT = "ratchet.drift.detected"
_COOL_DOWN = 3600  # seconds in which the same alert for the same machine or model is sent once


@dataclass(frozen=True)
class AlertRule:
    """One kind of alert.

    Attributes:
        name: of the automation on Prefect's page.
        variables: Jinja that sets subject, message, what (it is about), page and todo (what to do next).
    """

    kind: str
    name: str
    description: str
    trigger: EventTrigger
    variables: str

    @property
    def payload(self) -> str:
        """Return the template of a webhook's JSON."""
        return self._variables + _PAYLOAD.replace("KIND", self.kind)

    @property
    def subject(self) -> str:
        """Return the template of an e-mail's subject."""
        return self._variables + "Ratchet: {{ subject }}"

    @property
    def body(self) -> str:
        """Return the template of an e-mail's text."""
        return self._variables + _BODY

    @property
    def _variables(self) -> str:
        return self.variables.replace("%}\n", "%}")  # the template's line breaks must not appear in the message


def _on_runs(*states: str) -> EventTrigger:
    return EventTrigger(
        posture=Posture.Reactive,
        expect={f"prefect.flow-run.{state}" for state in states},
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related={"prefect.resource.id": "prefect.tag.ratchet", "prefect.resource.role": "tag"},
        threshold=1,
        within=0,
    )


def _on_event(
    kind: str,
    name: str,
    description: str,
    event: str,
    *,
    about: tuple[str, str],  # in the name of its resource, and for people
    subject: str,
    message: str,
    todo: str,
) -> AlertRule:
    """Return the rule of one of our events. Its payload may have a message and a next step of its own."""
    trigger = EventTrigger(
        posture=Posture.Reactive,
        expect={event},
        match={"prefect.resource.id": f"ratchet.{about[0]}.*"},
        for_each={"prefect.resource.id"},
        threshold=1,
        within=_COOL_DOWN,
    )
    sent = f"Sent at most once an hour for the same {about[1]}. Created by `ratchet up`."
    variables = _EVENT.replace("SUBJECT", subject).replace("MESSAGE", message).replace("TODO", todo)
    return AlertRule(kind, f"Ratchet: {name}", f"{description}. {sent}", trigger, variables)


_EVENT = """\
{% set what = event.resource["prefect.resource.name"] or event.resource["prefect.resource.id"] %}
{% set subject = "SUBJECT: " ~ what %}
{% set message = event.payload.message or MESSAGE %}
{% set page = (event | ui_url) or "" %}
{% set todo = event.payload.next or "TODO" %}
"""
_RUN = """\
{% set place = flow.name ~ ("/" ~ deployment.name if deployment else "") %}
{% set what = "run " ~ event.resource["prefect.resource.name"] ~ " of " ~ place %}
{% set message = event.resource["prefect.state-message"] or event.resource["prefect.state-name"] %}
{% set page = (flow_run | ui_url) or "" %}
{% set id = event.resource["prefect.resource.id"] | replace("prefect.flow-run.", "") %}
{% set retry = "`prefect flow-run retry " ~ id ~ "`, which runs it with the same parameters" %}
{% set again = retry if deployment else "start it again as before" %}
"""

ALERT_RULES = (
    AlertRule(
        "failed-run",
        "Ratchet: a run failed",
        "A run of train-flow or another of Ratchet's flows failed, crashed or timed out. Created by `ratchet up`.",
        _on_runs("Failed", "Crashed", "TimedOut"),
        _RUN
        + """\
{% set subject = event.resource["prefect.state-name"] ~ ": " ~ what %}
{% set todo = "read the run's log on that page and fix what the message names, then " ~ again ~ ". Finished stages are \
not repeated, and a training continues at its last checkpoint" %}
""",
    ),
    AlertRule(
        "failed-data-load",
        "Ratchet: the data could not be loaded",
        "The ingest stage of train-flow failed: its source cannot be read, or too much of it is bad. Nothing was "
        "trained. Created by `ratchet up`.",
        _on_runs("DataLoadFailed"),
        _RUN
        + """\
{% set subject = "Data load failed: " ~ what %}
{% set todo = "fix the source or the data settings as the message says (`ratchet data quarantine` lists samples that \
were refused), then " ~ again %}
""",
    ),
    AlertRule(
        "labels-needed",
        "Ratchet: labels are needed",
        "train-flow has trained nothing, because fewer than monitoring.min_labels new requests have labels. Created by "
        "`ratchet up`.",
        _on_runs("LabelsNeeded"),
        _RUN
        + """\
{% set subject = "Labels needed: " ~ what %}
{% set todo = "do what the message says, mostly to POST labels to /v1/labels. The next run of monitor-flow starts the \
training when they are there" %}
""",
    ),
    _on_event(
        "machine-pressure",
        "the machine runs short",
        f"Free disk, memory or GPU memory passed the limit in params.yaml (event {PRESSURE})",
        PRESSURE,
        about=("machine", "resource"),
        subject="Running short",
        message='(what ~ " runs short")',
        todo="look at that machine",
    ),
    _on_event(
        "version-not-served",
        "a version cannot be served",
        f"The model server refused a new champion, and answers with the one before (event {NOT_SERVED})",
        NOT_SERVED,
        about=("served", "version"),
        subject="Not served",
        message='(what ~ " cannot be served")',
        todo="`ratchet status` names the reason",
    ),
    _on_event(
        "canary-withdrawn",
        "a canary was withdrawn",
        f"The model server gives no more requests to the version of serving.canary, because it is worse (event "
        f"{WITHDRAWN})",
        WITHDRAWN,
        about=("served", "version"),
        subject="Canary withdrawn",
        message='(what ~ " is withdrawn")',
        todo="do not promote it before its cause is known",
    ),
    _on_event(
        "drift",
        "the data drifted",
        f"The data that a model sees differs from its training data (event {DRIFT})",
        DRIFT,
        about=("model", "model"),
        subject="Drift",
        message='("The data that " ~ what ~ " sees differs from its training data")',
        todo="do not rely on its predictions without checking them. The same event starts train-flow/on-drift, which "
        "trains what is committed, with the logged requests that have labels",
    ),
)

_BODY = """\
{{ message }}

What:       {{ what }}
Page:       {{ page }}
What to do: {{ todo }}
"""

_PAYLOAD = """\
{
  "text": {{ (subject ~ "\\n" ~ message ~ "\\n" ~ page ~ "\\nWhat to do: " ~ todo) | tojson }},
  "kind": "KIND",
  "subject": {{ subject | tojson }},
  "message": {{ message | tojson }},
  "what": {{ what | tojson }},
  "page": {{ page | tojson }},
  "next": {{ todo | tojson }},
  "occurred": {{ event.occurred.isoformat() | tojson }}
}"""
