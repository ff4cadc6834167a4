"""The table of a model's variants, for the report and the model card."""

from collections.abc import Sequence

from ratchet.exports.variant_text import difference_text, speed_text
from ratchet.exports.variants import Variant
from ratchet.reports.number_text import decimal, percent, shown

__all__ = ["HEADER", "rows", "slice_sentences"]

HEADER = ("variant", "result", "speed", "on the test samples", "against the model", "largest difference", "size")


def rows(variants: Sequence[Variant]) -> list[tuple[str, ...]]:
    """Return one row for each variant."""
    return [(variant.name, _result(variant), *_figures(variant)) for variant in variants]


def _result(variant: Variant) -> str:
    return "passed" if variant.passed else f"refused: {'; '.join(variant.reasons)}"


def _figures(variant: Variant) -> tuple[str, ...]:
    measured = variant.measured
    if measured is None:
        return (shown(None),) * (len(HEADER) - 2)
    value = percent(measured.value.value) if measured.share else shown(measured.value.value)
    return (
        speed_text(measured),
        f"{measured.metric} {value}",
        difference_text(measured, measured.difference),
        decimal(measured.largest_difference),
        f"{measured.size / 1024:,.0f} KiB; fp32: {measured.full_size / 1024:,.0f} KiB",
    )


def slice_sentences(variants: Sequence[Variant]) -> list[str]:
    """Return one sentence for each variant with its slice that differs most from the model; none without slices."""
    return [
        f"{variant.name}: the worst of {len(measured.slices)} slices is {worst.column} {worst.value} "
        f"({worst.rows:,} samples): {difference_text(measured, worst.difference)}."
        for variant in variants
        if (measured := variant.measured) and measured.slices
        for worst in [min(measured.slices, key=lambda part: part.difference.value)]
    ]
