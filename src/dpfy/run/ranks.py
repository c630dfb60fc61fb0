"""Share the work on a sample among several processes that run one mechanism.

    rank 0:  reserve ─▶ draw ─┬─▶ share ─▶ bounded sums ─┬─▶ noise ─┬─▶ Released
    others:                   └─▶ share ─▶ bounded sums ─┘          └─▶ Released

The ledger, the keys of sampling and noise, and the only copy of the whole sum are with rank 0.
Between the ranks travel shares of the sample and unnoised sums: both are sensitive, and the network
is trusted like the processes themselves. Messages are bytes and tensors; nothing is unpickled.
"""

import gc
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from dpfy import errors
from dpfy.errors import DpfyError, InvalidArgument, RankFailed
from dpfy.gradients.sharded.rows import is_divided
from dpfy.noise import SecureStream
from dpfy.records.records import Records
from dpfy.sandbox.record_keys import KEY_BYTES
from dpfy.sandbox.rng_isolation import isolated_rng

_ANNOUNCED = (
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)  # what torchrun tells the processes that it starts


@dataclass(frozen=True)
class Ranks:
    """The processes of a run, as one of them sees them; a process that is alone is rank 0 of 1.

    *Assumes*: every rank calls the same methods in the same order, is honest, and sees the same
    data set.

    >>> Ranks().from_first(lambda: b"alone, everybody agrees")
    b'alone, everybody agrees'
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def present(cls) -> "Ranks":
        """Return the ranks of the process group.

        Raises:
            InvalidArgument: if this process was started as one of several and there is no group.
        """
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        if _announced():
            raise InvalidArgument(
                f"This process was started as one of {os.environ['WORLD_SIZE']}, and each would "
                "spend a budget of its own. Call torch.distributed.init_process_group() first."
            )
        return cls()

    @property
    def first(self) -> bool:
        """Whether this is the rank that keeps the ledger and draws sample and noise."""
        return self.rank == 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """Run a block without messages on every rank; an error on one is raised on all."""
        if self.size == 1:
            yield
            return
        try:
            yield
        except BaseException as error:
            with suppress(RankFailed):  # nobody left to tell
                self._settle(error)
            raise
        self._settle(None)

    def from_first(self, act: Callable[[], bytes]) -> bytes:
        """Return on every rank what ``act`` returns on rank 0, where alone it is called."""
        found = b""
        with self.together():
            if self.first:
                found = act()
        return found if self.size == 1 else self._broadcast(found, 0)

    def any(self, found: bool) -> bool:
        """Return whether ``found`` is true on some rank."""
        return bool(self.largest(int(found)))

    def largest(self, number: int) -> int:
        """Return the largest ``number`` of all ranks."""
        if self.size == 1:
            return number
        found = torch.tensor([number])
        _exchange(lambda part: dist.all_reduce(part, dist.ReduceOp.MAX), found)
        return int(found)

    def agree(self, declared: Mapping[str, Any]) -> None:
        """Raise on every rank if one has another value than rank 0; no value is sent."""
        mine = {
            name: hashlib.sha256(repr(value).encode()).hexdigest()
            for name, value in declared.items()
        }
        first = json.loads(self.from_first(lambda: json.dumps(mine).encode()))
        with self.together():
            differ = [name for name in mine if mine[name] != first[name]]
            if differ:
                raise InvalidArgument(
                    f"Rank {self.rank} has another {' and '.join(differ)} than rank 0. Give every "
                    "rank the same arguments and the whole data set in the same order: the run "
                    "itself divides each sample among the ranks."
                )

    def share(self, tensors: Iterable[torch.Tensor]) -> None:
        """Overwrite the tensors with those of rank 0, bit by bit and all of a device at once."""
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for tensor in tensors if self.size > 1 else ():
            if is_divided(tensor):  # every rank has rows of its own
                continue
            by_device.setdefault(tensor.device, []).append(tensor.detach())
        for some in by_device.values():
            packed = torch.cat([*map(_bytes, some)])
            if not len(packed):
                continue
            _exchange(lambda part: dist.broadcast(part, 0), packed)
            for tensor, part in zip(
                some, packed.split([each.nbytes for each in some]), strict=True
            ):
                tensor.copy_(
                    part.clone().view(tensor.dtype).view(tensor.shape)
                )  # wider types need aligned memory

    def own(self, stream: SecureStream) -> SecureStream:
        """Return a stream that no other rank has, even under a shared test key."""
        for _ in range(self.rank):
            stream = stream.split()
        return stream

    def sum_to_first(self, total: torch.Tensor) -> None:
        """Replace ``total`` on rank 0 by the sum over the ranks; elsewhere it is then undefined."""
        if self.size > 1:
            _exchange(lambda part: dist.reduce(part, 0), total)

    def _settle(self, error: BaseException | None) -> None:
        """Tell the others whether a block failed here; raise if it failed on another rank only."""
        failed = torch.tensor([0 if error is None else self.rank + 1])
        _exchange(lambda part: dist.all_reduce(part, dist.ReduceOp.MAX), failed)
        source = int(failed) - 1
        if source >= 0:
            text = self._broadcast(_described(error), source)
            if error is None:
                raise _mirrored(source, text)

    def _broadcast(self, data: bytes, source: int) -> bytes:
        length = torch.tensor([len(data)])
        _exchange(lambda part: dist.broadcast(part, source), length)
        if not int(length):
            return b""
        payload = torch.empty(int(length), dtype=torch.uint8)
        if self.rank == source:
            payload.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        _exchange(lambda part: dist.broadcast(part, source), payload)
        return payload.numpy().tobytes()


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the process group that the environment announces, unless the program made one."""
    joins = _announced() and not dist.is_initialized()
    if joins:
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield Ranks.present()
    finally:
        if joins:
            dist.destroy_process_group()


