"""Reads, checks and changes params.yaml. No other code reads or writes the file.

A setting that is not in the file has its default. DVC tracks the settings with the defaults filled in, which the stage
code writes to data/settings.json (`tasks/code.py`).
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from ratchet import files, urls
from ratchet.augmentations import list_faults
from ratchet.errors import SettingsError
from ratchet.settings import messages as settings_errors
from ratchet.settings import search_faults, source_names
from ratchet.settings.model import AlertSettings, Params, Section, TrainingSettings
from ratchet.workspace import Workspace

__all__ = [
    "Edit", "changed", "changing", "dotted", "flatten", "load", "override", "parse_assignments", "plan", "read_text",
    "restored", "template", "usual_code",
]  # fmt: skip

# A webhook address of these hosts is a secret: it gives the right to write (Slack, Discord, Microsoft, Google).
_SECRET_HOSTS = (
    "hooks.slack.com", "hooks.slack-gov.com", "discord.com", "discordapp.com", "webhook.office.com",
    "logic.azure.com", "powerplatform.com", "chat.googleapis.com",
)  # fmt: skip
_SHIPPED = {  # settings of the shipped params.yaml, by section
    "data": "kind source path manifest label_column drop order_by image_size max_bad_fraction validation_fraction "
    "test_fraction code",
    "model": "name factory code pretrained",
    "training": "epochs batch_size label_smoothing class_weights optimizer learning_rate weight_decay schedule flip "
    "crop_padding device precision patience",
    "budget": "wall_hours",
    "evaluation": "slices",
    "gate": "minimum minimum_metric champion",
    "registry": "model promotion",
    "tracking": "uri experiment",
    "serving": "port",
    "search": "space trials",
    "alerts": "webhook",
}
_REQUIRED = ("data.path", "data.code", "model.code")  # paths in dvc.yaml, which DVC reads in params.yaml
_OWN_CODE = {"data.code": "own/kind.py", "model.code": "own/model.py"}  # of a project without Ratchet's code
_SECTIONS = [name for name, field in Params.model_fields.items() if isinstance(field.default, Section)]
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_ADDRESSES = ("public_url", "mlflow_public_url", "prefect_api")  # settings of the platform


def template() -> str:
    """Return the shipped params.yaml: the settings that most people change, with default and description."""
    lines = [
        "# yaml-language-server: $schema=src/ratchet/settings/params.schema.json",  # for editors
        "# The settings that are changed most. Any other (docs/settings.md) has its default until it is added here,",
        "# by hand or with `ratchet set KEY=VALUE`. For one run: `ratchet train --set training.epochs=3`.",
        "",
        _line("seed"),
    ]
    for section, names in _SHIPPED.items():
        lines += ["", _heading(section), *(f"  {_line(f'{section}.{name}')}" for name in names.split())]
    return "\n".join(lines) + "\n"


def usual_code(workspace: Workspace) -> dict[str, object]:
    """Return the values that data.code and model.code have in this project while no code of its own is used."""
    return {key: _value({}, key) if workspace.has_code else own for key, own in _OWN_CODE.items()}


def load(path: Path) -> Params:
    """Read and check the whole file.

    Raises:
        SettingsError: the message lists every fault with its key, value, allowed values and fix.
    """
    return _check(_read(path), path)


@dataclass(frozen=True)
class Edit:
    """A checked change of params.yaml.

    Attributes:
        before, after: text of the file.
        changes: value before and after, by dotted key.
    """

    path: Path
    before: str
    after: str
    params: Params
    changes: Mapping[str, tuple[object, object]]


def override(path: Path, changes: Mapping[str, object]) -> Params:
    """Set dotted keys in the file and return all settings. Comments stay; a wrong change leaves the file unchanged.

    `dvc exp run -S` does the same, so the file, dvc.lock and MLflow agree on the settings of a run.
    """
    with changing(path, changes) as edit:
        return edit.params


@contextmanager
def changing(path: Path, changes: Mapping[str, object]) -> Iterator[Edit]:
    """Check a change of dotted keys, and write it on leaving. No other process changes the file meanwhile.

    Raises:
        SettingsError: the change is not allowed; the file stays unchanged.
    """
    with files.locked(path.resolve().parent):  # several projects may have a link to the file
        edit = plan(path, changes)
        yield edit
        if edit.after != edit.before:
            files.write_text(path.resolve(), edit.after)


def plan(path: Path, changes: Mapping[str, object]) -> Edit:
    """Check a change of dotted keys without writing it.

    Raises:
        SettingsError: the change is not allowed.
    """
    document = _read(path)
    keys = settings_errors.dotted_keys(Params)
    unknown = [settings_errors.unknown(Params, key, _plain(value)) for key, value in changes.items() if key not in keys]
    if unknown:
        raise _error(path, unknown)
    before = read_text(path)
    if not changes or any(key.rpartition(".")[0] in _misused(document) for key in changes):
        return Edit(path, before, before, _check(document, path), {})  # raises for a section that is a single value
    after = _edited(before, changes)
    edited = files.parse_yaml(after)
    values = {key: (_value(document, key), _value(edited, key)) for key in changes}
    return Edit(path, before, after, _check(edited, path), values)


def read_text(path: Path) -> str:
    """Return the text of the file, with its own line ends."""
    return path.read_bytes().decode("utf-8")


def restored(text: str, before: str, after: str, keys: Iterable[str]) -> tuple[str, dict[str, object]] | None:
    """Restore the values of `before` for those keys that still have their value of `after` in `text`.

    Return the new text and the restored values, or None if `text` is not YAML.
    """
    from ruamel.yaml.error import YAMLError

    try:
        now, old, new = (files.parse_yaml(each) for each in (text, before, after))
    except YAMLError:
        return None
    if not isinstance(now, Mapping):
        return None
    known = settings_errors.dotted_keys(Params)  # the note may be of an earlier release
    unedited = [key for key in keys if key in known and _value(now, key) == _value(new, key)]
    values = {key: _value(old, key) for key in unedited if _value(old, key) != _value(new, key)}
    if text == after:
        return before, values  # every byte as before
    return _edited(text, values), values


def _value(document: Mapping[str, Any], key: str) -> object:
    """Return the value of a dotted key, which may be the default."""
    section, _, name = key.rpartition(".")
    inside = document.get(section, {}) if section else document
    default = settings_errors.dotted_keys(Params)[key]
    return inside.get(name, default) if isinstance(inside, Mapping) else default


def _edited(text: str, changes: Mapping[str, object]) -> str:
    """Return the text with these values replaced, or added to their sections, and nothing else changed."""
    from ruamel.yaml.error import YAMLError

    try:
        after = _spliced(text, changes)
        values = (dotted(files.parse_yaml(each)).items() for each in (text, after))
        before, now = (
            {key: value for key, value in each if key not in changes and value is not None} for each in values
        )
        if before == now:
            return after
    except YAMLError:
        pass
    raise SettingsError(
        f"params.yaml: {', '.join(changes)} cannot be replaced in the form that the file has. Allowed: one setting per "
        "line, without anchors. Fix: change it by hand"
    )


def _spliced(text: str, changes: Mapping[str, object]) -> str:
    line_end = "\r\n" if "\r\n" in text else "\n"
    text += "" if text.endswith("\n") else line_end
    root, order = _yaml().compose(text), list(settings_errors.dotted_keys(Params))
    edits: dict[tuple[int, int], str] = {}  # new text, by the slice that it replaces
    sections: dict[str, list[str]] = {}  # lines of new sections
    for key in sorted(changes, key=order.index):
        section, _, name = key.rpartition(".")
        heading, group = _child(root, section) if section else (root, root)
        spelled, is_empty = _spelled(changes[key]), isinstance(getattr(group, "value", None), str)
        label, node = (None, None) if group is None or is_empty else _child(group, name)
        if group is None or (is_empty and root.flow_style):
            sections.setdefault(section, [_heading(section)]).append(f"  {_line(key, spelled)}")
        elif node:
            colon, start, end = _colon(text, label), node.start_mark.index, _end(text, label, node)
            if node.value != "" and "\n" not in text[colon:start]:
                edits[start, end] = spelled
            else:  # empty, or on the lines below
                edits[min(end, len(text[:start].rstrip())), end] = ""
                edits[colon, colon] = f" {spelled}"
        elif not is_empty and group.flow_style:
            end = group.end_mark.index - 1
            separator = ", " if group.value or (end, end) in edits else ""
            edits[end, end] = f"{edits.get((end, end), '')}{separator}{name}: {spelled}"
        else:
            before = (each.rpartition(".") for each in order[: order.index(key)])
            if is_empty and group.value:  # null
                edits[group.start_mark.index, group.end_mark.index] = ""
            place, indent = _addition(text, heading, group, [name for above, _, name in before if above == section])
            edits[place, place] = f"{edits.get((place, place), '')}{indent}{_line(key, spelled)}{line_end}"
    if sections and root.flow_style:
        raise SettingsError(
            f"params.yaml: it is one pair of braces, to which the section {next(iter(sections))} cannot be added. "
            "Allowed: one setting per line. Fix: restore it with `git checkout params.yaml`"
        )
    for (start, end), new in sorted(edits.items(), reverse=True):
        text = text[:start] + new + text[end:]
    return text + "".join(line_end.join(["", *lines, ""]) for lines in sections.values())


def _child(node: Any, name: str) -> tuple[Any, Any]:
    """Return the nodes of a key and its value."""
    return next((pair for pair in node.value if pair[0].value == name), (None, None))


def _colon(text: str, label: Any) -> int:
    return text.index(":", label.end_mark.index) + 1


def _end(text: str, label: Any, node: Any) -> int:
    """Return where the last scalar of a value ends. A block of ruamel ends where the next key begins."""
    while isinstance(node.value, list) and not node.flow_style:
        label, node = node.value[-1] if isinstance(node.value[-1], tuple) else (None, node.value[-1])
    if node.value == "" and label and node.start_mark.index == node.end_mark.index:
        return _colon(text, label)
    return len(text[: node.end_mark.index].rstrip())


def _addition(text: str, heading: Any, group: Any, earlier: list[str]) -> tuple[int, str]:
    """Return where the line of a new setting belongs in its section, below those of `earlier`, and its indent."""
    if isinstance(group.value, str):  # a section without a line
        return text.index("\n", _colon(text, heading)) + 1, "  "
    first = group.value[0][0].start_mark
    ends = [_end(text, name, value) for name, value in group.value if name.value in earlier]
    return text.index("\n", ends[-1]) + 1 if ends else first.index - first.column, " " * first.column


def _spelled(value: object) -> str:
    """Return a value as YAML on one line."""
    from ruamel.yaml.error import YAMLError

    yaml, line = _yaml(), StringIO()
    yaml.default_flow_style = True
    yaml.width = 100_000
    value = list(value) if isinstance(value, tuple) else value
    yaml.dump({"": value}, line)
    spelled = line.getvalue().strip()[1:-1].partition(":")[2].strip()
    try:  # ruamel writes URLs in a list without quotes, which libyaml cannot read
        if files.parse_yaml(f"value: {spelled}") == {"value": value}:
            return spelled
    except YAMLError:
        pass
    return json.dumps(_plain(value), ensure_ascii=False)


def parse_assignments(assignments: list[str]) -> dict[str, object]:
    """Return `{"training.epochs": 3}` for `["training.epochs=3"]`. Values are read as YAML."""
    from ruamel.yaml.error import YAMLError

    changes: dict[str, object] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise SettingsError(
                f"{urls.redacted(assignment)}: not an assignment. Allowed: KEY=VALUE, for example training.epochs=3"
            )
        if (key := key.strip()) in changes:
            raise SettingsError(f"{key}: is assigned twice. Allowed: each key once. Fix: leave out one of the two")
        try:
            changes[key] = _yaml().load(value)  # keeps the spelling of numbers
        except (YAMLError, ValueError) as error:  # ValueError: a date or number that does not exist
            problem = getattr(error, "problem", None) or str(error)
            raise SettingsError(
                f"{urls.redacted(assignment)}: the value is not YAML ({problem}). Fix: write it as in params.yaml, for "
                "example training.epochs=3 or 'data.formats=[jpeg, png]'"
            ) from None
    return changes


def flatten(changes: Section) -> dict[str, object]:
    """Return the dotted keys that are set."""
    return dotted(changes.model_dump(exclude_none=True))


def dotted(content: Mapping[str, Any]) -> dict[str, object]:
    """Return sections as dotted keys: {"training": {"epochs": 3}} becomes {"training.epochs": 3}.

    A mapping in a section is one value, as that of data.columns.
    """
    flat: dict[str, object] = {}
    for key, value in content.items():
        section = {f"{key}.{name}": each for name, each in value.items()} if isinstance(value, Mapping) else None
        flat |= {key: value} if section is None else section
    return flat


def changed(params: Params, sections: Collection[str]) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys of these sections that differ from the default, with value and default."""
    values, defaults = (dotted(each.model_dump(mode="json", include=set(sections))) for each in (params, Params()))
    return {key: (value, defaults[key]) for key, value in values.items() if value != defaults[key]}


