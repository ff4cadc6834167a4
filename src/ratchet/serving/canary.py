"""Canary: another version answers a share of the live requests, until it is significantly worse."""

import hashlib
import json
import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet import files
from ratchet.serving.handler import ServedRequest
from ratchet.serving.sequential import MoreErrors, Slower
from ratchet.serving.versions.alias_watcher import AliasWatcher
from ratchet.serving.versions.batching import Batcher
from ratchet.serving.versions.loaded import LoadedVersion, can_replace
from ratchet.settings.model import ServingSettings

__all__ = ["STICKY_HEADER", "Canary"]

_LOG = logging.getLogger(__name__)
STICKY_HEADER = "x-canary-key"
_ALPHA = 0.005  # of each of the two tests: a version that is not worse is withdrawn with a probability of 1 % at most
_SPAN = 1.0  # seconds in which one outcome of a client counts for each version
_CLIENTS = 4096  # that are remembered, before those of earlier spans are forgotten
_PAIRS = 256  # requests that wait for one of the other version


@dataclass
class _Trial:
    """Measurements of a canary beside one served version."""

    run_id: str
    served: str
    errors: MoreErrors
    slower: Slower
    outcomes: dict[bool, deque[bool]] = field(  # requests without a partner: is it the canary's -> has it failed
        default_factory=lambda: {is_canary: deque(maxlen=_PAIRS) for is_canary in (False, True)}
    )
    seconds: dict[tuple[bool, str, int], float] = field(default_factory=dict)  # the latest, by envelope and size
    requests: int = 0  # that the canary has answered
    counted: dict[tuple[str, bool], float] = field(default_factory=dict)  # time of a client's latest outcome


