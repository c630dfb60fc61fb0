"""Choose which gradients are clipped together, how far, and with how much noise.

Reference: McMahan et al. 2018, sections 2 and 4.

Tests: tests/mechanisms/test_query.py.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.query import ClippedSum, NormalisedSum


class Model(Protocol):
    """A module with named parameters."""

    def named_parameters(self) -> Iterable[tuple[str, Any]]:
        """Yield the names and the parameters."""


Grouping = Literal["layer", "tensor", "kind"] | Mapping[str, str] | Callable[[str, Any], str]
"""The rule by which parameters are grouped.

``layer``: by module; ``tensor``: each by itself; ``kind``: weights and biases; a mapping from group
names to patterns of parameter names; or a function from the name and the parameter to the group.
"""

_GROUPINGS = ("layer", "tensor", "kind")


def clip_groups(
    model: Model,
    by: Grouping = "layer",
    *,
    clip: float = 1.0,
    bounds: Literal["equal", "dimension"] | Mapping[str, float] = "equal",
    noise: Literal["proportional", "dimension"] | Mapping[str, float] = "proportional",
) -> tuple[ClippedSum, ...]:
    """Divide the parameters of a model into groups that are clipped and noised separately.

    *Formal guarantee*: with bounds S_g and standard deviations σ_g, a step costs what one Gaussian
    sum of noise multiplier z = (Σ (S_g/σ_g)²)^-½ costs; z is the noise multiplier of the plan.

    Args:
        model: The model; only trainable parameters count.
        by: ``"layer"``, ``"tensor"`` or ``"kind"`` (weights and biases); a function from the name
            and the parameter to the name of its group; or a mapping from names of groups to
            patterns such as ``{"head": "fc.*", "rest": "*"}``, of which the first that fits counts.
        clip: The bound of all groups together, above zero.
        bounds: The bounds S_g of G groups with d_g of D parameters: ``"equal"`` is clip/√G,
            ``"dimension"`` is clip·√(d_g/D), whose squares add up to clip²; or your own.
        noise: The standard deviations σ_g: ``"proportional"`` is z√G·S_g, ``"dimension"`` is
            z√(D/d_g)·S_g; or your own, up to a common factor.

    Returns:
        A clipped sum for each group, in the order of the model.

    Raises:
        InvalidArgument: If a parameter fits no group, or a group has no bound or noise.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> [(group.name, group.bound) for group in clip_groups(model, bounds="dimension", clip=2.0)]
    [('0', 1.7320508075688772), ('1', 1.0)]

    Reference: McMahan et al. 2018. There the dimension-adjusted bound is printed inverted.
    """
    groups = _grouped(model, by)
    sizes = {name: sum(size for _, size in members) for name, members in groups.items()}
    found = _bounds(bounds, sizes, _validate.positive("clip", clip))
    shares = _shares(noise, sizes, found)
    return tuple(
        ClippedSum(
            found[name], name, tuple(parameter for parameter, _ in members), share=shares[name]
        )
        for name, members in groups.items()
    )


def stages(model: Model, devices: int) -> Callable[[str, Any], str]:
    """Cut the parameters into runs of about equal size, for :func:`clip_groups`.

    Each is what a device holds if a model is divided like a pipeline: no norm has to be known
    outside of it.

    Args:
        model: The model; only trainable parameters count.
        devices: The number of runs, at least 1.

    Returns:
        A function from the name of a parameter to the name of its run.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 3, bias=False))
    >>> [(each.name, each.parameters) for each in clip_groups(model, stages(model, 2))]
    [('device 0', ('0.weight',)), ('device 1', ('1.weight',))]
    """
    _validate.count("devices", devices)
    sizes = [(name, parameter.numel()) for name, parameter in _trainable(model)]
    total, before = sum(size for _, size in sizes), 0
    found: dict[str, str] = {}
    for name, size in sizes:
        found[name] = f"device {min(devices - 1, (before + size // 2) * devices // total)}"
        before += size
    return lambda name, _: found[name]


def clip_jointly(
    model: Model, scales: Mapping[str, float], *, clip: float = 1.0, name: str = "gradient"
) -> ClippedSum:
    """Clip all gradients together after dividing each by its scale.

    The noise is in proportion to the scales α_j. If no ‖v_j‖ exceeds its α_j, the joint norm of k
    groups is at most √k, and often much less.

    *Formal guarantee*: that of one clipped sum with bound ``clip``: scaling back is
    post-processing.

    Args:
        model: The model; only trainable parameters count.
        scales: A scale α above zero for each pattern of parameter names; the first pattern that
            fits counts, and every trainable parameter must fit one.
        clip: The bound of the joint norm, above zero.
        name: The name of the sum in the ledger.

    Returns:
        One clipped sum of all trainable parameters.

    Raises:
        InvalidArgument: If a parameter fits no pattern.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> clip_jointly(model, {"0.*": 1.0, "*": 100.0}).scales
    (1.0, 100.0)

    Reference: McMahan et al. 2018, section 2.
    """
    names = [parameter for parameter, _ in _trainable(model)]
    patterns = {pattern: pattern for pattern in scales}
    return ClippedSum(
        clip, name, tuple(names), tuple(scales[_first_fit(patterns, each)] for each in names)
    )


def clip_automatically(
    clip: float | ClippedSum | Sequence[ClippedSum] = 1.0, *, gamma: float = 0.01
) -> tuple[NormalisedSum, ...]:
    """Normalise the gradients of all records to about the same norm instead of clipping them.

    A gradient g becomes g·clip/(‖g‖ + gamma). There is no bound to tune: ``clip`` multiplies
    gradient and noise alike, like a learning rate.

    *Formal guarantee*: that of clipping to the same bounds: the norms stay below them.

    Args:
        clip: The bound of a contribution, above zero; or groups, each of which is normalised by
            itself.
        gamma: The norm below which gradients stay small, above zero.

    Returns:
        A normalised sum for each group.

    >>> [(leaf.bound, leaf.gamma) for leaf in clip_automatically(1.0)]
    [(1.0, 0.01)]

    Reference: Z. Bu et al., Automatic Clipping: Differentially Private Deep Learning Made Easier
    and Stronger, 2023, section 3 and Theorem 2.
    """
    leaves = (
        (clip,)
        if isinstance(clip, ClippedSum)
        else clip
        if isinstance(clip, Sequence)
        else (ClippedSum(clip),)
    )
    return tuple(
        NormalisedSum(leaf.bound, leaf.name, leaf.parameters, leaf.scales, leaf.share, gamma)
        for leaf in leaves
    )


def _trainable(model: Model) -> list[tuple[str, Any]]:
    """Return the trainable parameters of a model; refuse a model without any."""
    found = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not found:
        raise InvalidArgument("The model has no trainable parameter that could be clipped.")
    return found


def _grouped(model: Model, by: Grouping) -> dict[str, list[tuple[str, int]]]:
    """Return the names and sizes of the parameters, by group, in the order of the model."""
    label: Callable[[str, Any], str]
    if callable(by):
        label = by
    elif isinstance(by, Mapping):
        label = lambda name, _: _first_fit(by, name)  # noqa: E731 - one of several
    else:
        label = {
            "layer": lambda name, _: name.rpartition(".")[0] or name,
            "tensor": lambda name, _: name,
            "kind": lambda name, p: "weights" if p.ndim > 1 else "biases",
        }[_validate.choice("by", by, _GROUPINGS)]
    groups: dict[str, list[tuple[str, int]]] = {}
    for name, parameter in _trainable(model):
        group = label(name, parameter)
        if not isinstance(group, str):
            raise InvalidArgument(
                f"Expected the name of a group for the parameter {name!r}, got "
                f"{type(group).__name__}."
            )
        groups.setdefault(group, []).append((name, parameter.numel()))
    return groups


def _first_fit(patterns: Mapping[str, str], parameter: str) -> str:
    """Return the name of the first pattern that fits a parameter."""
    for name, pattern in patterns.items():
        if fnmatchcase(parameter, pattern):
            return name
    raise InvalidArgument(
        f"The parameter {parameter!r} fits none of the patterns {', '.join(patterns.values())}. "
        "Add one, such as '*' at the end."
    )


def _bounds(
    bounds: str | Mapping[str, float], sizes: Mapping[str, int], clip: float
) -> dict[str, float]:
    """Return the bounds S_g of the groups."""
    if isinstance(bounds, Mapping):
        return {
            name: _validate.positive(f"bound of {name}", bounds[name])
            for name in _same_names("bounds", bounds, sizes)
        }
    total = sum(sizes.values())
    if _validate.choice("bounds", bounds, ("equal", "dimension")) == "equal":
        return dict.fromkeys(sizes, clip / math.sqrt(len(sizes)))
    return {name: clip * math.sqrt(size / total) for name, size in sizes.items()}


def _shares(
    noise: str | Mapping[str, float], sizes: Mapping[str, int], bounds: Mapping[str, float]
) -> dict[str, float]:
    """Return the shares (S_g/σ_g)² of the groups, which add up to one."""
    if isinstance(noise, Mapping):
        stddevs = {
            name: _validate.positive(f"noise of {name}", noise[name])
            for name in _same_names("noise", noise, sizes)
        }
        weights = {name: (bounds[name] / stddevs[name]) ** 2 for name in sizes}
    elif _validate.choice("noise", noise, ("proportional", "dimension")) == "proportional":
        weights = dict.fromkeys(sizes, 1.0)
    else:
        weights = {name: float(size) for name, size in sizes.items()}
    total = math.fsum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def composed_multiplier(groups: Sequence[ClippedSum], stddevs: Mapping[str, float]) -> float:
    """Return the noise multiplier z = (Σ (S_g/σ_g)²)^-½ of groups with these standard deviations.

    Args:
        groups: The clipped sums, with bounds S_g.
        stddevs: The standard deviation σ_g of each of them by name, above zero.

    Returns:
        The noise multiplier of a plan with these groups.

    Raises:
        InvalidArgument: If ``stddevs`` names other groups, or has one that is not above zero.

    >>> groups = [ClippedSum(3.0, "a", ("w",)), ClippedSum(4.0, "b")]
    >>> composed_multiplier(groups, {"a": 5.0, "b": 5.0})
    1.0
    """
    names = {group.name: group.bound for group in groups}
    return 1 / math.hypot(
        *(
            names[name] / _validate.positive(f"noise of {name}", stddevs[name])
            for name in _same_names("noise", stddevs, names)
        )
    )


def _same_names(what: str, given: Mapping[str, float], expected: Mapping[str, Any]) -> list[str]:
    """Return the expected names; refuse a mapping with others."""
    if set(given) != set(expected):
        raise InvalidArgument(
            f"Expected {what} for the groups {', '.join(expected)}; got "
            f"{', '.join(given) or 'none'}."
        )
    return list(expected)
