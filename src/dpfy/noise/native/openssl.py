"""OpenSSL's cipher for loops in C: the library that this Python's hashes come from, or the
system's.
"""

import ctypes
from ctypes.util import find_library
from functools import cache
from importlib.util import find_spec

_FUNCTIONS = (
    "EVP_CIPHER_CTX_new",
    "EVP_CIPHER_CTX_free",
    "EVP_aes_256_ctr",
    "EVP_EncryptInit_ex",
    "EVP_EncryptUpdate",
)

Cipher = ctypes.c_void_p * len(_FUNCTIONS)


@cache
def cipher() -> "ctypes.Array[ctypes.c_void_p] | None":
    """Return where the functions of ``struct cipher`` are, or None if there is no such library.

    The package ``cryptography`` brings the cipher too, but shows it to Python alone, where one
    thread at a time is.
    """
    return _from_hashes() or _functions(find_library("crypto"))


def _from_hashes() -> "ctypes.Array[ctypes.c_void_p] | None":
    spec = find_spec("_hashlib")
    return None if spec is None else _functions(spec.origin)


def _functions(library: str | None) -> "ctypes.Array[ctypes.c_void_p] | None":
    if library is None:
        return None
    try:
        loaded = ctypes.CDLL(library)  # never unloaded: the addresses stay good
        return Cipher(*(ctypes.cast(getattr(loaded, name), ctypes.c_void_p) for name in _FUNCTIONS))
    except (OSError, AttributeError):
        return None
