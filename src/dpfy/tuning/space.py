"""The space of a search: a distribution for each setting, public and fixed in advance."""

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from dpfy import _validate
from dpfy._renamed import warn_renamed
from dpfy.errors import InvalidArgument
from dpfy.noise.random_stream import SecureStream
from dpfy.trainer.old_names import OLD_NAMES

# These do not change the events of a run. Other settings change the cost of a trial, and all trials
# must cost the same.
SEARCHABLE = (
    "average_tail",
    "clip",
    "ema",
    "learning_rate",
    "lr_schedule",
    "momentum",
    "optimizer",
    "seed",
    "warmup_steps",
)
_EXAMPLES = "learning_rate=log:0.05:5, momentum=0:0.95 or clip=0.5,1,2"
Scalar = str | int | float


@dataclass(frozen=True)
class Uniform:
    """A uniform distribution of a number, or of its logarithm.

    Args:
        low: The least value.
        high: The largest value, above ``low``.
        log: Whether the logarithm is uniform; ``low`` is then above zero. Default: False.

    Raises:
        InvalidArgument: A bound is outside its domain.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        _validate.real("low", self.low, -math.inf, math.inf, open_low=True, open_high=True)
        _validate.real("high", self.high, self.low, math.inf, open_low=True, open_high=True)
        if self.log:
            _validate.positive("low", self.low, remedy="The logarithm of the setting is uniform.")

    @property
    def corners(self) -> tuple[Scalar, ...]:
        """The values that are checked on behalf of all others."""
        return (self.low, self.high)

    def at(self, share: float) -> float:
        """Return the value below which ``share`` of the draws lie."""
        if self.log:
            return min(self.high, self.low * math.exp(share * math.log(self.high / self.low)))
        return min(self.high, self.low + share * (self.high - self.low))

    def to_json(self) -> dict[str, Any]:
        """Return the distribution as plain JSON values."""
        return {"low": self.low, "high": self.high, "log": self.log}


@dataclass(frozen=True)
class Choice:
    """A choice of one of several values with equal probabilities.

    Args:
        values: The values, at least one.

    Raises:
        InvalidArgument: There is no value.
    """

    values: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        if not self.values:
            raise InvalidArgument("Expected at least one value to choose from.")

    @property
    def corners(self) -> tuple[Scalar, ...]:
        """The values that are checked on behalf of all others."""
        return self.values

    def at(self, share: float) -> Scalar:
        """Return the value below which ``share`` of the draws lie."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def to_json(self) -> dict[str, Any]:
        """Return the distribution as plain JSON values."""
        return {"values": list(self.values)}


@dataclass(frozen=True)
class Space:
    """A distribution for each setting that is searched.

    Args:
        settings: A :class:`Uniform` or :class:`Choice` by the name of each setting.

    Raises:
        InvalidArgument: There is no setting, or one that cannot be searched.

    >>> space = Space.parse(["learning_rate=log:0.1:10", "clip=0.5,1"])
    >>> space.draw(SecureStream(insecure_test_key=1, purpose="training"))["clip"]
    1
    >>> Space.from_json(space.to_json()) == space
    True
    """

    settings: Mapping[str, Uniform | Choice]

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))
        if not self.settings:
            raise InvalidArgument(f"Expected at least one setting to search, such as {_EXAMPLES}.")
        for name in self.settings:
            if name in OLD_NAMES:
                warn_renamed(f"the setting {name}", OLD_NAMES[name], stacklevel=4)
                if OLD_NAMES[name] in self.settings:
                    raise InvalidArgument(
                        f"Expected {OLD_NAMES[name]} or its old name {name}, not both."
                    )
            if OLD_NAMES.get(name, name) not in SEARCHABLE:
                raise InvalidArgument(
                    f"Expected {name!r} to be one of {', '.join(SEARCHABLE)}: any other name "
                    "either is no setting or would make one trial cost more than another. Fix it "
                    "for the whole search."
                )

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Return the space that flags describe.

        Args:
            texts: For each setting ``name=low:high``, ``name=log:low:high`` or ``name=a,b,c``.

        Returns:
            The space.

        Raises:
            InvalidArgument: A text has another form, or a setting is named twice.
        """
        found: dict[str, Uniform | Choice] = {}
        for text in texts:
            name, given, values = text.partition("=")
            name = name.strip().replace("-", "_")
            if not given or name in found:
                raise InvalidArgument(
                    f"Expected {text!r} to give one setting its values, once: {_EXAMPLES}."
                )
            found[name] = _distribution(text, values)
        return cls(found)

    def draw(self, stream: SecureStream) -> dict[str, Scalar]:
        """Draw settings, independently of everything else.

        *Assumes* that the stream stays secret where the number of trials does: anybody who could
        repeat the draws would know which of them was chosen.
        """
        words = stream.words(len(self.settings))
        return {
            name: each.at(int(word >> 11) / 2**53)
            for (name, each), word in zip(self.settings.items(), words, strict=True)
        }

    def to_json(self) -> dict[str, Any]:
        """Return the space as plain JSON values."""
        return {name: each.to_json() for name, each in self.settings.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the space that :meth:`to_json` wrote.

        Names of version 0.1 stay as they are: the ledger of the search declared them.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return cls(
                {
                    name: Choice(tuple(each["values"])) if "values" in each else Uniform(**each)
                    for name, each in value.items()
                }
            )


def _distribution(text: str, values: str) -> Uniform | Choice:
    parts = values.split(":")
    log = parts[0] == "log"
    if len(parts) == (3 if log else 2) and "," not in values:
        ends = [_scalar(part) for part in parts[-2:]]
        if all(isinstance(end, int | float) for end in ends):
            return Uniform(float(ends[0]), float(ends[1]), log)
        if log:
            raise InvalidArgument(f"Expected {text!r} to give one setting its values: {_EXAMPLES}.")
    return Choice(tuple(_scalar(part) for part in values.split(",") if part.strip()))


def _scalar(text: str) -> Scalar:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip()
