"""Serve the model of an offline bundle. This module imports neither PyTorch nor MLflow."""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ratchet import files
from ratchet.checksums import verify
from ratchet.errors import RatchetError, RegistryError
from ratchet.exports.variants import FULL
from ratchet.serving.app import ModelServer
from ratchet.serving.keys import KeyStore, require_key
from ratchet.serving.process import check_free, run
from ratchet.serving.process_group import process_count, run_group, threads_each
from ratchet.serving.shared_state import Member, SharedStates
from ratchet.serving.versions.alias_watcher import PinnedVersion
from ratchet.serving.versions.loaded import Identity, LoadedVersion
from ratchet.settings.messages import explain
from ratchet.settings.model import ServingSettings

__all__ = ["ABOUT", "KEYS", "MODEL", "About", "load", "main"]

ABOUT, KEYS, MODEL = "bundle.json", "keys.json", "model"


@dataclass(frozen=True)
class About:
    """Content of bundle.json."""

    identity: Identity
    checksums: str  # digest of the model's checksums
    settings: ServingSettings
    content: bytes  # of the file


def load(bundle: Path, about: About, *, threads: int) -> LoadedVersion:
    """Compare the model's files with their checksums, and load it.

    Raises:
        RegistryError, TrainingError: a file is not the one that was written, or the model does not answer.
    """
    folder = bundle / MODEL
    checksums = verify(folder)
    if checksums is None or files.digest_json(checksums) != about.checksums:
        raise RegistryError(f"{folder}: its checksums are not those of {ABOUT}. Fix: write the bundle again")
    loaded = LoadedVersion(about.identity, folder, threads=threads, variant=FULL)  # the only program here
    loaded.identity = about.identity
    return loaded


def main(bundle: Path) -> int:
    """Serve the bundle until a signal ends the process; return the exit code."""
    try:
        member = Member.enter()
        about = _read(bundle / ABOUT, member)
        given = _arguments(about.settings)
        store, host, port = KeyStore(bundle / KEYS), given.host, given.port
        settings = about.settings.model_copy(update={"processes": given.processes})
        count = process_count(settings)
        if member is None:
            require_key(store, host, always=settings.keys == "required", named="--host")
            check_free(host, port, named=("--host", "--port"))
            if count > 1:
                command = [sys.executable, *sys.orig_argv[1:]]
                run_group(
                    command, count, settings=about.content, host=host, port=port, deadline=settings.deadline, say=_say
                )
        threads = threads_each(settings.model_copy(update={"threads": given.threads}), count)
        version = PinnedVersion(load(bundle, about, threads=threads))
        server = ModelServer(version, settings, group=SharedStates(member) if member else None)
        run(
            server,
            store,
            host=host,
            port=port,
            allowed=given.allow,
            say=_say,
            fix="Fix: name it by the option --allow.",
            member=member,
        )
    except RatchetError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # while it loads; a server that answers ends by the signal itself
        return 130
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


def _read(path: Path, member: Member | None) -> About:
    try:
        text = member.settings if member else path.read_bytes()
        content = json.loads(text)
        settings = ServingSettings.model_validate(content["serving"])
        return About(Identity(**content["identity"]), content["checksums"], settings, text)
    except ValidationError as error:
        faults = "; ".join(explain(ServingSettings, error.errors()))
        raise RegistryError(f"{path}: serving: {faults}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RegistryError(f"{path}: cannot be read ({error}). Fix: write the bundle again") from error


def _processes(text: str) -> int | str:
    return text if text == "auto" else int(text)


def _arguments(settings: ServingSettings) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Answer requests with the model of this folder.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=settings.port, help="to listen on (default: %(default)s)")
    parser.add_argument(
        "--threads", type=int, default=settings.threads, help="that compute one batch (default: %(default)s)"
    )
    parser.add_argument(
        "--processes", type=_processes, default=settings.processes, help="that answer, or auto (default: %(default)s)"
    )
    parser.add_argument("--allow", action="append", default=[], metavar="NAME", help="another host name of this server")
    given = parser.parse_args()
    for name, largest in (("port", 65535), ("threads", 1024), ("processes", 1024)):
        if (value := getattr(given, name)) != "auto" and not 1 <= value <= largest:
            parser.error(f"--{name}: found {value}; allowed: 1 to {largest}")
    return given
