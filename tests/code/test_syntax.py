"""The digest of a file counts what the code does, and nothing else."""

from pathlib import Path

import pytest

from ratchet.code.syntax import digest_code, digest_nodes, normal_nodes

CODE = '''
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.training import Plan


class Settings:
    """Settings of a step."""

    rate: float = 0.1

    def step(self, count: int) -> float:
        """Return the rate of a step."""
        first: float = self.rate / count  # never zero
        assert first, "is zero"
        if first > 1:
            raise TrainingError(f"the rate is {first}, too large")
        return first


@registered
def read(name: str) -> float:
    raise ValueError(f"cannot read {name}")
'''


def digest(code: str, *, messages: bool = True) -> str:
    nodes = normal_nodes(code.encode())
    assert nodes
    return digest_nodes(nodes)[0 if messages else 1]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# never zero", "# a comment"),
        ('"""Settings of a step."""', '"""Other words."""'),
        ('        """Return the rate of a step."""\n', ""),
        ("count: int) -> float", "count: float) -> int"),
        ("first: float =", "first: int ="),
        ("self.rate / count", "(self.rate\n            / count)"),
        ('"is zero"', '"a rate of zero"'),
        ("import Plan", "import Plan, Split"),
    ],
)
def test_what_changes_no_result_does_not_count(before: str, after: str) -> None:
    assert before in CODE
    assert digest(CODE.replace(before, after)) == digest(CODE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("= 0.1", "= 0.2"),
        ("rate: float = 0.1", "rate: int = 0.1"),  # dataclasses and pydantic read it
        ("name: str)", "name: int)"),  # the decorator may read it
        ("self.rate / count", "self.rate * count"),
        ("first > 1", "first > 1.0"),
        ("cannot read", "did not read"),
        ("return first", "return -first"),
        ("class Settings", "@dataclass\nclass Settings"),
    ],
)
def test_what_may_change_a_result_counts(before: str, after: str) -> None:
    assert before in CODE
    for messages in (True, False):
        assert digest(CODE.replace(before, after), messages=messages) != digest(CODE, messages=messages)


def test_values_of_an_error_count_without_its_text() -> None:
    other, value = CODE.replace("too large", "and at most 1"), CODE.replace("is {first},", "is {next(rates)},")
    assert digest(other) != digest(CODE)
    assert digest(other, messages=False) == digest(CODE, messages=False) != digest(value, messages=False)


def test_files_that_are_no_python_count_by_their_bytes(tmp_path: Path) -> None:
    for name, content in (("words.json", "[1]"), ("template.py", "{{ name }} = !")):
        path = tmp_path / name
        path.write_text(content)
        before = digest_code(path)
        path.write_text(f"{content} ")
        assert digest_code(path) != before
