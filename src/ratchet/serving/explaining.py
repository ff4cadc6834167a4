"""`POST /v1/explain`: why the served version predicts what it predicts, for one row.

- Images: contributions of pixels (integrated gradients) to the best class against the second best.
- Tables: for each column, the output minus its mean with other training values in that column.
- Texts: for each word, the output minus that without the word.
"""

import asyncio
import base64
import contextlib
import importlib
import io
import logging
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from ratchet.errors import RatchetError
from ratchet.kinds import TableInput
from ratchet.kinds.protocol import Arrays, InputError
from ratchet.kinds.raw_values import texts_in
from ratchet.serving.formats.request_formats import (
    Answer,
    ModelRequest,
    RatchetFormat,
    as_json,
    encode_together,
    new_id,
    own_content,
)
from ratchet.serving.handler import Call, Endpoint, RequestHandler
from ratchet.serving.http_request import Refused, Reply
from ratchet.serving.lifetime import Lifetime
from ratchet.serving.versions.alias_watcher import AliasWatcher, PinnedVersion
from ratchet.serving.versions.batching import Raw
from ratchet.serving.versions.loaded import LoadedVersion
from ratchet.serving.versions.text_limit import check_texts
from ratchet.serving.worker_thread import Worker

__all__ = ["ExplainEndpoint", "column_variants"]

_LOG = logging.getLogger(__name__)
_CHARACTERS = 100_000  # of a text, which the model reads once for each word
_VALUES = 8  # other values of each column
_TOP = 5  # classes that are listed
_RETRY = {"Retry-After": "1"}


class ExplainEndpoint(Endpoint):
    """Answers requests for explanations, one at a time."""

    late = "it was not explained within the deadline"

    def __init__(self, handler: RequestHandler) -> None:
        super().__init__(handler, "explain")
        self._worker = Worker("explanations")

    async def answer(
        self, loaded: LoadedVersion, body: bytes, call: Call, lifetime: Lifetime, limit: asyncio.Timeout
    ) -> Response:
        """Return the answer to one row with its explanation."""
        about = loaded.spec.input.explanation
        if not about:
            raise InputError(
                f"models of kind {loaded.spec.input.kind} have no explanations; allowed: image, table, text"
            )
        if about == "pixels" and not loaded.spec.classes:
            raise InputError("explanations of images need a model with classes")
        if about != "columns" and not _has_torch(loaded):
            raise InputError(
                "explanations of images and texts need PyTorch and the model's weights, which are not here"
            )
        read = partial(self._read, body, call, loaded, lifetime)
        request, predictions, seconds = await self.handler.batcher_of(loaded).answer(
            loaded, Raw(read, len(body), encode_together), lifetime
        )
        best = int(np.argmax(predictions[0]))
        match about:
            case "columns":
                explanation = await self._columns(loaded, request.arrays, predictions[0], best, lifetime)
            case "words":
                explanation = await self._in_torch(partial(_words, loaded, body, best, lifetime.check), lifetime)
            case _:
                pixels = partial(_pixels, loaded, request.arrays[0][0], predictions[0])
                explanation = await self._in_torch(pixels, lifetime)
        answer = Answer(new_id(), loaded, predictions)
        content, headers = as_json(own_content(answer, _TOP, request) | {"explanation": explanation})
        self.handler.observe(request, answer, loaded, call, seconds)
        return Reply(content, headers)

    def _read(self, body: bytes, call: Call, loaded: LoadedVersion, lifetime: Lifetime) -> ModelRequest:
        request = RatchetFormat(self.handler.settings.rows).read(body, call.headers, loaded, lifetime.check)
        if request.rows != 1:
            raise InputError(f"input: found {request.rows} rows; allowed: 1 for an explanation")
        if request.unencoded and loaded.kind.tokenizes:
            check_texts(request.unencoded.values, "input", most=_CHARACTERS)
        return request

    async def _columns(
        self, loaded: LoadedVersion, arrays: Arrays, outputs: NDArray[np.float32], best: int, lifetime: Lifetime
    ) -> dict[str, Any]:
        table = loaded.spec.table
        variants, owners = column_variants(arrays, table)
        changed = await self.handler.batcher_of(loaded).predict(loaded, variants, lifetime)
        names = [column.name for column in (*table.numeric, *table.categorical)]
        values = [float(outputs[best] - changed[owners == at, best].mean()) for at in range(len(names))]
        order = np.argsort(-np.abs(values), kind="stable")
        return {
            "kind": "columns",
            "of": _name(loaded, best),
            "contributions": [{"name": names[at], "value": values[at]} for at in order],
        }

    async def _in_torch(self, function: Callable[[], Any], lifetime: Lifetime) -> Any:
        """Return the function's result, computed by the thread of explanations, one after the other."""
        try:
            return await self._worker.run(function, lifetime)
        except ImportError as error:
            raise Refused(
                501, f"explanations of this model need PyTorch and Captum, which are not installed: {error}"
            ) from None

    async def warm(self, watcher: AliasWatcher | PinnedVersion, *, every: float) -> None:
        """Load what explanations of each version need, so that the first one waits for neither PyTorch nor files."""
        latest = ""
        while True:
            if (loaded := watcher.current) and loaded.identity.run_id != latest:
                latest = loaded.identity.run_id
                if loaded.spec.input.explanation in ("pixels", "words") and _has_torch(loaded):
                    try:
                        with contextlib.suppress(ImportError, Refused):  # the answer to a request says so
                            await self._worker.run(partial(_warm, loaded))
                    except Exception:  # of a user's model: the answer to a request for an explanation names it
                        _LOG.exception("%s cannot be explained", loaded.identity)
            del loaded  # an old version must not stay in memory
            await asyncio.sleep(every)

    def close(self) -> None:
        """Drop what waits."""
        self._worker.close()