def _heading(section: str) -> str:
    return f"{section}:  # {_group(section).__doc__}"


def _line(key: str, value: str | None = None) -> str:
    """Return the line of a setting with this value, or its default."""
    section, _, name = key.rpartition(".")
    field = (_group(section) if section else Params).model_fields[name]
    default = settings_errors.spell(field.default)
    return f"{name}: {value or default}  # {field.description} (default: {default})"


def _group(section: str) -> type[Section]:
    group = Params.model_fields[section].annotation
    assert isinstance(group, type)
    assert issubclass(group, Section)
    return group


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
        raise SettingsError(f"{path}: missing. Fix: restore it with `git checkout params.yaml`") from None
    except (YAMLError, UnicodeDecodeError) as error:
        place = getattr(error, "problem_mark", None)
        where = f" line {place.line + 1}" if place else ""
        problem = getattr(error, "problem", None) or str(error)
        raise SettingsError(f"{path}{where}: not YAML ({problem}). Fix: correct that line") from None
    if not isinstance(document, Mapping):
        only = f"only {urls.redacted(repr(document))}"
        content = "nothing" if document is None else "a list" if isinstance(document, list) else only
        raise SettingsError(
            f"{path}: contains {content}. Allowed: sections of settings. Fix: restore it with "
            "`git checkout params.yaml`"
        )
    return document


