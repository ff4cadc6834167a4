"""`map`: a function over many shards. What an earlier attempt has finished is not done again."""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ratchet import files
from ratchet.code.closure import PACKAGES, closure
from ratchet.scale.calls import ShardCall, named, versions
from ratchet.scale.result_folder import ResultFolder
from ratchet.settings.model import ScaleSettings

__all__ = ["map"]

_ENGINES = {"here": "ratchet.scale.local:run", "prefect": "flows.shards:run", "ray": "ratchet.scale.on_ray:run"}
"""Each yields (place of a call, result) as calls end, and leaves nothing running when it is closed."""
_READERS = 16  # results that are read at a time


def map(
    function: str,
    shards: Sequence[Any],
    *,
    folder: str,
    settings: ScaleSettings,
    state: Path,
    is_whole: Callable[[Any], bool] = lambda result: True,
    on_result: Callable[[int, Any, bool], None] = lambda place, result, is_earlier: None,
) -> list[Any]:
    """Call the function once for each shard, and return the results in the order of the shards.

    At most `settings.workers` shards are in work at a time. A shard whose process or machine is lost is done again. An
    error of the function, or an exception here, ends all work.

    Args:
        function: package.module:function.
        folder: path or URL for the results. Each is a file that is named by a digest of the function, of the code that
            decides the result, and of the shard. An earlier result that is whole is taken, any other is deleted.
        state: folder of this machine for logs.
        is_whole: returns whether what belongs to an earlier result is still there.
        on_result: takes the place of a shard, its result, and whether it is an earlier one.

    Raises:
        RatchetError: of the function; or the engine cannot work, or lost a shard's process several times.
    """
    code, results, store = code_digest(function), dict[int, Any](), ResultFolder(folder)
    keys = [files.digest_json([function, code, shard]) for shard in shards]
    names = store.sizes()
    for place, result in _earlier(store, keys, names).items():
        if is_whole(result):
            results[place] = result
            on_result(place, result, True)
    todo = [place for place in range(len(shards)) if place not in results]
    store.delete(sorted(names.keys() & {f"{keys[place]}.json" for place in todo}))  # else an engine takes them for new
    calls = [ShardCall(function, shards[place], keys[place], folder, versions()) for place in todo]
    for number, result in named(_ENGINES[settings.engine])(calls, settings, state) if calls else ():
        results[todo[number]] = result
        on_result(todo[number], result, False)
    return [results[place] for place in range(len(shards))]


def code_digest(function: str) -> str:
    """Return a digest of the code that decides the results of a function."""
    module = function.partition(":")[0]
    if module.partition(".")[0] in PACKAGES:
        return files.digest_json(closure([module], stage="scale", choice={}))
    spec = find_spec(module)
    return files.digest_file(Path(spec.origin)) if spec and spec.origin else ""


def _earlier(folder: ResultFolder, keys: Sequence[str], names: Collection[str]) -> dict[int, Any]:
    """Return the results that are there and not damaged, by place."""
    places = [place for place, key in enumerate(keys) if f"{key}.json" in names]
    with ThreadPoolExecutor(_READERS) as pool:
        contents = pool.map(lambda place: folder.read_json(f"{keys[place]}.json"), places)
        return {place: content for place, content in zip(places, contents, strict=True) if content is not None}