class Canary:
    """The version of serving.canary, with a queue and a thread of its own, so that it cannot hold up the served one.

    Attributes:
        watcher: of the version.
        withdrawn: why the version gets no requests any more; empty: it does.
    """

    def __init__(
        self,
        watcher: AliasWatcher,
        settings: ServingSettings,
        record: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the thread.

        Args:
            watcher: of the version.
            settings: of the server.
            record: file of the latest withdrawal, which stays valid after a restart.
            clock: returns the time in seconds.
        """
        self.watcher, self.settings, self.withdrawn = watcher, settings, ""
        self.batcher = Batcher(queue_rows=settings.queue)
        self._record, self._clock = record, clock
        self._before = _read(record)
        self._trial: _Trial | None = None

    def version_for(self, headers: Mapping[str, str], key: str, served: LoadedVersion) -> LoadedVersion:
        """Return the version that answers a request: the canary for its share, else the served one.

        `headers` are by names in lower case; `key` is the name of the API key, or empty.
        """
        loaded = self.watcher.current
        if loaded is None or loaded.identity.run_id == served.identity.run_id or self.problem(served):
            return served
        self._follow(loaded, served)
        place = _place(headers.get(STICKY_HEADER) or key, loaded.identity.run_id)
        return served if self.withdrawn or place >= self.settings.canary_share else loaded

    def problem(self, served: LoadedVersion | None) -> str:
        """Return why the version cannot answer requests to the served one; empty: it can."""
        loaded = self.watcher.current
        if loaded is None or not self.watcher.is_named:
            return f"serving.canary: {self.watcher.problem}"
        if served is not None and not can_replace(served, loaded):
            return f"serving.canary: {loaded.identity} has another input or target than {served.identity}"
        return ""

    @property
    def state(self) -> dict[str, Any]:
        """Content for /v1/models."""
        loaded, trial = self.watcher.current, self._trial
        about: dict[str, Any] = {"version": str(loaded.identity) if loaded else None}
        if trial:
            errors, slower = trial.errors, trial.slower
            about |= {
                "share": 0.0 if self.withdrawn else self.settings.canary_share,
                "requests": trial.requests,
                "errors": {"pairs": errors.pairs, "canary": errors.errors[0], "served": errors.errors[1]},
                "latency": {"pairs": slower.pairs, "slower": slower.slower},
            }
        return about | {"withdrawn": self.withdrawn or None, "problem": self.watcher.problem or None}

    def answered(self, answered: ServedRequest) -> None:
        """Count an answered request; returns at once."""
        is_canary = self._is_canary(answered.loaded)
        if is_canary is None:
            return
        assert self._trial
        self._trial.requests += is_canary
        if not self._counts(is_canary, answered.call.client):
            return
        self._add(is_canary, False)
        if answered.answer.instead:  # it was overloaded: these are not its seconds
            return
        kind = (answered.call.envelope, answered.request.rows.bit_length())
        partner = self._trial.seconds.pop((not is_canary, *kind), None)
        if partner is None:
            self._trial.seconds[is_canary, *kind] = answered.model_seconds
            return
        pair = (answered.model_seconds, partner) if is_canary else (partner, answered.model_seconds)
        self._trial.slower.add(*pair)
        self._judge()

    def failed(self, loaded: LoadedVersion, client: str) -> None:
        """Count a request of a client that the version has not answered, by its own or the server's fault."""
        is_canary = self._is_canary(loaded)
        if is_canary is not None and self._counts(is_canary, client):
            self._add(is_canary, True)
            self._judge()

    def _counts(self, is_canary: bool, client: str) -> bool:
        """Return whether this outcome counts: one of each client in a span of time, so that none decides alone."""
        assert self._trial
        counted, now = self._trial.counted, self._clock()
        if now < counted.get((client, is_canary), -math.inf) + _SPAN:
            return False
        if len(counted) >= _CLIENTS:
            self._trial.counted = counted = {key: latest for key, latest in counted.items() if now < latest + _SPAN}
        counted[client, is_canary] = now
        return True

    def close(self) -> None:
        """Drop what waits, and delete the version's files."""
        self.batcher.close()
        self.watcher.close()

    def _is_canary(self, loaded: LoadedVersion) -> bool | None:
        """Return whether a version of this trial is the canary; None: it is of another trial."""
        trial = self._trial
        if trial is None or self.withdrawn or loaded.identity.run_id not in (trial.run_id, trial.served):
            return None
        return loaded.identity.run_id == trial.run_id

    def _add(self, is_canary: bool, failed: bool) -> None:
        assert self._trial
        outcomes = self._trial.outcomes
        outcomes[is_canary].append(failed)
        if outcomes[not is_canary]:
            self._trial.errors.add(outcomes[True].popleft(), outcomes[False].popleft())

    def _follow(self, loaded: LoadedVersion, served: LoadedVersion) -> None:
        """Begin another trial when one of the two versions has changed."""
        identity, beside = loaded.identity, served.identity.run_id
        if self._trial is None or (self._trial.run_id, self._trial.served) != (identity.run_id, beside):
            self._trial = _Trial(identity.run_id, beside, MoreErrors(), Slower(self.settings.canary_latency))
            self.withdrawn = self._before.get("reason", "") if self._same_trial(identity.run_id) else ""

    def _same_trial(self, run_id: str) -> bool:
        """Whether the recorded withdrawal is of this trial. One that cannot be read may be."""
        before = self._before
        return bool(before) and ("run" not in before or before == self._content(run_id, before["reason"]))

    def _judge(self) -> None:
        trial, loaded = self._trial, self.watcher.current
        assert trial
        if trial.errors.evidence >= 1 / _ALPHA:
            ours, others = trial.errors.errors
            reason = (
                f"{ours} of its requests failed, and {others} of the served version's, of {trial.errors.pairs} each"
            )
        elif trial.slower.evidence >= 1 / _ALPHA:
            reason = (
                f"it needed more than {trial.slower.factor:g} times the seconds of the served version "
                f"in {sum(trial.slower.latest)} of the latest {len(trial.slower.latest)} pairs of requests "
                "(serving.canary_latency)"
            )
        else:
            return
        self.withdrawn = reason
        self._before = self._content(trial.run_id, reason)
        _LOG.error("the canary %s is withdrawn: %s", loaded.identity if loaded else "", reason)
        try:
            files.write_text(self._record, json.dumps(self._before))
        except OSError as error:  # the disk is full: it is withdrawn until a restart
            _LOG.error("%s cannot be written: %s", self._record, error)

    def _content(self, run_id: str, reason: str) -> dict[str, Any]:
        given = self.settings
        return {"run": run_id, "reason": reason, "share": given.canary_share, "latency": given.canary_latency}


def _place(key: str, run_id: str) -> float:
    """Return a number from 0 to 1: equal for equal keys, by chance for a request without one."""
    if not key:
        return random.random()
    digest = hashlib.blake2b(f"{run_id} {key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _read(record: Path) -> dict[str, Any]:
    """Return the latest withdrawal: nothing if there was none, and the reason alone if it cannot be read."""
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
        return {"run": content["run"], **content, "reason": content["reason"]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"the record of the latest withdrawal, {record}, cannot be read ({error})"
        _LOG.error("%s: no canary answers. Fix: make it readable, or delete it, and start the server again", reason)
        return {"reason": reason}