def _check(document: Mapping[str, Any], path: Path) -> Params:
    absent = set(_REQUIRED) - dotted(document).keys()
    faults = [
        settings_errors.missing(key, usual_code(Workspace(path.parent)).get(key, _value({}, key)))
        for key in _REQUIRED
        if key in absent and key.partition(".")[0] not in _misused(document)
    ]
    params = None
    try:
        present = {name: each for name, each in document.items() if each is not None or name not in _SECTIONS}
        params = Params.model_validate(_plain(present))
    except ValidationError as error:
        faults += settings_errors.explain(Params, error.errors())
    if params is None or faults:
        raise _error(path, faults)
    if contradictions := list(_contradictions(params)):
        raise _error(path, contradictions)
    return params


def _error(path: Path, faults: Iterable[str]) -> SettingsError:
    return SettingsError("\n".join(f"{path.name}: {fault}" for fault in faults))


_OWN_KIND = "package.module:Class"
_OF_KINDS = {  # settings that only some kinds of data use
    **dict.fromkeys(("order_by", "gap", "columns", "missing"), ("table",)),
    **dict.fromkeys(("problem", "refuse_personal"), ("image", "table", "text", _OWN_KIND)),
}


def _contradictions(params: Params) -> Iterator[str]:
    """Yield a message for each combination of settings that is not allowed."""
    data = params.data
    held_out = data.validation_fraction + data.test_fraction
    if held_out >= 1.0:
        yield (
            f"data.validation_fraction + data.test_fraction is {held_out:g}, which leaves nothing to train on. "
            "Allowed: below 1. Fix: lower one of them"
        )
    if data.folds == 1:
        yield "data.folds: found 1. Allowed: 0 (none), or 2 and more"
    elif data.fold >= max(1, data.folds):
        yield f"data.fold: found {data.fold}. Allowed: 0 to {max(0, data.folds - 1)}, for data.folds {data.folds}"
    for name, kinds in _OF_KINDS.items():
        value, usual = getattr(data, name), type(data).model_fields[name].default
        if value != usual and (_OWN_KIND if ":" in data.kind else data.kind) not in kinds:
            yield (
                f"data.{name}: found {value}. Allowed: only with data.kind {' or '.join(kinds)}, and it is "
                f"{data.kind}. Fix: set it to {usual}"
            )
    if data.kind == "image" and data.source != "image-manifest" and data.problem not in ("auto", "classification"):
        yield (
            f"data.problem: found {data.problem}. Allowed with images: only with data.source image-manifest, whose "
            f"table has such targets, and it is {data.source}. Fix: set it to auto"
        )
    if data.classes != "auto" and len(data.label_columns) > 1:
        yield (
            f"data.classes: found {_spelled(data.classes)}. Allowed: only with one data.label_column, and it is "
            f"{_spelled(data.label_columns)}. Fix: set it to auto, or name one column in data.label_column"
        )
    yield from _nodes(params.training)
    yield from list_faults(params.training, data.kind)
    if unknown := source_names.refusal(data.source):
        yield unknown
    yield from search_faults.faults(params)
    yield from _passwords(params)
    yield from _unusable(params)
    yield from _exposed_secrets(params.alerts)


