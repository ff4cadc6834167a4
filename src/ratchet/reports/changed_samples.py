"""Tables of the samples that differ between two versions of a data set."""

from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.data.difference import Difference

__all__ = ["SampleTable", "sample_tables"]

Rows = Sequence[Sequence[object]]


@dataclass(frozen=True)
class SampleTable:
    """Samples that changed in one way."""

    kind: str
    count: int
    header: Sequence[str]
    rows: Rows


def sample_tables(difference: Difference, most: int) -> list[SampleTable]:
    """List the samples that differ between two versions of a data set by kind of change, at most `most` of each."""
    tables = ((kind, count, getattr(difference, kind)) for kind, count in difference.counts().items())
    return [SampleTable(kind, count, table.columns, table.head(most).rows()) for kind, count, table in tables]
