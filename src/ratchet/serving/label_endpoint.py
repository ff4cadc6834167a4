"""POST /v1/labels: true values of rows that the server has answered."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial

import orjson
from starlette.responses import Response

from ratchet.kinds.protocol import go_on
from ratchet.problems import Target
from ratchet.problems.named_answers import named_answers
from ratchet.serving.handler import Call, Endpoint, RequestHandler
from ratchet.serving.http_request import Refused, json_response
from ratchet.serving.lifetime import Lifetime
from ratchet.serving.versions.loaded import LoadedVersion
from ratchet.serving.worker_thread import Worker
from ratchet.traffic.label_store import LabelStore, Stored
from ratchet.traffic.schema import target_id

__all__ = ["LabelEndpoint"]

_LOG = logging.getLogger(__name__)
_MOST = 100_000  # labels of a request
_FORM = '{"labels": [{"id": ID of the answer, "row": 0, "label": true value}, ...]}'


class LabelEndpoint(Endpoint):
    """Checks labels against the served version's target and the request log, and stores them: all or none."""

    late = "the labels were not stored within the deadline"
    asks_model = False

    def __init__(self, handler: RequestHandler, store: LabelStore | None) -> None:
        """`store` is None where the server keeps no request log."""
        super().__init__(handler, "labels")
        self._store, self.worker = store, Worker("labels")

    def version(self, call: Call) -> LoadedVersion:
        """Return the served version, whose answers get the labels.

        Raises:
            Refused: there is none, its problem has no labels, or there is no request log.
        """
        if self._store is None:
            raise Refused(404, "the request log is off, so labels have no answers. Fix: `serving.log: true`")
        loaded = self.handler.version_for(call.path)
        if not named_answers(loaded.spec.target).takes_labels:
            problem = loaded.spec.target.problem
            raise Refused(400, f"found a model of {problem}; labels are allowed for classes and numbers")
        return loaded

    async def answer(
        self, loaded: LoadedVersion, body: bytes, call: Call, lifetime: Lifetime, limit: asyncio.Timeout
    ) -> Response:
        """Answer with the numbers of new, corrected and known labels."""
        assert self._store, "`version` checks it"
        lift = partial(_lift, limit, asyncio.get_running_loop())
        add = partial(self._add, self._store, body, loaded.spec.target, lifetime.check, lift)
        try:
            return json_response(asdict(await self.worker.run(add, lifetime)))
        except FileNotFoundError:
            raise Refused(503, "the request log is being merged", {"Retry-After": "1"}) from None
        except OSError as error:
            if error.errno is None:  # the deadline has passed
                raise
            _LOG.error("labels cannot be stored: %s", error)
            raise Refused(503, f"the labels cannot be stored now ({error.strerror})", {"Retry-After": "10"}) from None

    def _add(
        self,
        store: LabelStore,
        body: bytes,
        target: Target,
        check: Callable[[], None],
        lift: Callable[[], None] = go_on,
    ) -> Stored:
        labels = _read(body, target)
        logged = store.logged({answer for answer, _ in labels}, check)
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
        check()
        return store.add(labels, problem=target.problem, days=self.handler.settings.log_days, begin=lift)


def _lift(limit: asyncio.Timeout, loop: asyncio.AbstractEventLoop) -> None:
    """Let no deadline end a request whose labels are stored now: its answer would be that they are not. In any thread.

    Raises:
        TimeoutError: it has ended already.
    """
    lifted: Future[bool] = Future()

    def lift() -> None:
        try:
            limit.reschedule(None)
        except RuntimeError:
            lifted.set_result(False)
        else:
            lifted.set_result(True)

    loop.call_soon_threadsafe(lift)
    if not lifted.result():
        raise TimeoutError


def _read(body: bytes, target: Target) -> dict[tuple[str, int], list[float]]:
    """Return the labels of a body, by (answer, row).

    Raises:
        Refused: there are too many, or one is wrong.
    """
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"the body is not JSON ({error}); allowed: {_FORM}") from None
    entries = content.get("labels") if isinstance(content, dict) and set(content) == {"labels"} else None
    if not isinstance(entries, list) or not entries:
        raise Refused(400, f"found no list of labels; allowed: {_FORM}")
    if len(entries) > _MOST:
        raise Refused(
            413, f"found {len(entries):,} labels; allowed: {_MOST:,} in one request. Fix: send several requests"
        )
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