@contextmanager
def grouped() -> Iterator[Ranks]:
    """Join the process group that the environment announces, or make one of this process alone."""
    with joined() as ranks:
        alone = dist.is_available() and not dist.is_initialized()
        if alone:
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            yield ranks
        finally:
            if alone:
                dist.destroy_process_group()
            gc.collect()  # a group that a sharded model refers to has threads until it is gone


def check_same_records(ranks: Ranks, records: Records) -> None:
    """Raise on every rank unless all see the same records at a few places.

    The same indices would otherwise stand for other records on another rank, and somebody's record
    could enter a step twice. Augmentation draws from generators in one known state; what is random
    even so cannot be compared.
    """
    if ranks.size > 1:
        with ranks.together():
            once, again = _digest(records), _digest(records)
        ranks.agree({"data set, or another order of its records,": once if once == again else None})


def _digest(records: Records) -> str:
    """Return a hash of a few collated records. Sensitive."""
    digest = hashlib.sha256()
    known = records.keyed(bytes(KEY_BYTES))
    with isolated_rng(SecureStream(insecure_test_key=0, purpose="training")):
        for chunk in map(known.alone, known.spread()):
            for leaf in chunk.leaves() if chunk is not None else ():
                plain = (
                    _bytes(leaf).cpu().numpy().tobytes() if isinstance(leaf, torch.Tensor) else leaf
                )
                digest.update(repr(plain).encode())
    return digest.hexdigest()


def _announced() -> bool:
    return (
        dist.is_available()
        and all(name in os.environ for name in _ANNOUNCED)
        and os.environ["WORLD_SIZE"] != "1"
    )


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a contiguous tensor, or of a contiguous copy, as bytes."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _exchange(operation: Callable[[torch.Tensor], Any], tensor: torch.Tensor) -> None:
    """Carry out a collective operation in place, by way of the GPU where NCCL needs that."""
    carried = tensor.to(torch.cuda.current_device()) if dist.get_backend() == "nccl" else tensor
    try:
        operation(carried)
    except RuntimeError as error:
        raise RankFailed(
            "Another process of this run was lost, so nothing more is released. The ledger keeps "
            "what was spent; start all processes again and resume from the last checkpoint."
        ) from error
    tensor.copy_(carried)


def _described(error: BaseException | None) -> bytes:
    """What others may know of an error: only our own texts are known to quote nothing private."""
    text = str(error) if isinstance(error, DpfyError) else None
    return json.dumps({"kind": type(error).__name__, "text": text}).encode()


def _mirrored(source: int, described: bytes) -> DpfyError:
    """The error of another rank, as if it had happened here."""
    told = json.loads(described)
    kind = getattr(errors, told["kind"], None)
    if told["text"] is None or kind is None:
        return RankFailed(
            f"Rank {source} stopped with {told['kind']}. The ledger keeps what was spent."
        )
    mirrored: DpfyError = kind(told["text"])
    return mirrored
