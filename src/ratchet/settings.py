"""params.yaml -> frozen, strict `Params`: the only reader of the file, and its only writer.

A key that is missing is refused as one that is unknown is: the file holds every setting, so that DVC, which tracks its
keys, sees everything that decides a result.
"""

from collections.abc import Collection, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ratchet import faults, files
from ratchet.errors import SettingsError
from ratchet.page import without_password
from ratchet.params import AlertSettings, Params, Section

__all__ = ["changed", "dotted", "flatten", "load", "override", "parse_assignments", "template"]

# Whose webhook addresses hold the right to write: Slack's, Discord's, Microsoft's and Google's.
_SECRET_ADDRESSES = (
    "hooks.slack.com", "hooks.slack-gov.com", "discord.com", "discordapp.com", "webhook.office.com",
    "logic.azure.com", "powerplatform.com", "chat.googleapis.com",
)  # fmt: skip
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def template() -> str:
    """params.yaml as it is shipped: every setting with its default, its meaning in a comment."""
    lines = [
        "# yaml-language-server: $schema=src/ratchet/params.schema.json",  # by which editors complete and check it
        "# Every setting of the pipeline. DVC tracks the keys one by one; the flow, `dvc repro` and `ratchet` read",
        "# this file and nothing else. Change one by hand, with `ratchet set training.epochs=3`, or as you train, with",
        "# `ratchet train --set training.epochs=3`.",
        "",
    ]
    for name, field in Params.model_fields.items():
        group = field.annotation
        if isinstance(group, type) and issubclass(group, Section):
            lines += ["", f"{name}:  # {group.__doc__}"]
            for inner, inside in group.model_fields.items():
                if inner in group.captions:
                    lines += ["", f"  # {group.captions[inner]}"]
                lines.append(f"  {_line(inner, inside)}")
        else:
            lines.append(_line(name, field))
    return "\n".join(lines) + "\n"


def load(path: Path) -> Params:
    """Read and check the whole file.

    Raises:
        SettingsError: with every fault at once, each naming the key, the value, what is allowed and the way out.
    """
    return _check(_read(path), path)


def override(path: Path, changes: Mapping[str, object]) -> Params:
    """Set dotted keys in the file, comments kept, and return the result; a bad change leaves the file as it is.

    This is what `dvc exp run -S` does, so that the file, dvc.lock and MLflow agree on what ran.
    """
    document = _read(path)
    known = faults.dotted_keys(Params)
    told = [faults.unknown(Params, key, _plain(value)) for key, value in changes.items() if key not in known]
    if told:
        raise SettingsError("\n".join(f"{path.name}: {sentence}" for sentence in told))
    if not changes or not all(_holds(document, key) for key in changes):
        return _check(document, path)  # says what is missing
    before = path.read_text(encoding="utf-8")
    after = _edited(before, changes)
    params = _check(files.parse_yaml(after), path)
    if after != before:
        files.write_text(path, after)
    return params


def _edited(text: str, changes: Mapping[str, object]) -> str:
    """The file's text with those values put in the place of the old ones, and not a space elsewhere changed."""
    places, root = [], _yaml().compose(text)
    for key, value in changes.items():
        node = root
        for part in key.split("."):
            node = next(child for name, child in node.value if name.value == part)
        start, end = node.start_mark.index, node.end_mark.index
        spelled = " " * (text[start - 1] == ":") + _spelled(value) + "\n" * text[start:end].endswith("\n")
        places.append((start, end, spelled))
    for start, end, spelled in sorted(places, reverse=True):
        text = text[:start] + spelled + text[end:]
    return text


def _spelled(value: object) -> str:
    """A value as YAML writes it on one line."""
    yaml, line = _yaml(), StringIO()
    yaml.default_flow_style = True
    yaml.width = 100_000
    yaml.dump({"": list(value) if isinstance(value, tuple) else value}, line)
    return line.getvalue().strip()[1:-1].partition(":")[2].strip()


def parse_assignments(assignments: list[str]) -> dict[str, object]:
    """`["training.epochs=3"]` -> `{"training.epochs": 3}`; values are read as YAML, as in the file."""
    from ruamel.yaml.error import YAMLError

    changes: dict[str, object] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise SettingsError(f"{assignment}: write KEY=VALUE, for example training.epochs=3")
        try:
            changes[key.strip()] = _yaml().load(value)  # a number as it was written
        except YAMLError as error:
            problem = getattr(error, "problem", None) or str(error)
            raise SettingsError(
                f"{assignment}: the value is not YAML ({problem}); write it as params.yaml would, for example "
                "training.epochs=3 or 'data.formats=[jpeg, png]'"
            ) from None
    return changes


def flatten(changes: Section) -> dict[str, object]:
    """The dotted keys that an `Overrides` sets."""
    return dotted(changes.model_dump(exclude_none=True))


