"""Allow a strict run what rests on theorems, cited papers and checks; refuse any allowance."""

from collections.abc import Collection

from dpfy.errors import InvalidArgument

_ENGINES = {
    "bookkeeping": "it computes records together; that they do not mix is checked on synthetic "
    "input, and that their last bits hardly move is an allowance",
    "ghost": "it computes records together; that they do not mix is checked on synthetic input, "
    "and that their last bits hardly move is an allowance",
    "vmap": "torch may choose other kernels for chunks of another size, and that last bits hardly "
    "move then is an allowance",
}


def strict_engine(
    engine: str,
    *,
    sampling: str,
    anchored: bool,
    test_key: bool = False,
    devices: Collection[str] = ("cpu",),
) -> str:
    """Return the engine of a strict run, or refuse what would rest on an allowance.

    Args:
        engine: what was asked for; ``auto`` and ``loop`` are possible.
        sampling: the tag of the sampling policy.
        anchored: whether the ledger's head is kept in a second place.
        test_key: whether the key is a test's.
        devices: the types of the devices that hold trained parameters.

    Raises:
        InvalidArgument: if anything of it would need an allowance; the text says what to do.
    """
    if engine not in ("auto", "loop"):
        raise InvalidArgument(
            f"Expected engine='auto' or 'loop' with strict=True, got {engine!r}: "
            f"{_ENGINES[engine]}."
        )
    if sampling.startswith("importance"):
        raise InvalidArgument(
            "Expected another sampling than 'importance' with strict=True: records are accepted by "
            "norms that are known up to an allowance for rounding (docs/proofs/dpis.md). Use "
            "'poisson'."
        )
    if not anchored:
        raise InvalidArgument(
            "A strict run needs an anchor: a file in another place, best on another machine's "
            "disk, that also keeps the head of the ledger, so that restoring an older copy is "
            "noticed. Give anchor=FILE, or Ledger.open(..., anchor=FILE)."
        )
    if test_key:
        raise InvalidArgument(
            "A strict run draws its key from the operating system. Leave insecure_test_key out."
        )
    if others := sorted(set(devices) - {"cpu"}):
        raise InvalidArgument(
            f"Expected a model on the CPU with strict=True, got {', '.join(others)}: that kernels "
            "there give equal bits for equal records is not known."
        )
    return "loop"
