"""Where the vocabulary of a tokenizer comes from, as its owner declares it.

A program cannot see it: two tokenizers of the same kind may have been trained on public and on
private text.
"""

from dataclasses import dataclass

from dpfy import _validate
from dpfy.errors import InvalidArgument

ORIGINS = ("public", "fixed", "released", "private")

LEAK = (
    "A sub-word vocabulary that was trained on private text repeats parts of it: a name or a "
    "number that became a token shows that somebody wrote it, and no step of a run accounts for "
    "that."
)
REMEDY = (
    "Take a tokenizer that was trained on public text, or bytes or characters of a fixed "
    "alphabet; or choose words of a public list by a private release, and pay for it "
    "(docs/how-to/text.md)."
)


@dataclass(frozen=True)
class Vocabulary:
    """A declaration of what a tokenizer's vocabulary was made from.

    Args:
        origin: ``public``, trained on public text; ``fixed``, bytes or characters of an alphabet
            that was fixed in advance; ``released``, chosen by a private release that a ledger
            records; ``private``, trained on the private text, which is refused.
        source: Which tokenizer, text or ledger, in words.

    Raises:
        InvalidArgument: The origin is none of these.

    >>> Vocabulary("public", "GPT-2's, trained on WebText").require_sound()
    """

    origin: str
    source: str = ""

    def __post_init__(self) -> None:
        _validate.choice("origin", self.origin, ORIGINS)

    @property
    def sound(self) -> bool:
        """Whether the vocabulary shows nothing of the private text, or was paid for."""
        return self.origin != "private"

    def require_sound(self) -> None:
        """Refuse a vocabulary that was trained on the private text.

        Raises:
            InvalidArgument: It was; the message says what to do.
        """
        if not self.sound:
            raise InvalidArgument(f"{LEAK} {REMEDY}")
