"""Say which rows of which parameter a process owns, and refuse what is divided otherwise.

``fully_shard`` gives every process of a group consecutive rows of each parameter: ⌈rows/processes⌉,
but fewer, or none, to the last ones. So rows have exactly one owner, and a copy of it in each
replica where the mesh has two dimensions.

Tests: tests/gradients/sharded/test_rows.py.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dpfy.errors import InvalidArgument

_REMEDY = (
    "Divide the model with torch.distributed.fsdp.fully_shard alone: docs/how-to/large-models.md."
)


@dataclass(frozen=True)
class Owned:
    """Rows of one parameter that are this process's.

    Args:
        parameter: The parameter, which is distributed.
        rows: The rows of the whole parameter.
        owners: The number of processes that its rows are divided among.
        place: The place of this process among them.
    """

    parameter: nn.Parameter
    rows: int
    owners: int
    place: int

    @property
    def local(self) -> torch.Tensor:
        """The rows themselves, as the optimizer updates them."""
        return local(self.parameter.detach())

    @property
    def height(self) -> int:
        """The rows of every owner, but the last ones, which may have fewer."""
        return -(-self.rows // self.owners)

    def span(self, place: int | None = None) -> tuple[int, int]:
        """Return the first row of an owner and the row after its last; by default this process."""
        first = (self.place if place is None else place) * self.height
        return min(first, self.rows), min(first + self.height, self.rows)

    @property
    def width(self) -> int:
        """The numbers of a row."""
        return math.prod(self.parameter.shape[1:])

    @property
    def shape(self) -> torch.Size:
        """The shape of the whole parameter."""
        return self.parameter.shape


@dataclass(frozen=True)
class Unit:
    """What one ``fully_shard`` module gathers at once.

    Args:
        module: The module, before whose forward pass its parameters are gathered.
        parameters: Its parameters, but those of sharded modules inside.
        dtype: The type that they are gathered in; None for their own.
        casts_inputs: Whether its inputs are brought to that type.
        output_dtype: The type of its outputs; None for the one that they have.
    """

    module: nn.Module
    parameters: tuple[nn.Parameter, ...]
    dtype: torch.dtype | None
    casts_inputs: bool
    output_dtype: torch.dtype | None


@dataclass(frozen=True)
class Shards:
    """The division of one model among the processes of a run.

    Args:
        owned: This process's rows of every sharded parameter, by the parameter's identity.
        units: The modules that gather, from the outside to the inside.
        group: The processes that rows are divided among.
        replicas: The processes that have the same rows; None if every row has a single owner.
    """

    owned: Mapping[int, Owned]
    units: tuple[Unit, ...]
    group: Any
    replicas: Any

    @classmethod
    def of(cls, model: nn.Module) -> "Shards | None":
        """Return how a model is divided; None for one that every process has as a whole.

        Raises:
            InvalidArgument: If it is divided in a way for which there is no proof.
        """
        _refuse_others(model)
        named = dict(model.named_parameters())
        divided = {name: p for name, p in named.items() if is_divided(p)}
        if not divided:
            return None
        units = _units(model)
        known = {id(p) for unit in units for p in unit.parameters}
        for name, parameter in divided.items():
            _check(name, parameter, id(parameter) in known)
        for name, parameter in named.items():
            if name not in divided and parameter.requires_grad:
                raise InvalidArgument(
                    f"The parameter {name!r} is trained and not sharded, while others are. Call "
                    "fully_shard on the whole model, without ignored_params, or freeze it."
                )
        meshes = {p.device_mesh for p in divided.values()}  # type: ignore[attr-defined]
        if len(meshes) > 1 or (mesh := meshes.pop()).size() != dist.get_world_size():
            raise InvalidArgument(
                "The model is sharded over several meshes, or over a part of the processes. Use "
                "one mesh with all of them for every call of fully_shard."
            )
        group = mesh.get_group(mesh.ndim - 1)
        owners, place = mesh.size(mesh.ndim - 1), mesh.get_local_rank(mesh.ndim - 1)
        owned = {id(p): Owned(p, len(p), owners, place) for p in divided.values()}
        return cls(owned, units, group, mesh.get_group(0) if mesh.ndim == 2 else None)

    @property
    def owners(self) -> int:
        """The number of processes that rows are divided among."""
        return dist.get_world_size(self.group)

    @property
    def releases(self) -> bool:
        """Whether this process adds the noise to its rows: the first of its replicas does."""
        return self.replicas is None or dist.get_rank(self.replicas) == 0

    def of_trained(self, parameters: Iterable[nn.Parameter]) -> list[Owned]:
        """Return this process's rows of some parameters."""
        return [self.owned[id(parameter)] for parameter in parameters]


def is_divided(tensor: Any) -> bool:
    """Whether a tensor is one process's part of a distributed one."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "device_mesh")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that is in this process: all of it, if it is not distributed."""
    return tensor.to_local() if is_divided(tensor) else tensor  # type: ignore[attr-defined,no-any-return]