def column_variants(arrays: Arrays, input_spec: TableInput) -> tuple[Arrays, NDArray[np.int64]]:
    """Return copies of a row with other training values in one column each.

    Args:
        arrays: of one row.
        input_spec: the model's input.

    Returns:
        The arrays of n rows, and for each row the index of its changed column, int64 (n,): numeric columns first.
    """
    numbers, codes, owners = list[Any](), list[Any](), list[int]()
    for at, column in enumerate((*input_spec.numeric, *input_spec.categorical)):
        is_code = at >= len(input_spec.numeric)
        pool = np.arange(2, 2 + len(column.categories)) if is_code else np.array(column.quantiles or (column.mean,))
        pool = pool if len(pool) else np.array([0])  # a column without known categories has only missing values
        for value in pool[np.linspace(0, len(pool) - 1, min(_VALUES, len(pool))).round().astype(int)]:
            row = arrays[0][0].copy(), arrays[1][0].copy()
            row[is_code][at - len(input_spec.numeric) * is_code] = value
            numbers.append(row[0])
            codes.append(row[1])
            owners.append(at)
    return (np.stack(numbers), np.stack(codes)), np.array(owners, np.int64)


def _model(loaded: LoadedVersion) -> Any:
    """Return the PyTorch model of a version.

    Raises:
        Refused: its files were deleted or damaged since the version was loaded.
    """
    try:
        return loaded.explained
    except (RatchetError, OSError):
        _LOG.exception("%s cannot be explained", loaded.identity)
        raise Refused(
            503, f"the files of {loaded.identity} cannot be read; the log of the server has the cause", _RETRY
        ) from None


def _has_torch(loaded: LoadedVersion) -> bool:
    """Return whether PyTorch is installed and the version came with weights, which an offline bundle has not."""
    return loaded.has_weights and find_spec("torch") is not None


def _warm(loaded: LoadedVersion) -> None:
    _model(loaded)
    if loaded.spec.input.explanation == "words":
        import ratchet.evaluation.text_explanations
    elif loaded.spec.classes:
        import ratchet.evaluation.explanations
        import ratchet.reports.inline_images  # noqa: F401

        importlib.import_module("captum.attr")


def _words(loaded: LoadedVersion, body: bytes, best: int, check: Callable[[], None]) -> dict[str, Any]:
    from ratchet.evaluation.text_explanations import word_contributions
    from ratchet.serving.formats.request_formats import read_object

    (text,) = texts_in(read_object(body)["input"], "input")
    contributions = word_contributions(_model(loaded), loaded.spec, text, best, check)
    return {
        "kind": "words",
        "of": _name(loaded, best),
        "contributions": [{"name": word, "value": value} for word, value in contributions],
    }


def _pixels(loaded: LoadedVersion, image: NDArray[Any], probabilities: NDArray[np.float32]) -> dict[str, Any]:
    from PIL import Image

    from ratchet.evaluation.explanations import explain
    from ratchet.reports.inline_images import overlay

    best, second = np.argsort(-probabilities, kind="stable")[[0, min(1, len(probabilities) - 1)]].tolist()
    arrays = loaded.kind.packed((image[None],), loaded.spec.input)
    (tensor,) = loaded.kind.to_tensors(arrays)
    result = explain(_model(loaded), tensor, rows=np.zeros(1, np.int64), answers=[best], truths=[second])
    if result.reason:
        raise InputError(f"there is no explanation: {result.reason}")
    pixels = arrays[0][0]
    if pixels.dtype != np.uint8:
        span = float(np.ptp(pixels)) or 1.0
        pixels = ((pixels - pixels.min()) * (255 / span)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(overlay(pixels, result.contributions[0])).save(file, "PNG")
    return {
        "kind": "pixels",
        "of": _name(loaded, best),
        "against": _name(loaded, second),
        "png": base64.b64encode(file.getvalue()).decode(),
    }


def _name(loaded: LoadedVersion, output: int) -> str:
    name: str = loaded.spec.target.names[output]
    return name
