"""Runs on two neighbouring data sets, coupled so that only the one record differs, and what they
let anyone see.

The noise is taken out of both and put back as equal numbers: every past is as likely as any other,
so a mechanism must keep its bound after each of them. Records that both data sets have are drawn
into the same samples and blocks, which is what the proofs compare; the draw itself is the library's
own."""

import contextlib
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hunt_cases import Case
from hunt_models import CLASSES, MODELS, logits_loss
from torch import nn
from torch.utils.data import Dataset, default_collate

import dpfy
from dpfy.mechanisms.query import RecordNormsBelow, SampleSize, Statistic
from dpfy.noise import SecureStream, round_to_lattice
from dpfy.run.sampling_strategy import Sample

_SLACK = 1 + 1e-12  # of the comparison itself


class Leak(AssertionError):
    """One record did more than was paid for, or was seen."""


@dataclass(frozen=True)
class Step:
    """The sum of one step as it was before noise, and how far one record may move it by what the
    ledger says.
    """

    total: torch.Tensor
    paid: float
    reach: float


@dataclass(frozen=True)
class Observation:
    """All that a run shows, and its sums."""

    refusal: str
    shown: tuple[Any, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Verdict:
    """What came of a case: a refusal, or by how many of the bounds that were paid for the sum
    moved.
    """

    refusal: str = ""
    moved: float = 0.0
    largest: float = 0.0  # sum, in the same unit


class Rows(Dataset):
    """Rows of which some cannot be read."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.rows[index], Exception):
            raise self.rows[index]
        return self.rows[index]


class Recorder:
    """Takes the place of the noise: keeps the sums, and releases numbers that depend on no
    record.
    """

    key_source = "insecure test key"
    roundings, spread = 0.0, 1.0  # as of independent noise

    def __init__(self) -> None:
        self.seen: list[tuple[torch.Tensor, float]] = []

    def begin(self, step: int) -> None:
        """Remember nothing of earlier steps."""

    def prefetch(self, count: int, stddev: float, grid: float) -> None:
        """Draw nothing."""

    def release(
        self,
        sums: Sequence[torch.Tensor],
        factors: Sequence[float],
        outs: Sequence[torch.Tensor],
        stddev: float,
        grid: float,
    ) -> None:
        """Keep the sums as they would receive noise, and write public numbers of the size of
        noise.
        """
        with torch.autocast("cpu", enabled=False):
            total = torch.cat(
                [round_to_lattice(each.detach().double().flatten().clone(), grid) for each in sums]
            )
            generator = torch.Generator().manual_seed(len(self.seen))
            for out, factor in zip(outs, factors, strict=True):
                noise = torch.randn(out.shape, generator=generator, dtype=torch.float64)
                out.copy_(noise * stddev * factor)
        self.seen.append((total, stddev))

    def close(self) -> None:
        """Nothing was begun."""


# The data


def _generator(*key: int) -> torch.Generator:
    number = 1
    for part in key:
        number = number * 1_000_003 + part + 17
    return torch.Generator().manual_seed(number % 2**63)


def _ordinary(case: Case, unit: int, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = _generator(case.seed, unit, row)
    x = MODELS[case.model][0].drawn(generator)
    y = torch.randint(12, (), generator=generator).clamp(
        max=CLASSES - 1
    )  # most of one class: their gradients agree
    return (x.double() if case.double and x.is_floating_point() else x), y


def _odd(case: Case, row: int) -> Any:
    x, y = _ordinary(case, case.size, row)
    first = _ordinary(case, 0, 0)
    filled = {"huge": 1e30, "nan": math.nan, "inf": math.inf, "tiny": 1e-40, "zeros": 0.0}
    numbers = x.is_floating_point()
    match case.odd:
        case "raises":
            return ValueError(f"row {row} cannot be read")
        case "none":
            return None
        case "large":
            return (x * 1e4 if numbers else x), y
        case "duplicate":
            return first
        case "opposite":
            return (-first[0] if numbers else first[0].flip(0)), first[1]
        case "longer":
            return torch.cat([x, x]), y
        case "bad label":
            return x, torch.tensor(99)
        case "float64":
            return (
                x.to(torch.float32 if case.double else torch.float64) if numbers else x.int()
            ), y
        case "requires grad":
            return (x.requires_grad_() if numbers else x), y
        case "ordinary":
            return x, y
    if numbers:
        return torch.full_like(x, filled[case.odd]), y
    return torch.full_like(x, {"huge": 10**9, "nan": -1, "inf": 99}.get(case.odd, 0)), y


@dataclass(frozen=True)
class Data:
    """Rows, whose they are, and which unit of the larger data set is missing, if one is."""

    rows: tuple[Any, ...]
    owners: tuple[int, ...]
    missing: int | None


def _place(case: Case) -> int:
    return {0: 0, 1: case.size // 2, -1: case.size}[case.position]


def _data(case: Case, with_odd: bool) -> Data:
    """Return the data set that has the odd unit, or its neighbour."""
    relation, place = case.sampling[1], _place(case)
    # A user's odd rows may have ordinary ones beside them.
    odd = [
        _odd(case, row) if row == 0 or case.seed % 2 == 0 else _ordinary(case, case.size, row)
        for row in range(case.rows)
    ]
    if not with_odd:
        odd = {
            "add_or_remove_one": [],
            "zero_out": [ValueError("the null record")] * case.rows,
            "replace_one": [_ordinary(case, case.size + 1, row) for row in range(case.rows)],
        }[relation]
    units = [
        [_ordinary(case, unit, row) for row in range(1 + (unit + case.seed) % case.rows)]
        for unit in range(case.size)
    ]
    units.insert(place, odd)
    found = [
        (row, owner)
        for turn in range(case.rows)
        for owner, unit in enumerate(units)
        for row in unit[turn : turn + 1]
    ]
    missing = place if not with_odd and relation == "add_or_remove_one" else None
    return Data(tuple(row for row, _ in found), tuple(owner for _, owner in found), missing)


# The run

MIXING = 0.0  # what the loss of the hazard "changing global" reads


def mixed_up(x: torch.Tensor, amount: float) -> torch.Tensor:
    """Return records that have something of the one before them, as mixup does."""
    if amount == 0:
        return x
    return (
        x + amount * x.roll(1, 0)
        if x.is_floating_point()
        else torch.cat([x[:, :2], x.roll(1, 0)[:, 2:]], 1)
    )


def _loss(case: Case, model: nn.Module) -> tuple[Callable[..., Any], Callable[[], None]]:
    """Return the loss function, and what a user's loop does after a step."""
    mixing, before = 0.0, [0.0]

    def loss_fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        if case.hazard == "seeding":
            torch.manual_seed(0)
        x = mixed_up(
            x,
            {"mixup": 1.0, "changing number": mixing, "changing global": MIXING}.get(
                case.hazard, 0.0
            ),
        )
        with torch.autocast("cpu", dtype=torch.bfloat16) if case.half else contextlib.nullcontext():
            scores = model(x)
        scores = scores.float() if case.half else scores
        if case.hazard == "centred scores":
            scores = scores - scores.mean(0)
        losses = logits_loss(case.loss, scores, y)
        plain = losses
        losses = losses * case.scale
        match case.hazard:
            case "batch mean":
                losses = losses * losses.mean()
            case "batch size":
                losses = losses / len(x)
            case "spike":
                losses = torch.where(plain.mean() > 1e9, 0.0, losses)
            case "python branch":
                losses = losses * 0 if float(plain.detach().max()) > 50 else losses
            case "running mean":
                losses, before[0] = losses * (1 + before[0]), float(plain.detach().mean())
        return (
            dpfy.Losses(losses, {"loss": plain.detach()}) if case.statistics == "loss" else losses
        )

    def after_step() -> None:
        nonlocal mixing
        global MIXING
        mixing = MIXING = 1.0

    return loss_fn, after_step


def _clip(case: Case, model: nn.Module) -> Any:
    match case.clip:
        case "layers":
            return dpfy.clip_groups(
                model, "layer", clip=case.bound, bounds="dimension", noise="dimension"
            )
        case "tensors":
            return dpfy.clip_groups(model, "tensor", clip=case.bound)
        case "small scales":
            return dpfy.clip_jointly(model, {"*": 0.01}, clip=case.bound)
        case "large scales":
            return dpfy.clip_jointly(model, {"*": 100.0}, clip=case.bound)
        case "mixed scales":
            return dpfy.clip_jointly(model, {"*weight*": 0.05, "*": 20.0}, clip=case.bound)
        case "automatic":
            return dpfy.clip_automatically(case.bound)
        case "small groups":
            return dpfy.clip_automatically(dpfy.clip_groups(model, "kind", clip=case.bound))
    return case.bound


def _plan(case: Case, model: nn.Module) -> dpfy.Plan:
    units = case.size + 1
    half = max(1, units // 2)
    policy, relation = case.sampling
    statistics = {
        "": (),
        "sample size": (SampleSize(),),
        "loss": (Statistic("loss"),),
        "norms": (RecordNormsBelow(thresholds=(case.bound,)),),
    }[case.statistics]
    return dpfy.dpsgd(
        records=units,
        batch_size=units if policy == "full" else half,
        steps=case.steps,
        clip=_clip(case, model),
        noise_multiplier=1.0,
        sampling=policy,
        relation=relation,
        unit="record" if case.rows == 1 else "user",
        capacity=half if policy == "truncated_poisson" else None,
        statistics=statistics,
        microbatches=4 if case.clip == "microbatches" else None,
        least_sample=half if case.clip == "least sample" else None,
    )


def couple(run: Any, units: int, missing: int) -> None:
    """Let a run draw from the larger data set and leave the missing unit out: the others have what
    they had there.
    """
    strategy, records = run.context.sampling, run.context.records

    class Larger:
        seed_words = records.seed_words

        def __len__(self) -> int:
            return units

    def drawn(context: Any, step: int) -> Sample:
        sample = type(strategy).draw(strategy, replace(context, records=Larger()), step)
        kept = sample.indices != missing
        indices = sample.indices[kept]
        return Sample(
            indices - (indices > missing).long(), sample.tags[kept], sample.seeds[:, kept]
        )

    strategy.draw = drawn


def _paid(plan: dpfy.Plan, step: int, stddev: float) -> float:
    """By how much one record may move the sum: the noise over the multiplier that the event of the
    step claims.
    """
    return stddev * math.hypot(
        *(query.l2_bound / query.stddev for query in plan.event_at(step).queries)
    )


@contextlib.contextmanager
def _started(
    case: Case, data: Data
) -> Iterator[tuple[Any, nn.Module, Callable[..., Any], Callable[[], None]]]:
    with torch.random.fork_rng():
        torch.manual_seed(case.seed)
        model = MODELS[case.model][1]().train(case.training)
    model = model.double() if case.double else model.float()  # whatever the default is
    loss_fn, after_step = _loss(case, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    example = default_collate([_ordinary(case, -1 - row, 0) for row in range(3)])
    users = (
        {}
        if case.rows == 1
        else {"unit_of": data.owners, "rows_per_user": 2 if case.rows > 2 else None}
    )
    with dpfy.privatize(
        model,
        optimizer,
        Rows(data.rows),
        _plan(case, model),
        dpfy.Ledger.in_memory(),
        engine=case.engine,
        max_physical_batch=case.chunk,
        example_input=example,
        collate_fn=default_collate if case.collate else None,
        insecure_test_key=case.seed + 1,
        **users,
    ) as run:
        if data.missing is not None:
            couple(run, case.size + 1, data.missing)
        yield run, optimizer, loss_fn, after_step


def observe(case: Case, data: Data, training_key: int | None = None) -> Observation:
    """Run the case on the data; another ``training_key`` changes nothing but the masks of
    dropout.
    """
    global MIXING
    MIXING = 0.0
    recorder, shown, refusal, plan = Recorder(), [], "", None
    printed = io.StringIO()
    throughout = case.surroundings if case.throughout else contextlib.nullcontext
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), throughout():
        try:
            with _started(case, data) as (run, optimizer, loss_fn, after_step):
                plan, context = run.plan, run.context
                context.noise.close()
                run.context = replace(context, noise=recorder)
                if training_key is not None:
                    training = SecureStream(training_key, purpose="training")
                    streams = replace(context.streams, training=training)
                    run.context = replace(run.context, streams=streams)
                for batch in run:
                    with contextlib.nullcontext() if case.throughout else case.surroundings():
                        released = run.backward(loss_fn, batch)
                    shown.append((run.engine, run.isolation, released.stddevs))
                    optimizer.step()
                    optimizer.zero_grad()
                    after_step()
        except (
            Exception
        ) as error:  # one that is not ours may be all that tells the neighbours apart
            refusal = f"{type(error).__name__}: {error}"
    steps = tuple(
        Step(total, _paid(plan, step, stddev), plan.query.joint_sensitivity(step))
        for step, (total, stddev) in enumerate(recorder.seen, start=1)
    )
    return Observation(refusal, (*shown, printed.getvalue()), steps)


# The judgement


def check(case: Case) -> Verdict:
    """Raise :class:`Leak` if the neighbours of a case can be told apart by more than was paid
    for.
    """
    larger = observe(case, _data(case, with_odd=True))
    smaller = observe(case, _data(case, with_odd=False))
    if (larger.refusal, larger.shown) != (smaller.refusal, smaller.shown):
        raise Leak(
            f"{case}: the neighbours show\n{larger.refusal} {larger.shown}\n{smaller.refusal} "
            f"{smaller.shown}"
        )
    moved, secret = 0.0, _secret_masks(case, larger)
    for number, (one, other) in enumerate(zip(larger.steps, smaller.steps, strict=True), start=1):
        if not bool(one.total.isfinite().all()):
            raise Leak(f"{case}: the sum of step {number} is not finite")
        if secret[number - 1]:
            continue
        distance, limit = float((one.total - other.total).norm()), _limit(case, one)
        if distance > limit * _SLACK:
            raise Leak(
                f"{case}: one {'user' if case.rows > 1 else 'record'} moves the sum of step "
                f"{number} by {distance / one.paid:.9g} of what is paid for; "
                f"{limit / one.paid:.9g} is its limit"
            )
        moved = max(moved, distance / one.paid)
    largest = max((float(step.total.norm()) / step.paid for step in larger.steps), default=0.0)
    return Verdict(larger.refusal, moved, largest)


def _secret_masks(case: Case, first: Observation) -> list[bool]:
    """Return in which steps another secret key gives other sums. If it does not, everybody knows
    the masks.
    """
    if not case.random:
        return [False] * len(first.steps)
    second = observe(case, _data(case, with_odd=True), training_key=case.seed + 2)
    return [
        not torch.equal(one.total, other.total)
        for one, other in zip(first.steps, second.steps, strict=True)
    ]


def _limit(case: Case, step: Step) -> float:
    """How far the sum may move: what is paid for; only by the rounding of others if the record
    itself adds nothing.
    """
    if case.sampling[1] == "replace_one":
        return 2 * step.paid
    return step.paid - step.reach if _adds_nothing(case) else step.paid


def _adds_nothing(case: Case) -> bool:
    """Whether it is certain that the odd unit has no part in any sum."""
    unreadable = case.odd in ("raises", "none")
    poisoned = (
        case.odd == "nan" and not MODELS[case.model][0].tokens and case.statistics in ("", "loss")
    )
    whole = case.rows == 1 or case.seed % 2 == 0
    return (unreadable or poisoned) and whole and case.clip not in ("microbatches", "least sample")