def like(
    parameter: torch.Tensor, rows: torch.Tensor, shape: torch.Size | None = None
) -> torch.Tensor:
    """Return rows of this process as a tensor that is divided as a parameter is.

    Args:
        parameter: The parameter.
        rows: The rows.
        shape: The shape of the whole tensor; by default the parameter's.
    """
    if not is_divided(parameter):
        return rows
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        rows,
        parameter.device_mesh,  # type: ignore[attr-defined]
        parameter.placements,  # type: ignore[attr-defined]
        run_check=False,
        shape=parameter.shape if shape is None else shape,
        stride=torch.empty(parameter.shape if shape is None else shape, device="meta").stride(),
    )


def _units(model: nn.Module) -> tuple[Unit, ...]:
    """Return the sharded modules with the parameters that each of them gathers."""
    units = []
    for module in model.modules():
        state = state_of(module)
        if state is None:
            continue
        own = [p for group in state._fsdp_param_groups for p in _parameters_of(group)]
        inside = {id(p) for p in module.parameters()}
        policy = state._mp_policy
        units.append(
            Unit(
                module,
                tuple(p for p in own if id(p) in inside),
                policy.param_dtype,
                policy.cast_forward_inputs and policy.param_dtype is not None,
                policy.output_dtype,
            )
        )
    return tuple(units)


def _parameters_of(group: Any) -> list[nn.Parameter]:
    return [each.sharded_param for each in group.fsdp_params]


def state_of(module: nn.Module) -> Any:
    """Return what ``fully_shard`` attached to a module; None if it was not called on it."""
    from torch.distributed.fsdp import FSDPModule

    return module._get_fsdp_state() if isinstance(module, FSDPModule) else None


def _check(name: str, parameter: nn.Parameter, is_known: bool) -> None:
    """Refuse a parameter that is not divided by rows, by ``fully_shard`` and by nothing else."""
    placements: tuple[Any, ...] = parameter.placements  # type: ignore[attr-defined]
    kinds = [type(each).__name__ for each in placements]
    plain = kinds in (["Shard"], ["Replicate", "Shard"])
    if not is_known or not plain or placements[-1].dim != 0:
        shown = ", ".join(map(str, placements))
        raise InvalidArgument(
            f"The parameter {name!r} is divided as [{shown}]"
            f"{'' if is_known else ', by tensor parallelism'}. A record's norm would then be on "
            f"several processes; rows on one dimension of the mesh have a proof. {_REMEDY}"
        )
    if parameter.dtype == torch.float16:
        raise InvalidArgument(
            f"The parameter {name!r} is float16. Use float32 parameters with "
            "MixedPrecisionPolicy(param_dtype=torch.bfloat16)."
        )


def _refuse_others(model: nn.Module) -> None:
    """Refuse, by name, other ways to divide a model or its work."""
    for module in model.modules():
        kinds = {each.__name__ for each in type(module).__mro__}
        if "FullyShardedDataParallel" in kinds:
            raise InvalidArgument(
                "FullyShardedDataParallel (FSDP1) keeps flat parameters, whose records' gradients "
                f"have no names. {_REMEDY}"
            )
        if "DeepSpeedEngine" in kinds:
            raise InvalidArgument(f"DeepSpeed averages raw gradients. {_REMEDY}")
        state = state_of(module)
        if state is None:
            continue
        if state._mp_policy.param_dtype == torch.float16:
            raise InvalidArgument(
                "MixedPrecisionPolicy(param_dtype=torch.float16) needs a GradScaler, and scaled "
                "gradients are not what was released. Use param_dtype=torch.bfloat16."
            )
        for group in state._fsdp_param_groups:
            if "CPUOffload" in type(group.offload_policy).__name__:
                raise InvalidArgument(
                    "CPUOffloadPolicy keeps shards away from the device that noise is added on. "
                    "Leave it out."
                )


def shard_by_layers(model: nn.Module) -> None:
    """Call ``fully_shard`` on every child of the longest list of layers, and on the model.

    Args:
        model: The model, which every process has as a whole.
    """
    from torch.distributed.fsdp import fully_shard

    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    longest = max(lists, key=len, default=None)
    for layer in longest or ():
        if layer is not model and any(True for _ in layer.parameters()):
            fully_shard(layer)
    fully_shard(model)


def totals(numbers: Sequence[float], group: Any = None) -> list[float]:
    """Return the sums over processes of some numbers, in float64."""
    found = torch.tensor(numbers, dtype=torch.float64, device=_device_of_messages())
    dist.all_reduce(found, group=group)
    return found.tolist()


def _device_of_messages() -> torch.device:
    return torch.device(
        "cuda" if "nccl" in str(dist.get_backend()) and torch.cuda.is_available() else "cpu"
    )
