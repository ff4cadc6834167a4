"""The settings as a JSON schema, by which editors complete and check params.yaml and the files in examples/."""

import json
from pathlib import Path

from pydantic.json_schema import GenerateJsonSchema

from ratchet import files
from ratchet.settings.model import Params

__all__ = ["PATH", "schema"]

PATH = Path(__file__).with_name("params.schema.json")


class _Untitled(GenerateJsonSchema):
    """No title made of each name: an editor shows the name and, below it, what the setting means."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def schema() -> str:
    """The schema's text, which PATH holds. No key is required: a file in examples/ names only some."""
    content = Params.model_json_schema(schema_generator=_Untitled)
    for group in content["properties"].values():
        if "$ref" in group:
            del group["default"]  # each setting of it has its own
    return json.dumps({"$schema": _Untitled.schema_dialect, **content}, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    files.write_text(PATH, schema())
