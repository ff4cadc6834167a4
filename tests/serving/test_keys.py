"""The file of API keys: what it refuses, and that no key is lost."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ratchet.errors import PlatformError
from ratchet.serving.keys import KeyStore


def test_keys_that_are_added_at_once_are_all_stored(tmp_path: Path) -> None:
    path, names = tmp_path / "state" / "keys.json", [f"key-{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: KeyStore(path).add(name), names))
    assert sorted(key.name for key in KeyStore(path).read()) == sorted(names)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: KeyStore(path).remove(name), names))
    assert KeyStore(path).read() == ()


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1.0])
def test_a_rate_that_is_no_number_is_refused(tmp_path: Path, rate: float) -> None:
    store = KeyStore(tmp_path / "keys.json")
    with pytest.raises(PlatformError, match=r"--rate: found .*; allowed: a number of 0 or more"):
        store.add("anna", rate=rate)
    assert not store.path.exists()
