"""Files by their DVC hash, from the cache and the remotes."""

import random
import resource
import shutil
from pathlib import Path

import pytest
from dvc.repo import Repo

from ratchet.errors import DataError
from tasks.dvc_store import DvcStore

FAILS = Path("/proc/self/mem")  # a file that can be opened, and whose first byte cannot be read


@pytest.mark.filterwarnings("ignore:_NoneStep:DeprecationWarning")  # DVC's own, in `dvc add`
def test_after_a_store_that_fails_the_next_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not FAILS.exists():
        pytest.skip("this system has no /proc")
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    root, remote, state = tmp_path / "project", tmp_path / "remote", random.getstate()  # DVC draws from it
    root.mkdir()
    Repo.init(str(root), no_scm=True).close()
    (root / "rows.csv").write_text("a,b\n1,2\n")
    config = f"[core]\n    no_scm = true\n    remote = other\n['remote \"other\"']\n    url = {remote}\n"
    (root / ".dvc" / "config").write_text(config)
    monkeypatch.chdir(root)
    with Repo(str(root)) as repo:
        (source,) = repo.add(str(root / "rows.csv"))
        value = source.outs[0].hash_info.value
        repo.push()
    random.setstate(state)
    (cached,) = (root / ".dvc" / "cache" / "files" / "md5").glob("*/*")
    cached.unlink()
    cached.symlink_to(FAILS)
    with DvcStore.open(root) as store:
        store.fetch(value, tmp_path / "copy")
        assert (store.read(value), (tmp_path / "copy").read_text()) == (b"a,b\n1,2\n", "a,b\n1,2\n")
        assert [*store.unavailable] == ["DVC's cache"]
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):  # of the copy: the store has answered
                store.fetch(value, tmp_path / "large")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        shutil.rmtree(remote)
        with pytest.raises(DataError, match=r"is gone: .*DVC's cache does not answer \(.*Input/output error"):
            store.fetch(value, tmp_path / "none")
    assert not (tmp_path / "none").exists()
