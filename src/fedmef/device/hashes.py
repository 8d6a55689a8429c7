"""hashlib without OpenSSL, which takes 3.5 MB: Python's own hashes do, where it has all of them."""

import sys
from importlib import reload
from importlib.util import find_spec

OWN = ("_md5", "_sha1", "_sha3", "_blake2")
OWN_SHA2 = ("_sha2",) if sys.version_info >= (3, 12) else ("_sha256", "_sha512")


def leave_out_openssl() -> None:
    """Call it before anything imports hashlib; later it does nothing."""
    if "hashlib" not in sys.modules and all(find_spec(name) for name in OWN + OWN_SHA2):
        sys.modules.setdefault("_hashlib", None)  # type: ignore[arg-type]


def bring_back_openssl() -> None:
    """Before code that is not ours: it may need scrypt, or a hash that only OpenSSL has."""
    if "_hashlib" in sys.modules and sys.modules["_hashlib"] is None:
        del sys.modules["_hashlib"]
        if "hashlib" in sys.modules:
            reload(sys.modules["hashlib"])
