"""The kinds of trouble that somebody is told of: when Prefect's server does it, and in which words.

The words are Jinja, which that server fills in with the event and the run it is about.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.platform.pressure import EVENT

__all__ = ["TROUBLES", "Trouble"]

_DRIFT = "ratchet.drift.detected"
_COOL_DOWN = 3600  # seconds in which the same trouble of the same machine or model is told once


@dataclass(frozen=True)
class Trouble:
    """One kind of trouble.

    Attributes:
        trigger: as Prefect's API takes it.
        names: Jinja that sets subject, message, what, page and todo: what happened, to what, and what to do next.
    """

    kind: str
    name: str
    description: str
    trigger: Mapping[str, Any]
    names: str

    @property
    def payload(self) -> str:
        """What a webhook gets, as JSON."""
        return self._set + _PAYLOAD.replace("KIND", self.kind)

    @property
    def subject(self) -> str:
        """Of an e-mail."""
        return self._set + "Ratchet: {{ subject }}"

    @property
    def letter(self) -> str:
        """The e-mail itself."""
        return self._set + _LETTER

    @property
    def _set(self) -> str:
        return self.names.replace("%}\n", "%}")  # the template's lines are not the message's


def _of_runs(*states: str) -> dict[str, Any]:
    return {
        "type": "event",
        "posture": "Reactive",
        "expect": [f"prefect.flow-run.{state}" for state in states],
        "match": {"prefect.resource.id": "prefect.flow-run.*"},
        "match_related": {"prefect.resource.id": "prefect.tag.ratchet", "prefect.resource.role": "tag"},
        "for_each": [],
        "threshold": 1,
        "within": 0,
    }


def _of_events(name: str, resource: str) -> dict[str, Any]:
    return {
        "type": "event",
        "posture": "Reactive",
        "expect": [name],
        "match": {"prefect.resource.id": resource},
        "match_related": {},
        "for_each": ["prefect.resource.id"],
        "threshold": 1,
        "within": _COOL_DOWN,
    }


_RUN = """\
{% set place = flow.name ~ ("/" ~ deployment.name if deployment else "") %}
{% set what = "run " ~ event.resource["prefect.resource.name"] ~ " of " ~ place %}
{% set message = event.resource["prefect.state-message"] or event.resource["prefect.state-name"] %}
{% set page = (flow_run | ui_url) or "" %}
{% set again = "`prefect deployment run " ~ place ~ "`" if deployment else "start it again" %}
"""

TROUBLES = (
    Trouble(
        "failed-run",
        "Ratchet: a run failed",
        "A run of train-flow or another of Ratchet's flows failed, crashed or took too long. Made by `ratchet up`.",
        _of_runs("Failed", "Crashed", "TimedOut"),
        _RUN
        + """\
{% set subject = event.resource["prefect.state-name"] ~ ": " ~ what %}
{% set todo = "read the run's log on that page and mend what the message names, then " ~ again ~ ": stages that are \
done are not done again, and a training goes on at its last checkpoint" %}
""",
    ),
    Trouble(
        "failed-data-load",
        "Ratchet: the data could not be loaded",
        "The ingest stage of train-flow failed: its source cannot be read, or too much of it is bad. Nothing was "
        "trained. Made by `ratchet up`.",
        _of_runs("DataLoadFailed"),
        _RUN
        + """\
{% set subject = "Data load failed: " ~ what %}
{% set todo = "mend the source or the data settings as the message says (`ratchet data quarantine` lists samples that \
were refused), then " ~ again %}
""",
    ),
    Trouble(
        "machine-pressure",
        "Ratchet: the machine runs short",
        f"Free disk, memory or GPU memory passed the limit in params.yaml (event {EVENT}); the same thing is told once "
        "an hour at most. Made by `ratchet up`.",
        _of_events(EVENT, "ratchet.machine.*"),
        """\
{% set what = event.resource["prefect.resource.name"] or event.resource["prefect.resource.id"] %}
{% set subject = "Running short: " ~ what %}
{% set message = event.payload.message or (what ~ " runs short") %}
{% set page = (event | ui_url) or "" %}
{% set todo = event.payload.next or "look at that machine" %}
""",
    ),
    Trouble(
        "drift",
        "Ratchet: the data drifted",
        f"What a model sees is no longer what it was trained on (event {_DRIFT}); the same model is told of once "
        "an hour at most. Made by `ratchet up`.",
        _of_events(_DRIFT, "ratchet.model.*"),
        """\
{% set what = event.resource["prefect.resource.name"] or event.resource["prefect.resource.id"] %}
{% set subject = "Drift: " ~ what %}
{% set message = event.payload.message or ("The data that " ~ what ~ " sees is not what it was trained on any more") %}
{% set page = (event | ui_url) or "" %}
{% set todo = event.payload.next or "do not trust its answers blindly; the same event starts train-flow/on-drift, \
which trains what is committed: see that new data is there for it" %}
""",
    ),
)

_LETTER = """\
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
