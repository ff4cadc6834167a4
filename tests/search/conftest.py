"""Shared by the tests of a search: databases of studies."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.search.records import Study
from ratchet.search.store import StudyStore


@pytest.fixture
def new_store(tmp_path: Path) -> Callable[[Study], StudyStore]:
    """Make a database with a study in it."""

    def make(study: Study) -> StudyStore:
        store = StudyStore(None, f"sqlite:///{tmp_path / 'search.db'}", study.name)
        assert store.create(study)
        return store

    return make


@pytest.fixture
def in_memory() -> Callable[[Study], StudyStore]:
    """Make one in the memory of this process."""

    def make(study: Study) -> StudyStore:
        store = StudyStore(None, "sqlite://", study.name)
        assert store.create(study)
        return store

    return make
