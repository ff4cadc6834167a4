"""POST /v1/labels: true values of rows that the server has answered."""

import asyncio
import logging
import time
from dataclasses import asdict
from functools import partial

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ratchet.problems import Target
from ratchet.serving.answering import Answering, Call
from ratchet.serving.lifetime import Lifetime
from ratchet.serving.named_answers import named_answers
from ratchet.serving.requests import Refused, error_response, json_response
from ratchet.serving.versions.batching import Overloaded
from ratchet.serving.worker import Worker
from ratchet.traffic.labels import LabelStore, Stored
from ratchet.traffic.schema import target_id

__all__ = ["Labelling"]

_LOG = logging.getLogger(__name__)
_FORM = '{"labels": [{"id": ID of the answer, "row": 0, "label": true value}, ...]}'
_RETRY = {"Retry-After": "1"}


class Labelling:
    """Checks labels against the served version's target and the request log, and stores them: all or none."""

    def __init__(self, answering: Answering, store: LabelStore | None) -> None:
        """`store` is None where the server keeps no request log."""
        self._answering, self._store, self.worker = answering, store, Worker("labels")

    async def endpoint(self, request: Request) -> Response:
        """Answer with the numbers of new, corrected and known labels."""
        body = None
        try:
            if self._store is None:
                raise Refused(404, "the request log is off, so labels have no answers. Fix: `serving.log: true`")
            target = self._answering.version_for(request.path_params).spec.target
            if not named_answers(target).takes_labels:
                raise Refused(400, f"found a model of {target.problem}; labels are allowed for classes and numbers")
            call = Call.of("labels", request.scope, request.receive)
            deadline = call.began + self._answering.settings.deadline
            async with asyncio.timeout(deadline - time.monotonic()):
                with self._answering.bodies.hold() as held:
                    body = await held.read(call.receive, call.headers)
                    add = partial(self._add, self._store, body, target)
                    stored = await self.worker.run(add, Lifetime(deadline, call.has_left))
        except TimeoutError:
            if body is None:
                return error_response(Refused(408, "the body did not arrive within serving.deadline"))
            return error_response(Refused(503, "the labels were not stored within serving.deadline", _RETRY))
        except Overloaded:
            return error_response(Refused(503, "too many labels wait", _RETRY))
        except Refused as error:
            return error_response(error)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:  # of the disk, or of polars for a damaged file
            _LOG.exception("%s failed", request.url.path)
            return error_response(Refused(500, "the model server failed; its log has the cause"))
        return json_response(asdict(stored))

    def _add(self, store: LabelStore, body: bytes, target: Target) -> Stored:
        labels = _read(body, target)
        try:
            logged = store.logged({answer for answer, _ in labels})
        except FileNotFoundError:
            raise Refused(503, "the request log is being merged", {"Retry-After": "1"}) from None
        for answer, row in labels:
            known = logged.get((answer, row))
            if known is None:
                raise Refused(
                    404,
                    f"id {answer}, row {row}: not in the log. It has an answer some seconds after it was given, "
                    "until `serving.log_days`, and the share `serving.log_share` of them. Nothing was stored",
                )
            if known != target_id(target):
                raise Refused(
                    400,
                    f"id {answer}, row {row}: answered by a version with other outputs than the served one, or "
                    "in another order. Nothing was stored",
                )
        return store.add(labels, problem=target.problem, days=self._answering.settings.log_days)


def _read(body: bytes, target: Target) -> dict[tuple[str, int], list[float]]:
    """Return the labels of a body, by (answer, row).

    Raises:
        Refused: naming the entry, the value and what is allowed.
    """
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"the body is not JSON ({error}); allowed: {_FORM}") from None
    entries = content.get("labels") if isinstance(content, dict) and set(content) == {"labels"} else None
    if not isinstance(entries, list) or not entries:
        raise Refused(400, f"found no list of labels; allowed: {_FORM}")
    labels: dict[tuple[str, int], list[float]] = {}
    named = named_answers(target)
    for number, entry in enumerate(entries):
        name = f"labels[{number}]"
        if not isinstance(entry, dict) or not {"id", "label"} <= set(entry) <= {"id", "row", "label"}:
            raise Refused(400, f"{name}: allowed: id, row and label, as in {_FORM}")
        answer, row = entry["id"], entry.get("row", 0)
        if not isinstance(answer, str) or type(row) is not int or not 0 <= row < 2**31:
            raise Refused(400, f"{name}: found id {answer!r}, row {row!r}; allowed: a text and an integer from 0")
        if (answer, row) in labels:
            raise Refused(400, f"{name}: id {answer}, row {row} has two labels in one request; allowed: one")
        try:
            labels[answer, row] = named.label(entry["label"])
        except ValueError as error:
            raise Refused(400, f"{name}.label: found {entry['label']!r}; allowed: {error}") from None
    return labels
