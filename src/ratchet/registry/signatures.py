"""Ed25519 signatures of the ledger's entries. The private key comes from the environment and is never written."""

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ratchet.errors import RegistryError, SettingsError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["KEY_VARIABLE", "public_key", "sign", "signature_fault"]

KEY_VARIABLE = "RATCHET_LEDGER_KEY"
_PREFIX = b"ratchet ledger entry\n"  # so that no signature over other data is valid here


def sign(message: bytes, keys: Sequence[str]) -> dict[str, str] | None:
    """Sign with the environment's private key; return None without one. `keys` are the public keys in params.yaml.

    Raises:
        RegistryError: params.yaml lists keys, and the environment has none of them.
        SettingsError: the variable does not hold an Ed25519 private key.
    """
    private = _private_key()
    if private is None:
        if keys:
            raise RegistryError(
                f"registry.ledger_keys is set, so every act must be signed, and {KEY_VARIABLE} is not set. Fix: "
                f'export {KEY_VARIABLE}="$(cat key.pem)" with a key whose public key is listed'
            )
        return None
    public = _public(private)
    if keys and public not in keys:
        raise RegistryError(
            f"the key in {KEY_VARIABLE} has the public key {public}, which registry.ledger_keys in params.yaml does "
            "not list. Fix: use a listed key, or add this one to the list"
        )
    return {"key": public, "value": base64.b64encode(private.sign(_PREFIX + message)).decode()}


def public_key() -> str | None:
    """Return the public key of the environment's private key, as params.yaml lists it; None without one."""
    private = _private_key()
    return _public(private) if private else None


def signature_fault(signature: object, message: bytes, keys: Sequence[str]) -> str | None:
    """Return what is wrong with an entry's signature; None if one of `keys` made it."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not isinstance(signature, Mapping):
        return "has no signature, and registry.ledger_keys requires one"
    key, value = str(signature.get("key")), str(signature.get("value"))
    if key not in keys:
        return f"is signed with the key {key}, which registry.ledger_keys does not list"
    try:
        public = Ed25519PublicKey.from_public_bytes(base64.b64decode(key, validate=True))
        public.verify(base64.b64decode(value, validate=True), _PREFIX + message)
    except (InvalidSignature, binascii.Error, ValueError):
        return "has a signature that does not match it"
    return None


def _private_key() -> "Ed25519PrivateKey | None":
    text = os.environ.get(KEY_VARIABLE, "")
    if not text.strip():
        return None
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key: Any = load_pem_private_key(text.strip().encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsError(
            f"{KEY_VARIABLE}: found no Ed25519 private key; allowed: the text of a PEM file without a password. Fix: "
            f'openssl genpkey -algorithm ed25519 -out key.pem, then export {KEY_VARIABLE}="$(cat key.pem)"'
        )
    return key


def _public(private: "Ed25519PrivateKey") -> str:
    return base64.b64encode(private.public_key().public_bytes_raw()).decode()
