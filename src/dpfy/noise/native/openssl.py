"""Find the AES cipher of OpenSSL for the loops in C.

It comes from the library that Python's own hashes use, or else from the system's.

Tests: tests/noise/native/test_kernels.py.
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
    """Return the addresses of the functions of ``struct cipher``, or None without such a library.

    The package ``cryptography`` has the cipher too, but offers it to Python only, which runs one
    thread at a time.
    """
    return _from_hashes() or _functions(find_library("crypto"))


def _from_hashes() -> "ctypes.Array[ctypes.c_void_p] | None":
    """Return the functions from the library of Python's hashes."""
    spec = find_spec("_hashlib")
    return None if spec is None else _functions(spec.origin)


def _functions(library: str | None) -> "ctypes.Array[ctypes.c_void_p] | None":
    """Return the functions from a library, or None if it lacks one."""
    if library is None:
        return None
    try:
        loaded = ctypes.CDLL(library)  # never unloaded: the addresses stay good
        return Cipher(*(ctypes.cast(getattr(loaded, name), ctypes.c_void_p) for name in _FUNCTIONS))
    except (OSError, AttributeError):
        return None