def _nodes(training: TrainingSettings) -> Iterator[str]:
    """Yield a message for a wrong number of machines, or for several without a place to meet."""
    least, _, most = str(training.nodes).partition(":")
    if int(most or least) < int(least):
        yield f"training.nodes: found {least}:{most}. Allowed: MIN:MAX. Fix: set it to {most}:{least}"
    elif int(most or least) > 1 and training.rendezvous == "none":
        yield (
            f"training.rendezvous: found none. Allowed with training.nodes {training.nodes}: HOST:PORT, an "
            "address of the first machine that the others reach, and a free port. Fix: set it to HOST:29400"
        )


def _passwords(params: Params) -> Iterator[str]:
    """Yield a message for each address with a secret: the file is committed, and every run records its settings."""
    for key, value in dotted(params.model_dump(mode="json")).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and (kind := urls.secret_in(text)):
                yield (
                    f"{key}: found {urls.redacted(text)}, whose {kind} would be committed and recorded with every run. "
                    f"Allowed: an address without it. Fix: {urls.where_instead(key, text)}"
                )


def _unusable(params: Params) -> Iterator[str]:
    """Yield a message for each unusable address: a port above 65535, or brackets without an IPv6 address."""
    platform = params.platform
    addresses = [(f"platform.{name}", getattr(platform, name)) for name in _ADDRESSES]
    addresses += [("platform.allowed_hosts", f"http://{host}") for host in platform.allowed_hosts]
    addresses.append(("alerts.webhook", params.alerts.webhook))
    for key, url in addresses:
        if not urls.is_usable(url) and not urls.secret_in(url):
            yield f"{key}: found {url}, which no client can use. Allowed: a port from 1 to 65535, IPv6 as [::1]"


