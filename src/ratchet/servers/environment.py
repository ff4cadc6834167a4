"""Environment variables of the servers, the worker and everything that talks to Prefect's server."""

import os
from collections.abc import Collection, Mapping

from ratchet.code.closure import PACKAGES
from ratchet.errors import PlatformError, WorkspaceError
from ratchet.servers.addresses import LOOPBACK, PREFECT_PASSWORD
from ratchet.settings.model import AlertSettings
from ratchet.workspace import SAFE_PATH, Workspace

__all__ = [
    "ALERT_SECRETS",
    "FROM_ENVIRONMENT",
    "MAIL_PASSWORD",
    "WEBHOOK",
    "adopt",
    "client_environment",
    "require_names",
    "require_secrets",
    "service_environment",
]

WEBHOOK, MAIL_PASSWORD = "RATCHET_ALERTS_WEBHOOK", "RATCHET_ALERTS_SMTP_PASSWORD"
ALERT_SECRETS = (WEBHOOK, MAIL_PASSWORD)
FROM_ENVIRONMENT = "environment"  # as alerts.webhook: the address is in WEBHOOK

# The user's own Prefect settings that are kept: credentials, certificates, timeouts and log level. Others could name
# another server, database or home folder.
_KEPT = frozenset(
    {
        PREFECT_PASSWORD,
        "PREFECT_API_SSL_CERT_FILE",
        "PREFECT_API_TLS_INSECURE_SKIP_VERIFY",
        "PREFECT_API_REQUEST_TIMEOUT",
        "PREFECT_CLIENT_CUSTOM_HEADERS",
        "PREFECT_LOGGING_LEVEL",
    }
)
_NO_PROXY = ("NO_PROXY", "no_proxy")
_NO_TELEMETRY = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


def client_environment(workspace: Workspace, api_url: str | None = None) -> dict[str, str]:
    """Return the variables that must be set *before* prefect is imported, to use this workspace's server.

    Prefect then keeps its files in .ratchet/prefect and neither reads nor writes ~/.prefect.
    """
    home = workspace.state / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    own = {**_NO_TELEMETRY, "PREFECT_HOME": str(home), "PREFECT_PROFILES_PATH": str(home / "profiles.toml")}
    own["MPLCONFIGDIR"] = str(workspace.state / "matplotlib")  # its cache of fonts is not written into the user's home
    own |= dict.fromkeys(_NO_PROXY, _without_proxy())
    return {**own, "PREFECT_API_URL": api_url} if api_url else own


def _without_proxy() -> str:
    """Return the hosts that no proxy is used for: the user's, and this machine's loopback."""
    hosts = [host.strip() for name in _NO_PROXY for host in os.environ.get(name, "").split(",")]
    return ",".join(dict.fromkeys(host for host in (*hosts, *LOOPBACK) if host))


def service_environment(
    workspace: Workspace, api_url: str | None = None, *, secrets: Collection[str] = ()
) -> dict[str, str]:
    """Return this process's environment without the user's own Prefect settings, and with ours.

    Args:
        secrets: the alerts' secrets that the service needs; it gets no other.
    """
    # RATCHET_HOLDER: a server outlives the run that holds the workspace.
    variables = {
        name: value
        for name, value in os.environ.items()
        if not _is_foreign(name) and name != "RATCHET_HOLDER" and (name not in ALERT_SECRETS or name in secrets)
    }
    variables |= {"PYTHONUNBUFFERED": "1", "RATCHET_ROOT": str(workspace.root), "PWD": str(workspace.root)}
    if not workspace.has_code:
        variables |= SAFE_PATH
    return variables | client_environment(workspace, api_url)


def require_names(workspace: Workspace) -> None:
    """Refuse a module of the project that Prefect would take for Ratchet's: it looks in the working folder first.

    Raises:
        PlatformError: the message names the module.
    """
    root = workspace.root
    places = [path for name in PACKAGES for path in (root / f"{name}.py", root / name / "__init__.py")]
    taken = [path for path in places if path.exists()]
    if taken and not workspace.has_code:
        raise PlatformError(f"{taken[0]}: Prefect would import it in place of Ratchet's. Fix: rename it")


def adopt(workspace: Workspace) -> None:
    """Set this process's environment up for this workspace's Prefect. Call it before prefect is imported.

    Raises:
        WorkspaceError: the folder cannot be written.
    """
    try:
        own = client_environment(workspace)
    except OSError as error:
        raise WorkspaceError(
            f"{workspace.state}: cannot be written ({error.strerror}). Fix: make it writable for this user"
        ) from error
    for name in filter(_is_foreign, list(os.environ)):
        del os.environ[name]
    os.environ.update(own)


def require_secrets(settings: AlertSettings, environment: Mapping[str, str]) -> None:
    """Check that the environment of Prefect's server has the secrets that the settings need.

    Raises:
        PlatformError: one is missing; names the variable.
    """
    needed = [(WEBHOOK, "alerts.webhook", settings.webhook)] if settings.webhook == FROM_ENVIRONMENT else []
    if settings.email_to and settings.smtp_user != "none":
        needed.append((MAIL_PASSWORD, "alerts.smtp_user", settings.smtp_user))
    for name, key, value in needed:
        if not environment.get(name):
            raise PlatformError(
                f"{name}: not in the environment that Prefect's server is started in, and {key} is {value}. Fix: "
                f"`ratchet down`, `export {name}=...`, then `ratchet up`; or `ratchet set {key}=none`"
            )


def _is_foreign(name: str) -> bool:
    """Return whether a variable is the user's own setting of Prefect (PREFECT__... is set inside a run) or MLflow."""
    return name.startswith(("PREFECT_", "_MLFLOW_")) and name not in _KEPT
