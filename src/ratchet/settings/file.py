"""params.yaml -> frozen, strict `Params`: the only reader of the file, and its only writer.

A key that is missing is refused as one that is unknown is: the file holds every setting, so that DVC, which tracks its
keys, sees everything that decides a result.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from ratchet import files, urls
from ratchet.errors import SettingsError
from ratchet.settings import errors as settings_errors
from ratchet.settings import source_names
from ratchet.settings.model import AlertSettings, Params, Section

__all__ = [
    "Edit",
    "changed",
    "differences",
    "dotted",
    "flatten",
    "load",
    "override",
    "parse_assignments",
    "plan",
    "read_text",
    "take_back",
    "template",
    "write_text",
]

# Whose webhook addresses hold the right to write: Slack's, Discord's, Microsoft's and Google's.
_SECRET_ADDRESSES = (
    "hooks.slack.com", "hooks.slack-gov.com", "discord.com", "discordapp.com", "webhook.office.com",
    "logic.azure.com", "powerplatform.com", "chat.googleapis.com",
)  # fmt: skip
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def template() -> str:
    """params.yaml as it is shipped: every setting with its default, its meaning in a comment."""
    lines = [
        "# yaml-language-server: $schema=src/ratchet/settings/params.schema.json",  # for editors
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


@dataclass(frozen=True)
class Edit:
    """A checked change of params.yaml that is not yet written."""

    path: Path
    before: str
    after: str
    params: Params

    def write(self) -> None:
        """Write it, if it changes anything."""
        if self.after != self.before:
            write_text(self.path, self.after)


def override(path: Path, changes: Mapping[str, object]) -> Params:
    """Set dotted keys in the file, comments kept, and return the result; a bad change leaves the file as it is.

    This is what `dvc exp run -S` does, so that the file, dvc.lock and MLflow agree on what ran.
    """
    edit = plan(path, changes)
    edit.write()
    return edit.params


def plan(path: Path, changes: Mapping[str, object]) -> Edit:
    """Check a change of dotted keys, and return what it would make of the file.

    Raises:
        SettingsError: it is not allowed.
    """
    document = _read(path)
    known = settings_errors.dotted_keys(Params)
    told = [settings_errors.unknown(Params, key, _plain(value)) for key, value in changes.items() if key not in known]
    if told:
        raise SettingsError("\n".join(f"{path.name}: {sentence}" for sentence in told))
    before = read_text(path)
    if not changes or not all(_holds(document, key) for key in changes):
        return Edit(path, before, before, _check(document, path))  # says what is missing
    after = _edited(before, {key: _spelled(value) for key, value in changes.items()})
    return Edit(path, before, after, _check(files.parse_yaml(after), path))


def read_text(path: Path) -> str:
    """The file's text with the line ends that it has."""
    return path.read_bytes().decode("utf-8")


def write_text(path: Path, text: str) -> None:
    """Replace the file."""
    files.write_bytes(path, text.encode("utf-8"))


def differences(text: str, other: str, keys: Iterable[str]) -> dict[str, object]:
    """The dotted keys whose values differ in the two texts, with the values that they have in `other`."""
    here, there = files.parse_yaml(text), files.parse_yaml(other)
    values = {key: (_value(here, key), _value(there, key)) for key in keys}
    return {key: theirs for key, (ours, theirs) in values.items() if ours != theirs}


def take_back(text: str, before: str, after: str, keys: Iterable[str]) -> tuple[str, dict[str, object]] | None:
    """Give the keys that `text` still has as in `after` the values of `before`; all else in `text` stays.

    Return the new text and the values. None: it is not YAML.
    """
    from ruamel.yaml.error import YAMLError

    try:
        now, then = files.parse_yaml(text), files.parse_yaml(after)
    except YAMLError:
        return None
    if not isinstance(now, Mapping):
        return None
    unedited = [key for key in keys if _holds(now, key) and _value(now, key) == _value(then, key)]
    restored = differences(text, before, unedited)
    return _edited(text, {key: _as_written(before, key, value) for key, value in restored.items()}), restored


def _value(document: Any, key: str) -> object:
    for part in key.split("."):
        document = document.get(part) if isinstance(document, Mapping) else None
    return document


def _as_written(text: str, key: str, value: object) -> str:
    """A value as this text spells it; a list of several lines as one."""
    start, end = _place(_yaml().compose(text), key)
    written = text[start:end].strip()
    return _spelled(value) if "\n" in written else written


def _place(node: Any, key: str) -> tuple[int, int]:
    """Where the value of a dotted key begins and ends in the text."""
    for part in key.split("."):
        node = next(child for name, child in node.value if name.value == part)
    return node.start_mark.index, node.end_mark.index


