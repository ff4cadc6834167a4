"""Secrets in addresses: find them, and show an address without them.

A password, a token in place of a user's name, or a query parameter that signs or authorises a request. params.yaml is
committed and every run records its settings, so an address there must hold none of these.
"""

import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit, urlunsplit

__all__ = ["bare", "is_usable", "redacted", "secret_in", "where_instead"]

NO_RESULT = "it refuses passwords in addresses"

# One address: up to a space or to where the next one begins.
_ADDRESS = re.compile(r"(?P<scheme>[\w.+-]*)://(?P<rest>(?:(?![\w.+-]*://)\S)*)")
# A password may hold any character: AWS secret keys hold "/". It ends at the last "@".
_LOGIN = re.compile(r"(?P<user>[^/?#:@]*)(?::(?P<password>.*))?@", re.DOTALL)
_PORT = re.compile(r"[0-9]{1,5}[/?#]")  # in http://host:9000/a@b nothing is secret
_IPV6 = re.compile(r"\[[0-9A-Fa-f:.]+(%\w+)?\](:[0-9]{1,5})?([/?#]|$)")  # nor in http://[::1]:9000/a@b
_PARAMETER = re.compile(r"(?P<start>[?&#;](?P<name>[^=&#;?\s/]+)=)(?P<value>[^&#;\s]+)")
# Names of query parameters, without case, "-" and "_".
_SECRET_NAMES = frozenset({"auth", "authorization", "credentials", "jwt", "key", "passphrase", "passwd", "pwd", "sig"})
_SECRET_ENDS = ("password", "secret", "token", "signature", "accesskey", "apikey", "secretkey", "privatekey")
_USERLESS = ("http", "https", "s3", "gs", "gcs")  # a user alone is a token or an access key there
_DATABASES = ("postgres", "mysql", "mariadb", "mssql", "oracle", "redis", "mongodb")
_SHOWN = "***"


def secret_in(text: str) -> str | None:
    """Return the kind of the first secret in the addresses in `text`, or None."""
    return next((kind for _, _, kind in _secrets(text)), None)


def redacted(text: str) -> str:
    """Replace every secret of the addresses in `text` by ***."""
    for start, end, _ in sorted(_secrets(text), reverse=True):
        text = text[:start] + _SHOWN + text[end:]
    return text


def bare(url: str) -> str:
    """Return a URL without its password, its query and, over HTTP, its user, who may be a token.

    A path, and USER@HOST:PATH, which holds no password, stay as they are.
    """
    if "://" not in url:
        return url
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    shown = "" if parts.scheme in ("http", "https") else user.partition(":")[0]
    return urlunsplit((parts.scheme, f"{shown}{at if shown else ''}{host}", parts.path, "", ""))


def is_usable(url: str) -> bool:
    """Return whether the port and the IPv6 address of a URL are possible ones, so that a client can use it."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def where_instead(key: str, url: str) -> str:
    """Return how to pass the secret of this address to its client, outside the setting `key`."""
    scheme = url.partition("://")[0].lower().rpartition("::")[2].partition("+")[0]
    if key == "alerts.webhook":
        return "`ratchet set alerts.webhook=environment`, and export RATCHET_ALERTS_WEBHOOK"
    if key.startswith("platform.") and scheme in ("http", "https"):
        return "export PREFECT_API_AUTH_STRING=USER:PASSWORD"
    if key == "tracking.uri" and scheme in ("http", "https"):
        return "export MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
    ways = {
        "postgresql": "export PGPASSWORD, or write ~/.pgpass",
        "postgres": "export PGPASSWORD, or write ~/.pgpass",
        "s3": "export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile of ~/.aws by AWS_PROFILE",
        "ssh": "use an SSH key or agent, named in ~/.ssh/config",
        "sftp": "use an SSH key or agent, named in ~/.ssh/config",
        "gs": "export GOOGLE_APPLICATION_CREDENTIALS",
        "abfs": "export AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        "abfss": "export AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    }
    return ways.get(scheme, "use the environment or the file that this storage's own tools read")


def _secrets(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and kind of each secret in `text`."""
    if "://" not in text:
        return
    for address in _ADDRESS.finditer(text):
        scheme, start = address["scheme"].lower().rpartition("+")[2], address.start("rest")
        match = _LOGIN.match(address["rest"])
        if not match or _IPV6.match(address["rest"]):
            continue
        database = address["scheme"].lower().startswith(_DATABASES)
        if match["password"] and (database or not _PORT.match(match["password"])):
            yield start + match.start("password"), start + match.end("password"), "password"
        elif match["user"] and not match["password"] and scheme in _USERLESS:
            yield start, start + match.end("user"), "user's name, which may be a token,"
    for match in _PARAMETER.finditer(text):
        name = re.sub(r"[-_.]", "", unquote(match["name"])).lower()
        if name in _SECRET_NAMES or name.endswith(_SECRET_ENDS):
            yield match.start("value"), match.end("value"), f"parameter {unquote(match['name'])}"
