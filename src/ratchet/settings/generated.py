"""Files generated from the settings: the JSON schema for editors, and the tables of settings in docs/.

`python -m ratchet.settings.generated` writes them. A table stands between the markers `<!-- settings: NAME -->` and
`<!-- end of settings -->`. NAME is a section, or the first setting of a group in it, such as training.epochs.
"""

import json
import re
from pathlib import Path

from pydantic.json_schema import GenerateJsonSchema

from ratchet import files
from ratchet.settings import messages as settings_errors
from ratchet.settings.model import Params, Section

__all__ = ["DOCS", "SCHEMA", "fill_tables", "schema", "table"]

SCHEMA = Path(__file__).with_name("params.schema.json")
DOCS = Path(__file__).parents[3] / "docs"
_TABLE = re.compile(r"(<!-- settings: ([\w.]+) -->\n).*?(<!-- end of settings -->)", re.DOTALL)


class _Untitled(GenerateJsonSchema):
    """Schema without titles: an editor shows the name of a setting and its description."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def schema() -> str:
    """Return the JSON schema. No key is required, because a file in examples/ has only some of them."""
    content = Params.model_json_schema(schema_generator=_Untitled)
    for section in content["properties"].values():
        if "$ref" in section:
            del section["default"]  # each of its settings has its own
    return json.dumps({"$schema": _Untitled.schema_dialect, **content}, indent=2, ensure_ascii=False) + "\n"


def table(name: str) -> str:
    """Return the Markdown table of a section, or of the group that begins with setting `name`.

    Raises:
        KeyError, ValueError: there is no such section or setting.
    """
    section_name, _, first = name.partition(".")
    section = Params.model_fields[section_name].annotation
    assert isinstance(section, type)
    assert issubclass(section, Section)
    settings = list(section.model_fields)
    start = settings.index(first) if first else 0
    ends = [settings.index(caption) for caption in section.captions] if first else []
    stop = min((end for end in ends if end > start), default=len(settings))
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for setting in settings[start:stop]:
        field = section.model_fields[setting]
        lines.append(f"| `{setting}` | `{settings_errors.spell(field.default)}` | {field.description} |")
    return "\n".join(lines) + "\n"


def fill_tables(text: str) -> str:
    """Return the page with all its tables of settings up to date."""
    return _TABLE.sub(lambda match: f"{match[1]}{table(match[2])}{match[3]}", text)


def _write() -> None:
    files.write_text(SCHEMA, schema())
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        filled = fill_tables(text)
        if filled != text:
            files.write_text(page, filled)


if __name__ == "__main__":
    _write()