def _edited(text: str, changes: Mapping[str, str]) -> str:
    """The file's text with those values put in the place of the old ones, and not a space elsewhere changed."""
    places, root = [], _yaml().compose(text)
    for key, value in changes.items():
        start, end = _place(root, key)
        spelled = " " * (text[start - 1] == ":") + value + "\n" * text[start:end].endswith("\n")
        places.append((start, end, spelled))
    for start, end, spelled in sorted(places, reverse=True):
        text = text[:start] + spelled + text[end:]
    return text


def _spelled(value: object) -> str:
    """A value as YAML writes it on one line."""
    from ruamel.yaml.error import YAMLError

    yaml, line = _yaml(), StringIO()
    yaml.default_flow_style = True
    yaml.width = 100_000
    value = list(value) if isinstance(value, tuple) else value
    yaml.dump({"": value}, line)
    spelled = line.getvalue().strip()[1:-1].partition(":")[2].strip()
    try:  # ruamel writes addresses in a list without quotes, which libyaml does not read
        if files.parse_yaml(f"value: {spelled}") == {"value": value}:
            return spelled
    except YAMLError:
        pass
    return json.dumps(_plain(value), ensure_ascii=False)


def parse_assignments(assignments: list[str]) -> dict[str, object]:
    """`["training.epochs=3"]` -> `{"training.epochs": 3}`; values are read as YAML, as in the file."""
    from ruamel.yaml.error import YAMLError

    changes: dict[str, object] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise SettingsError(f"{urls.redacted(assignment)}: write KEY=VALUE, for example training.epochs=3")
        try:
            changes[key.strip()] = _yaml().load(value)  # a number as it was written
        except (YAMLError, ValueError) as error:  # ValueError: a date or a number of which there is none such
            problem = getattr(error, "problem", None) or str(error)
            raise SettingsError(
                f"{urls.redacted(assignment)}: the value is not YAML ({problem}); write it as params.yaml would, for "
                "example training.epochs=3 or 'data.formats=[jpeg, png]'"
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
    default = settings_errors.spell(field.default)
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
        only = f"only {urls.redacted(repr(document))}"
        found = "nothing" if document is None else "a list" if isinstance(document, list) else only
        raise SettingsError(
            f"{path}: holds {found}; allowed: groups of settings; restore it with `git checkout params.yaml`"
        )
    return document


def _check(document: Mapping[str, Any], path: Path) -> Params:
    told = [
        settings_errors.missing(key, default)
        for key, default in settings_errors.dotted_keys(Params).items()
        if not _holds(document, key)
    ]
    params = None
    try:
        params = Params.model_validate(_plain(document))
    except ValidationError as error:
        told += settings_errors.explain(Params, error.errors())
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
    if unknown := source_names.refusal(data.source):
        yield unknown
    yield from _passwords(params)
    yield from _unusable(params)
    yield from _secrets(params.alerts)
    if params.access.four_eyes and params.registry.promotion == "automatic":
        yield (
            "access.four_eyes: found true; allowed with registry.promotion: manual alone, for a gate has no eyes: set "
            "that, or access.four_eyes=false"
        )


def _passwords(params: Params) -> Iterator[str]:
    """Addresses with a secret in them: the file is committed, and every run records its settings."""
    for key, value in dotted(params.model_dump(mode="json")).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and (kind := urls.secret_in(text)):
                yield (
                    f"{key}: found {urls.redacted(text)}, whose {kind} would be committed and recorded with every run. "
                    f"Allowed: an address without it. Fix: {urls.where_instead(key, text)}"
                )


def _unusable(params: Params) -> Iterator[str]:
    """Addresses that no client can use: a port above 65535, or brackets around what is no IPv6 address."""
    platform = params.platform
    given = [
        ("platform.public_url", platform.public_url),
        ("platform.mlflow_public_url", platform.mlflow_public_url),
        ("platform.prefect_api", platform.prefect_api),
        *(("platform.allowed_hosts", f"http://{host}") for host in platform.allowed_hosts),
        ("alerts.webhook", params.alerts.webhook),
    ]
    for key, url in given:
        if not urls.is_usable(url) and not urls.secret_in(url):
            yield f"{key}: found {url}, which no client can use. Allowed: a port from 1 to 65535, IPv6 as [::1]"


def _secrets(alerts: AlertSettings) -> Iterator[str]:
    """What of the alerts would let anybody write in a team's name, or be read on its way."""
    host = (urlsplit(alerts.webhook).hostname or "") if urls.is_usable(alerts.webhook) else ""
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
