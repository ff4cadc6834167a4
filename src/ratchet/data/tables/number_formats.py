"""Forms of numbers and dates: how a column writes them, and how its texts are read.

A form of numbers is an example: "1234.5" is plain, "1.234,5 %" has a point between thousands, a decimal comma and a
percent sign. A form of dates has formats as of strftime, separated by |.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

__all__ = [
    "ONE_NUMBER", "PLAIN", "Ambiguous", "Form", "are_numbers", "date_form", "number_form", "numbers",
    "numeric_date_form", "point", "seconds", "written_dates", "written_numbers",
]  # fmt: skip

PLAIN = "1234.5"
STAMP = "%Y%m%d%H%M%S"
_DIGITS = (STAMP, "%Y%m%d")
_MILLENNIUM = 946_684_800.0  # seconds from 1970-01-01 to 2000-01-01
_UNITS = {"seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
"""Forms of dates: numbers since 1970-01-01 UTC, by their parts of a second."""
_LATEST = 1e11  # seconds, of the year 5138; a larger number is in a smaller unit
_CORES = {
    PLAIN: ("", "."), "1234,5": ("", ","), "1,234.5": (",", "."), "1.234,5": (r"\.", ","), "1 234.5": (r"\s", "."),
    "1 234,5": (r"\s", ","), "1'234.5": ("'", "."),
}  # fmt: skip
"""Forms of numbers: the pattern of the mark between thousands, and the decimal mark."""

_MINUS = "[+\\-\u2212]?"
_SAMPLE = 1000  # texts that show which forms are possible
_CURRENCY = re.compile(
    r"(?i:AED|AUD|BGN|BRL|CAD|CHF|CLP|CNY|COP|CZK|DKK|EGP|EUR|GBP|HKD|HUF|IDR|ILS|INR|ISK|JPY|KES|KR|KRW|MXN|MYR|NGN|"
    r"NOK|NZD|PEN|PHP|PKR|PLN|RMB|RON|RS\.?|RUB|SAR|SEK|SGD|THB|TL|TRY|TWD|UAH|USD|VND|ZAR)"
)
_UNIT = re.compile(r"(?!(?i:k|m|b|t|bn|mn|am|pm|a\.m\.|p\.m\.)$)[A-Za-z\u00b5\u03bc\u03a9\u00b0\u00b2\u00b3/%]{1,8}")
"""A unit after a number. K, M and B are factors, which a column mixes."""

_MARKED = (
    rf"^\(?\s*{_MINUS}\s*([^\d\s+\-.,()]*\.?)\s*{_MINUS}\s*"  # a mark before the digits
    r"[\d.,][\d.,'\s]*?(?:[eE][+-]?\d+)?\s*([^\d.,()\s][^\d()]*)?\)?$"  # digits, and a mark after them
)
ONE_NUMBER = r"^\D{0,6}\d[\d.,'\s]*(?:[eE][+-]?\d+)?\D{0,12}$"
_UP_TO_999_999 = r"^[+\-\x{2212}]?(?:0|[1-9]\d{0,2}(?:\.\d{3})?)$"
"""Whole numbers below a million, if a point is between thousands."""
_DATES = {
    "Y-9-9": ("%Y-%m-%d",), "Y/9/9": ("%Y/%m/%d",), "Y.9.9": ("%Y.%m.%d",),
    "9.9.Y": ("%d.%m.%Y",), "9.9.9": ("%d.%m.%y", "%y.%m.%d"),
    "9/9/Y": ("%m/%d/%Y", "%d/%m/%Y"), "9/9/9": ("%m/%d/%y", "%d/%m/%y", "%y/%m/%d"),
    "9-9-Y": ("%m-%d-%Y", "%d-%m-%Y"), "9-9-9": ("%m-%d-%y", "%d-%m-%y", "%y-%m-%d"),
    "Y-9": ("%Y-%m",), "Y/9": ("%Y/%m",), "9/Y": ("%m/%Y",), "9-Y": ("%m-%Y",), "a Y": ("%B %Y",), "a-Y": ("%B-%Y",),
    "a-9": ("%B-%y",), "Y-Q9": ("%Y-Q%q",), "YQ9": ("%YQ%q",), "Y-W9": ("%G-W%V",),
    "9-a-Y": ("%d-%B-%Y",), "9-a-9": ("%d-%B-%y",), "9 a Y": ("%d %B %Y",), "a 9, Y": ("%B %d, %Y",),
}  # fmt: skip
"""Formats by shape: Y is a year of four digits, 9 another number, a the name of a month. %q is a quarter."""

_SHAPE = (
    (r"^\d{1,2}:\d\d\s?-\s?\d.*$", "-"),  # a range of times
    (r"(:\d{1,2})[.,]\d+", "${1}.f"),
    (r"(:\d{1,2}(?:\.f)?)\s?(?:Z|UTC|GMT|(?:[+-](?:0\d|1[01])|\+1[2-4]):?\d\d)$", "${1}z"),
    (r"(:\d{1,2}:\d{1,2}(?:\.f)?)\s?(?:[+-](?:0\d|1[01])|\+1[2-4])$", "${1}z"),
    (r"([T ]\d{1,2}:\d\d)\s?\+(?:0\d|1[0-4])$", "${1}z"),
    (r"\s?[AaPp]\.?[Mm]\.?$", "p"),
    (r"[A-Za-z]{3,9}", "a"),
    (r"\d{4}", "Y"),
    (r"\d{1,2}", "9"),
)
_TIMES = {
    "9:9": "%H:%M", "9:9:9": "%H:%M:%S", "9:9:9.f": "%H:%M:%S%.f", "9:9z": "%H:%M%#z", "9:9:9z": "%H:%M:%S%#z",
    "9:9:9.fz": "%H:%M:%S%.f%#z", "9:9p": "%I:%M %p", "9:9:9p": "%I:%M:%S %p",
}  # fmt: skip

_ISO = "Fix: write dates as YYYY-MM-DD"


class Form(NamedTuple):
    """A form, and the number of texts that have it."""

    form: str
    matches: int


class Ambiguous(ValueError):
    """Texts can be read in two ways. The message has an example and the fix."""


def numbers(texts: pl.Series, form: str) -> pl.Series:
    """Return the numbers of texts as Float64; null where a text is none in this form. 12.5 % is .125.

    The sign of a currency or a unit may be missing, a percent sign may not. A unit may be a plural. Parentheses mean a
    negative number. A text with a plus beside another sign or in parentheses is no number.
    """
    if form == PLAIN:
        values = texts.cast(pl.Float64, strict=False)
        if values.null_count() == texts.null_count():
            return values
        return texts.str.replace("\u2212", "-", literal=True).cast(pl.Float64, strict=False)
    before, core, after = _parts(form)
    between, decimal = _CORES[core]
    whole = rf"(?:[1-9]\d{{0,2}}(?:{between}\d{{3}})+|\d+)" if between else r"\d+"
    point = re.escape(decimal)
    number = rf"((?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?)"
    first, last = (f"(?:{re.escape(mark)}){'' if mark == '%' else '?'}" if mark else "" for mark in (before, after))
    if len(after) > 2 and after.isalpha():  # 1 year, 2 years
        last = f"(?:{after.removesuffix('s')}s?)?"
    pattern = rf"^()({_MINUS})(){number}()$"
    if core != form:
        pattern = rf"^(\(?)\s*({_MINUS})\s*{first}\s*({_MINUS})\s*{number}\s*{last}\s*(\)?)$"
    opened, outer, inner, digits, closed = texts.str.extract_groups(pattern).struct.unnest().get_columns()
    plain = digits.str.replace_all(between, "") if between else digits
    values = plain.str.replace(decimal, ".", literal=True).cast(pl.Float64, strict=False)
    minus = (opened == "(") ^ outer.is_in(["-", "\u2212"]) ^ inner.is_in(["-", "\u2212"])
    valid = ((opened == "(") == (closed == ")")) & ~(opened + outer + inner).str.contains(r".\+|\+.")
    signed = pl.when(valid).then(pl.when(minus).then(-values).otherwise(values))
    return pl.select(signed / (100 if "%" in (before, after) else 1)).to_series().alias(texts.name)


def _parts(form: str) -> tuple[str, str, str]:
    """Return what is before the core of a form, the core, and what is after it, without parentheses."""
    core = re.search(r"1[ ,.']?234[.,]5", form)
    assert core is not None, "a form has a core"
    return form[: core.start()].strip(" ("), core.group(), form[core.end() :].strip(" )")


def number_form(texts: pl.Series) -> Form:
    """Return the form of most texts; None of them is null.

    Raises:
        Ambiguous: "1,234" can be 1234 or 1.234.
    """
    plain = numbers(texts, PLAIN)
    known = texts.filter(plain.is_not_null()) if plain.null_count() else texts
    best = Form("1.234,5" if point(known) == "thousands" else PLAIN, len(known))
    if best.matches == len(texts):
        return best
    marked = texts.filter(plain.is_null())
    if not marked.str.contains(ONE_NUMBER).any():
        return best
    sample = texts.gather_every(len(texts) // _SAMPLE + 1)
    around = [("", ""), ("", " %"), *_marks(marked.gather_every(len(marked) // _SAMPLE + 1))]
    for form in (f"{before}{core}{after}" for before, after in around for core in _CORES):
        if numbers(sample, form).null_count() == len(sample):
            continue
        count = len(texts) - numbers(texts, form).null_count()
        if count > best.matches:
            best = Form(form, count)
    return _separated(texts, best)


def point(texts: pl.Series) -> Literal["decimal", "thousands", "unclear"]:
    """Return what the points of plain numbers are; no text is null.

    A writer of decimals either drops final zeros or writes all decimals: 694 beside 1.250 has points between thousands.
    """
    if not texts.head(_SAMPLE).str.contains(_UP_TO_999_999).all():
        return "decimal"
    has_point = texts.str.contains(".", literal=True)
    if not has_point.any() or has_point.all() or not texts.str.contains(_UP_TO_999_999).all():
        return "decimal"
    return "thousands" if texts.filter(has_point).str.ends_with("0").any() else "unclear"


def _marks(texts: pl.Series) -> list[tuple[str, str]]:
    """Return what may stand before and after numbers: the commonest currency or unit of texts, and parentheses."""
    parentheses = [("(", ")")] if texts.str.starts_with("(").any() else []
    groups = texts.str.extract_groups(_MARKED).struct.unnest().fill_null("")
    pairs = [(before, after.strip()) for before, after in groups.rows() if bool(before) != bool(after.strip())]
    pairs = [
        (before, after)
        for before, after in pairs
        if before + after == "%" or _is_money(before + after) or _UNIT.fullmatch(after)
    ]
    if not pairs:
        return parentheses
    before, after = max(sorted(set(pairs)), key=pairs.count)
    return [(before + " " * before.isalpha(), " " + after if after else ""), *parentheses]


def _is_money(mark: str) -> bool:
    """Return whether a mark is the name of a currency, or has the sign of one."""
    return bool(_CURRENCY.fullmatch(mark)) or any(unicodedata.category(character) == "Sc" for character in mark)


def _separated(texts: pl.Series, best: Form) -> Form:
    """Decide which mark is between thousands, where the numbers of the best form can be read in two ways.

    Money has no three decimals: 1.250 EUR are 1250.
    """
    before, core, after = _parts(best.form)
    other = {PLAIN: "1.234,5", "1234,5": "1,234.5"}.get(core)
    is_money = _is_money(before) or _is_money(after)
    if other is None or (core == PLAIN and not is_money):
        return best
    form = best.form.replace(core, other)
    thousands = Form(form, len(texts) - numbers(texts, form).null_count())
    if thousands.matches < best.matches:
        return best
    if core != PLAIN and texts.str.contains(r"\d[eE][+-]?\d").any():  # 2,260E-03 has a decimal comma
        return best
    if core == PLAIN:
        pointed = texts.filter(texts.str.contains(r"\d\.\d"))
        return thousands if len(pointed) and pointed.str.contains(r"\.\d{3}(\D|$)").all() else best
    if is_money:
        return thousands
    plain = numbers(texts, best.form.replace(core, PLAIN))
    whole = texts.filter(~texts.str.contains(",", literal=True) & plain.is_not_null())
    if whole.str.contains(r"\d{4}").any():  # with commas between thousands these had some
        return best
    if len(whole):
        return Form(form, best.matches)
    raise Ambiguous(
        f"{texts[0]!r} can be {texts[0].replace(',', '')} or {texts[0].replace(',', '.')}. Fix: write the numbers "
        "without separators between thousands and with a decimal point"
    )


def date_form(texts: pl.Series) -> Form:
    """Return the form that reads most texts as dates; "" if none does. No text is null.

    A shape whose dates do not decide the order of day, month and year follows the other shapes of the column.

    Raises:
        Ambiguous: day and month can be swapped.
    """
    distinct = texts.unique(maintain_order=True)
    shape = distinct
    for pattern, short in _SHAPE:
        shape = shape.str.replace_all(pattern, short)
    formats = {name: _formats(name) for name in sorted(shape.unique())}
    dates = {name: distinct.filter(shape == name) for name in formats if formats[name]}
    possible = {name: _possible(those, formats[name]) for name, those in dates.items()}
    orders = {_order(forms[0]) for name, forms in possible.items() if len(forms) == 1 < len(formats[name])}
    chosen: list[str] = []
    for name, forms in possible.items():
        followed = [form for form in forms if _order(form) in orders] or forms
        if len(distinct) > 1:  # one date alone is no input
            _require_equal(dates[name], followed)
        chosen.append(followed[0])
    form = "|".join(dict.fromkeys(chosen))
    return Form(form, len(texts) - seconds(texts, form).null_count() if form else 0)


def _formats(shape: str) -> tuple[str, ...]:
    day, gap, time = shape, "", ""
    split = re.fullmatch(r"(.+?)([T ])(9:.*)", shape)
    if split:
        day, gap, time = split.groups()
    if day in _TIMES:
        return (_TIMES[day],)
    if day not in _DATES or (time and time not in _TIMES):
        return ()
    return tuple(form + gap + (_TIMES[time] if time else "") for form in _DATES[day])


def _order(form: str) -> str:
    return "".join(re.findall("%([dmyY])", form)).lower()


def _possible(texts: pl.Series, formats: Sequence[str]) -> list[str]:
    """Return the formats that read most texts of one shape; one alone if the years decide.

    These are the years of a format if it has at most half as many different ones as each other.

    Raises:
        Ambiguous: two dates contradict each other.
    """
    reads = {form: seconds(texts, form) for form in formats}
    most = max(reads.values(), key=pl.Series.count)
    for read in reads.values():
        only, others = (texts.filter(a.is_not_null() & b.is_null()) for a, b in ((read, most), (most, read)))
        if len(only) and len(others):
            raise Ambiguous(f"{only[0]!r} and {others[0]!r} have day, month and year in different orders. {_ISO}")
    equal = [form for form, read in reads.items() if read.count() == most.count()]
    years = {form: texts.str.to_datetime(form, strict=False).dt.year().n_unique() for form in equal if len(equal) > 1}
    few = min(equal, key=lambda form: years.get(form, 0))
    is_decided = all(2 * years[few] <= count for form, count in years.items() if form != few)
    return [few] if is_decided else equal


def _require_equal(texts: pl.Series, formats: Sequence[str]) -> None:
    """Require that several formats read the same dates."""
    first = seconds(texts, formats[0])
    for form in formats[1:]:
        odd = texts.filter((seconds(texts, form) != first).fill_null(False))
        if len(odd):
            days = (odd.head(1).str.to_datetime(each).dt.strftime("%Y-%m-%d")[0] for each in formats)
            raise Ambiguous(
                f"{odd[0]!r} can be {' or '.join(dict.fromkeys(days))}, and no date of the column decides. {_ISO}"
            )


def numeric_date_form(texts: pl.Series) -> str:
    """Return the form of numbers that data.columns calls dates; no text is null.

    Raises:
        Ambiguous: they are years.
    """
    for form in _DIGITS:
        if seconds(texts, form).count() >= 0.5 * len(texts):
            return form
    values = texts.cast(pl.Float64, strict=False).drop_nulls().to_numpy()
    values = np.abs(values[np.isfinite(values)])
    middle = float(np.median(values)) if len(values) else 0.0
    if len(values) and values.min() >= 1000 and values.max() < 3000 and (values == np.floor(values)).all():
        raise Ambiguous(
            f"{texts[0]!r} is a year, and a date has a month and a day. Fix: call the column numeric in data.columns"
        )
    return next((unit for unit, parts in _UNITS.items() if middle < _LATEST * parts), "nanoseconds")


def are_numbers(form: str) -> bool:
    """Return whether dates of this form are numbers."""
    return form in _DIGITS or form in _UNITS


def seconds(texts: pl.Series, form: str) -> pl.Series:
    """Return dates as seconds since 1970-01-01 UTC, Float64; null where a text is no date in this form.

    A date without time is midnight, a time without zone is UTC.
    """
    values = pl.Series([None], dtype=pl.Float64).new_from_index(0, len(texts))
    if "%#z" in form or "%.f" in form:
        texts = texts.str.replace(r"\s?(?:UTC|GMT)$", "Z").str.replace(r"(:\d\d),(\d+)", "${1}.${2}")
    for single in form.split("|"):
        if single in _UNITS:
            read = texts.cast(pl.Float64, strict=False).fill_nan(None) / _UNITS[single]
        elif "%d" not in single:
            read = _partial(texts, single)
        else:
            digits = texts.str.replace(r"\.0+$", "") if single in _DIGITS else texts  # as pandas writes whole numbers
            read = digits.str.to_datetime(single, strict=False, time_unit="us").dt.epoch("us").cast(pl.Float64) / 1e6
        values = pl.select(pl.coalesce(values, read)).to_series()
    return values.alias(texts.name)


def _partial(texts: pl.Series, form: str) -> pl.Series:
    """Return months, quarters and weeks as seconds since 1970 of their first day, times as since midnight, Float64."""
    if "%q" in form:
        texts = texts.str.replace_many({f"Q{quarter}": f"{3 * quarter - 2:02d}" for quarter in range(1, 5)})
        form = form.replace("Q%q", "%m")
    if re.search("%[mbBV]", form):  # %b: of models made before
        first, unit = ("1", "%u") if "%V" in form else ("01", "%d")
        days = (texts + f" {first}").str.to_datetime(f"{form} {unit}", strict=False, time_unit="us")
        return days.dt.epoch("us").cast(pl.Float64) / 1e6
    days = ("2000-01-01 " + texts).str.to_datetime(f"%Y-%m-%d {form}", strict=False, time_unit="us")
    return days.dt.epoch("us").cast(pl.Float64) / 1e6 - _MILLENNIUM


def written_numbers(values: pl.Series, form: str) -> pl.Series:
    """Return Float64 values as texts in a form: `numbers` reads them again. Four decimals are never thousands."""
    before, core, after = _parts(form)
    between, decimal = core[1] if core[1] != "2" else "", core[-2]
    factor, parentheses = 100 if "%" in (before, after) else 1, form.startswith("(")

    def text(value: float) -> str:
        whole, _, part = np.format_float_positional(abs(value) * factor, min_digits=4).partition(".")
        written = form.replace(core, f"{int(whole):,}".replace(",", between) + decimal + part)
        written = written if value < 0 or not parentheses else written.strip("()")
        return written if value >= 0 or parentheses else f"-{written}"

    texts = [None if value is None else text(value) for value in values.fill_nan(None)]
    return pl.Series(values.name, texts, dtype=pl.String)


_STEPS = (("%.f", "1us"), ("%S", "1s"), ("%M", "1m"), ("%H", "1h"))


def written_dates(values: pl.Series, form: str, error: pl.Series) -> pl.Series:
    """Return seconds since 1970-01-01 UTC in a form: `seconds` reads them again, to within their error.

    Of several formats each is used, if it has the date. A date that none has is null.
    """
    if form in _UNITS:
        return values * _UNITS[form]
    formats, row = form.split("|"), pl.int_range(len(values), eager=True)
    written = []
    for single in formats:
        step = next((step for part, step in _STEPS if part in single), "1d")
        dates = (values * 1e6).round().cast(pl.Int64).cast(pl.Datetime("us")).dt.round(step)
        texts = dates.dt.strftime(single.replace("%#z", "+00:00").replace("%.f", "%.6f"))
        is_same = (seconds(texts, form) - values).abs() <= error
        written.append(pl.select(pl.when(is_same).then(texts)).to_series())
    turns = [[*written[at:], *written[:at]] for at in range(len(written))]
    chosen = pl.coalesce(*(pl.when(row % len(turns) == at).then(pl.coalesce(turn)) for at, turn in enumerate(turns)))
    return pl.select(chosen).to_series().alias(values.name)