def _exposed_secrets(alerts: AlertSettings) -> Iterator[str]:
    """Yield a message for alert settings that expose a secret in the file or on the network."""
    host = (urlsplit(alerts.webhook).hostname or "") if urls.is_usable(alerts.webhook) else ""
    if any(f".{host}".endswith(f".{secret_host}") for secret_host in _SECRET_HOSTS):
        yield (
            f"alerts.webhook: found an address of {host}, which is a secret: everyone who knows it can write there. "
            "Allowed: none or environment. Fix: `ratchet set alerts.webhook=environment`, and put the address in the "
            "environment variable RATCHET_ALERTS_WEBHOOK"
        )
    server = alerts.smtp.rpartition(":")[0].strip("[]")
    if alerts.smtp_user != "none" and alerts.smtp_security == "none" and server not in _LOOPBACK:
        yield (
            f"alerts.smtp_security: found none, which would send the password of {alerts.smtp_user} to {server} "
            "unencrypted. Allowed with alerts.smtp_user: starttls or tls"
        )


def _plain(node: Any) -> Any:
    """Return ruamel's containers and scalars as plain Python types, because strict validation refuses subclasses."""
    if isinstance(node, Mapping):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_plain(value) for value in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _misused(document: Mapping[str, Any]) -> set[str]:
    """Return the sections that are not sections in the file. Null is a section of which all lines were deleted."""
    values = {name: document[name] for name in _SECTIONS if document.get(name) is not None}
    return {name for name, value in values.items() if not isinstance(value, Mapping)}