def dotted(content: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Groups within groups as one: {"training": {"epochs": 3}} -> {"training.epochs": 3}."""
    flat: dict[str, object] = {}
    for key, value in content.items():
        flat |= dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def changed(params: Params, sections: Collection[str]) -> dict[str, tuple[Any, Any]]:
    """The dotted keys in these sections whose value is not the default, with the value and the default."""
    now, usual = (dotted(one.model_dump(mode="json", include=set(sections))) for one in (params, Params()))
    return {key: (value, usual[key]) for key, value in now.items() if value != usual[key]}


def _line(name: str, field: FieldInfo) -> str:
    default = faults.spell(field.default)
    return f"{name}: {default}  # {field.description} (default: {default})"


def _yaml() -> Any:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 200
    return yaml


def _read(path: Path) -> Any:
    from ruamel.yaml.error import YAMLError

    try:
        document = files.read_yaml(path)
    except FileNotFoundError:
        raise SettingsError(f"{path}: not there; restore it with `git checkout params.yaml`") from None
    except (YAMLError, UnicodeDecodeError) as error:
        place = getattr(error, "problem_mark", None)
        where = f" line {place.line + 1}" if place else ""
        problem = getattr(error, "problem", None) or str(error)
        raise SettingsError(f"{path}{where}: not YAML ({problem}); mend that line") from None
    if not isinstance(document, Mapping):
        found = "nothing" if document is None else "a list" if isinstance(document, list) else f"only {document!r}"
        raise SettingsError(
            f"{path}: holds {found}; allowed: groups of settings; restore it with `git checkout params.yaml`"
        )
    return document


def _check(document: Mapping[str, Any], path: Path) -> Params:
    told = [
        faults.missing(key, default) for key, default in faults.dotted_keys(Params).items() if not _holds(document, key)
    ]
    params = None
    try:
        params = Params.model_validate(_plain(document))
    except ValidationError as error:
        told += faults.explain(Params, error.errors())
    if params is None or told:
        raise SettingsError("\n".join(f"{path.name}: {sentence}" for sentence in told))
    if told := list(_contradictions(params)):
        raise SettingsError("\n".join(f"{path.name}: {sentence}" for sentence in told))
    return params


def _contradictions(params: Params) -> Iterator[str]:
    """What is wrong with settings that are right one by one."""
    data = params.data
    held_out = data.validation_fraction + data.test_fraction
    if held_out >= 1.0:
        yield (
            f"data.validation_fraction + data.test_fraction is {held_out:g}; allowed: below 1, or nothing is left to "
            "train on; lower one of them"
        )
    if data.folds == 1:
        yield "data.folds: found 1; allowed: 0, for none, or 2 and more"
    elif data.fold >= max(1, data.folds):
        yield f"data.fold: found {data.fold}; allowed: 0 to {max(0, data.folds - 1)}, as data.folds is {data.folds}"
    yield from _passwords(params)
    yield from _secrets(params.alerts)
    if params.access.four_eyes and params.registry.promotion == "automatic":
        yield (
            "access.four_eyes: found true; allowed with registry.promotion: manual alone, for a gate has no eyes: set "
            "that, or access.four_eyes=false"
        )


def _passwords(params: Params) -> Iterator[str]:
    """Addresses with a password in them: the file is committed, and every run notes its settings."""
    for section, ways in (
        (
            "tracking",
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or for PostgreSQL PGPASSWORD or ~/.pgpass",
        ),
        ("registry", "PGPASSWORD or ~/.pgpass"),
        ("platform", "PGPASSWORD or ~/.pgpass"),
        ("alerts", "alerts.webhook=environment and RATCHET_ALERTS_WEBHOOK"),
    ):
        for name, value in getattr(params, section).model_dump().items():
            if isinstance(value, str) and (shown := without_password(value)) != value:
                yield (
                    f"{section}.{name}: found {shown}, whose password would be committed and noted by every run; "
                    f"allowed: an address without one; give it by the environment: {ways}"
                )


def _secrets(alerts: AlertSettings) -> Iterator[str]:
    """What of the alerts would let anybody write in a team's name, or be read on its way."""
    host = urlsplit(alerts.webhook).hostname or ""
    if any(host == known or host.endswith(f".{known}") for known in _SECRET_ADDRESSES):
        yield (
            f"alerts.webhook: found an address of {host}, which is itself a secret: whoever knows it can write there; "
            "allowed here: none or environment; `ratchet set alerts.webhook=environment`, and give the address by the "
            "environment: RATCHET_ALERTS_WEBHOOK"
        )
    server = alerts.smtp.rpartition(":")[0].strip("[]")
    if alerts.smtp_user != "none" and alerts.smtp_security == "none" and server not in _LOOPBACK:
        yield (
            f"alerts.smtp_security: found none, with which the password of {alerts.smtp_user} would travel to {server} "
            "readable by anybody; allowed with alerts.smtp_user: starttls or tls"
        )


def _plain(node: Any) -> Any:
    """ruamel's containers and scalars as Python's own: strict checking takes no subclass."""
    if isinstance(node, Mapping):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_plain(value) for value in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _holds(document: Mapping[str, Any], key: str) -> bool:
    node: Any = document
    for part in key.split("."):
        if not isinstance(node, Mapping):
            return True  # a wrong type: told once, as that
        if part not in node:
            return False
        node = node[part]
    return True
