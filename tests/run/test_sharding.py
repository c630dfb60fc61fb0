"""A model that is sharded among processes is trained as one process trains it: the same sums, each
coordinate with one noise, no raw gradient, and nobody waits for a record that raises."""

import hashlib
import os

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import Group, scenario
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import dpfy

TOKENS = torch.randint(21, (20, 7), generator=torch.Generator().manual_seed(1))
RAISES = 20  # a token that no record has, but those that are to raise
WIDE = 6_000


def pytest_generate_tests(metafunc):
    if "group" in metafunc.fixturenames:
        sizes = [2, pytest.param(4, marks=pytest.mark.slow)]
        metafunc.parametrize(
            "group", sizes, indirect=True, ids=lambda size: f"{size} processes", scope="module"
        )


@pytest.fixture(scope="module")
def group(request, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    return Group(__file__, request.param, shared / f"sharded-{request.param}")


class Block(nn.Module):
    def __init__(self, width, recomputes=False):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(3 * width, width),
        )
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.recomputes = recomputes

    def inner(self, x):
        normal = self.norm(x)
        x = x + self.attention(normal, normal, normal, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(x)))

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False) if self.recomputes else self.inner(x)


class Adapted(nn.Module):
    """A linear layer that is frozen, and a trained correction of low rank."""

    def __init__(self, width):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 2, bias=False), nn.Linear(2, width, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Net(nn.Module):
    def __init__(self, width=10, tied=True, recomputes=False, adapted=False):
        super().__init__()
        self.embedding = nn.Embedding(21, width)
        kind = Adapted if adapted else lambda width: Block(width, recomputes)
        self.blocks = nn.ModuleList(kind(width) for _ in range(2))
        self.head = nn.Linear(width, 21, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        if adapted:
            self.embedding.requires_grad_(False)
            self.head.requires_grad_(False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(model, tokens):
    logits = model(tokens[:, :-1]).float().flatten(0, 1)
    return (
        F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
        .view(len(tokens), -1)
        .mean(1)
    )


def sharded(model, **options):
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def released(model, data=TOKENS, loss=loss_of, steps=2, rate=0.5, noise=0.0, **options):
    """What each step releases, gathered on every rank; the parameters stay as they are."""
    plan = dpfy.dpsgd(rate=rate, divisor=10, steps=steps, clip=0.5, noise_multiplier=noise)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    options = {"max_physical_batch": 3, "insecure_test_key": 3, **options}
    found = []
    with dpfy.privatize(
        model,
        optimizer,
        TensorDataset(data),
        plan,
        options.pop("ledger", None) or dpfy.Ledger.in_memory(),
        example_input=(TOKENS[:2],),
        announce=False,
        **options,
    ) as run:
        for batch in run:
            optimizer.zero_grad()
            got = run.backward(lambda tokens: loss(model, tokens), batch)
            optimizer.step()
            found.append(torch.cat([whole(each).flatten() for each in got.gradients.values()]))
    return torch.stack(found).double()


def made(**options):
    torch.manual_seed(0)
    return Net(**options)


KINDS = {
    "tied": {},
    "apart": {"tied": False},
    "recomputed": {"recomputes": True},
    "adapted": {"adapted": True},
}


@scenario
def sums(rank, size, folder):
    return {kind: released(sharded(made(**options))).tolist() for kind, options in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_those_of_one_process(group, kind):
    # A share left out or twice, a row with another owner, a layer whose gradient is lost on the way
    # back: each moves the sums by far more than rounding.
    expected = released(made(**KINDS[kind]))
    assert expected.norm() > 0.01
    for each in group[sums]:
        torch.testing.assert_close(
            torch.tensor(each[kind], dtype=torch.float64), expected, rtol=0, atol=1e-6 * 20 * 0.05
        )


@scenario
def empty_shares(rank, size, folder):
    one = released(sharded(made()), data=TOKENS[:1], rate=1.0, steps=1)
    none = released(sharded(made()), data=TOKENS[:1], rate=0.0, steps=1)
    return [one.tolist(), none.abs().sum().item()]


def test_ranks_without_a_record_go_along(group):
    expected = released(made(), data=TOKENS[:1], rate=1.0, steps=1)
    for one, none in group[empty_shares]:
        torch.testing.assert_close(
            torch.tensor(one, dtype=torch.float64), expected, rtol=0, atol=1e-7
        )
        assert none == 0.0


@scenario
def half_precision(rank, size, folder):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return released(sharded(made(), mp_policy=policy), steps=1).tolist()


def test_parameters_in_half_precision_give_nearly_the_same_sums(group):
    expected = released(made(), steps=1)
    for each in group[half_precision]:
        found = torch.tensor(each, dtype=torch.float64)
        assert 1e-6 < (found - expected).norm() < 0.05 * expected.norm()


# Records that raise


DEPTHS = ("before", "block", "loss", "backward", "nowhere, but infinite")


class _RaisesOnTheWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("on the way back")


def raising_at(depth):
    """A loss that raises for records with the odd token, somewhere on the way."""

    def loss(model, tokens):
        odd = bool((tokens == RAISES).any()) if not torch._C._functorch.maybe_current_level() else 0
        if odd and depth == "before":
            raise ValueError(depth)

        def hook(module, args):
            raise ValueError(depth)

        handle = (
            model.blocks[1].norm.register_forward_pre_hook(hook)
            if odd and depth == "block"
            else None
        )
        try:
            losses = loss_of(model, tokens)
        finally:
            if handle is not None:
                handle.remove()
        if odd and depth == "loss":
            raise ValueError(depth)
        if depth == "nowhere, but infinite":
            return losses * torch.where((tokens == RAISES).any(1), torch.inf, 1.0)
        return _RaisesOnTheWayBack.apply(losses) if odd and depth == "backward" else losses

    return loss


ODD = TOKENS.clone().clamp(max=RAISES - 1)
FINE = ODD.clone()
ODD[[3, 4, 11], 2] = RAISES


@scenario
def raising(rank, size, folder):
    """Sums of all records, where some raise: directly through the engine, which the probe would
    refuse to give a loss that looks at values."""
    from dpfy.run.engine_choice import EngineChoice

    found = {}
    for depth in DEPTHS:
        quiet, loud = loss_of, raising_at(depth)
        model, chosen = sharded(made()), EngineChoice.engine_for
        state = {"loss": quiet}

        def engine_for(self, context, loss_fn, state=state, loud=loud, chosen=chosen):
            engine = chosen(self, context, loss_fn)
            state["loss"] = loud
            return engine

        EngineChoice.engine_for = engine_for
        try:
            found[depth] = released(
                model,
                data=ODD,
                loss=lambda model, tokens, state=state: state["loss"](model, tokens),
                rate=1.0,
                steps=1,
            ).tolist()
        finally:
            EngineChoice.engine_for = chosen
    return found


@pytest.mark.parametrize("depth", DEPTHS)
def test_records_that_raise_contribute_nothing_and_leave_nobody_waiting(group, depth):
    kept = [place for place in range(20) if place not in (3, 4, 11)]
    expected = released(made(), data=ODD[kept], rate=1.0, steps=1)
    for each in group[raising]:
        torch.testing.assert_close(
            torch.tensor(each[depth], dtype=torch.float64), expected, rtol=0, atol=1e-6
        )


# Noise


class Table(nn.Module):
    """Many numbers that no record touches, in rows that no number of processes divides."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(1, WIDE + 1), nn.Linear(7, 3)

    def forward(self, tokens):
        return self.second(tokens.float()).sum(1) * 0 + self.first(tokens[:, :1].float() * 0).sum(1)


@scenario
def noise(rank, size, folder):
    torch.manual_seed(0)
    loss = lambda model, tokens: model(tokens) * 0  # noqa: E731
    found = {}
    for name, key in (("fixed", 3), ("fresh", None)):
        model = fully_shard(Table())
        got = released(model, loss=loss, rate=0.5, steps=1, noise=2.0, insecure_test_key=key)[0]
        local = got[: WIDE + 1].chunk(size)
        found[name] = {
            "std": float(got.std()),
            "largest": float(
                max(
                    abs(torch.corrcoef(torch.stack([local[0][:100], each[:100]]))[0, 1])
                    for each in local[1:]
                )
            ),
            "zeros": int((got == 0).sum()),
            "repeated": len(got) - len(got.unique()),
            "hash": hashlib.sha256(got.numpy().tobytes()).hexdigest(),
        }
    return found


@pytest.mark.parametrize("key", ["fixed", "fresh"])
def test_every_coordinate_has_one_noise_of_its_own(group, key):
    # 12,000 numbers estimate the scale to 0.65 % (one standard deviation): 5 % is more than seven
    for each in group[noise]:
        found = each[key]
        ratio = found["std"] / (2.0 * 0.5 / 10)
        assert abs(ratio - 1) < 0.05
        for wrong in (2 / 3, 3 / 2):
            assert abs(wrong * ratio - 1) > 0.05
        assert found["zeros"] == 0
        assert found["repeated"] < 5  # the same noise on two processes would repeat thousands
        assert found["largest"] < 0.6  # of 100 numbers: more than six standard deviations
    assert len({each[key]["hash"] for each in group[noise]}) == 1


def test_owners_of_rows_are_a_bijection():
    from dpfy.gradients.sharded.rows import Owned

    for rows in (1, 2, 3, 7, 33, 64):
        for owners in (1, 2, 3, 4, 8, 65):
            parameter = nn.Parameter(torch.empty(rows, 2))
            owned = [Owned(parameter, rows, owners, place) for place in range(owners)]
            counted = [row for each in owned for row in range(*each.span())]
            assert counted == [*range(rows)]
            chunks = [len(chunk) for chunk in torch.empty(rows, 2).chunk(owners)]
            spans = [end - first for first, end in (each.span() for each in owned)]
            assert spans[: len(chunks)] == chunks  # as fully_shard divides them


# What travels


@scenario
def traffic(rank, size, folder):
    """The kinds of reductions in a step, and gradients that are seen meanwhile."""
    seen = {"reduced": [], "raw": 0}
    model = sharded(made())
    originals = {}

    def spied(name):
        original = originals[name] = getattr(dist, name)

        def call(*args, **options):
            seen["reduced"].append([name, args[0].numel()])
            seen["raw"] += sum(p.grad is not None for p in model.parameters())
            return original(*args, **options)

        return call

    from dpfy.run import step

    taken = step.add_in_lock_step

    def watched(*args):
        for name in ("reduce_scatter_single", "reduce_scatter_tensor", "all_reduce", "reduce"):
            if hasattr(dist, name):
                setattr(dist, name, spied(name))
        try:
            taken(*args)
        finally:
            for name, original in originals.items():
                setattr(dist, name, original)

    step.add_in_lock_step = watched
    try:
        released(model, steps=1)
    finally:
        step.add_in_lock_step = taken
    return seen


def test_no_raw_gradient_is_formed_or_reduced(group):
    for each in group[traffic]:
        assert each["raw"] == 0
        assert all(name == "all_reduce" and size == 1 for name, size in each["reduced"])


# What is refused


def refusal(act):
    try:
        act()
    except dpfy.DpfyError as error:
        return [type(error).__name__, str(error)]
    return ["", ""]


@scenario
def refusals(rank, size, folder):
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (size,))

    def parallel(frozen):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        parallelize_module(model[0], mesh, ColwiseParallel())
        model[0].requires_grad_(not frozen)
        if frozen:
            fully_shard(model[1])
        return model

    def columns():
        from torch.distributed.tensor import Shard

        model = nn.Linear(4, 4, bias=False)
        fully_shard(model, shard_placement_fn=lambda parameter: Shard(1))
        return model

    def partly():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        fully_shard(model[0])
        return model

    half = MixedPrecisionPolicy(param_dtype=torch.float16)
    start = lambda model, **options: refusal(lambda: released(model, steps=1, **options))  # noqa: E731
    return {
        "tensor parallel": start(parallel(False)),
        "frozen tensor parallel": start(parallel(True)),
        "columns": start(columns()),
        "not sharded": start(partly()),
        "half": start(sharded(made(), mp_policy=half)),
        "vmap": start(sharded(made()), engine="vmap"),
        "strict": start(sharded(made()), strict=True),
        "wrapped": start(nn.parallel.DistributedDataParallel(made())),
    }


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("tensor parallel", "tensor parallelism"),
        ("frozen tensor parallel", "tensor parallelism"),
        ("columns", "divided as"),
        ("not sharded", "not sharded"),
        ("half", "GradScaler"),
        ("vmap", "'vmap'"),
        ("strict", "strict runs"),
        ("wrapped", "DistributedDataParallel"),
    ],
)
def test_what_has_no_proof_is_refused_by_name(group, kind, says):
    for each in group[refusals]:
        assert each[kind][0] == "InvalidArgument" and says in each[kind][1]


# Statistics, and two-dimensional meshes


@scenario
def statistics(rank, size, folder):
    model = sharded(made())
    query = dpfy.dpsgd(
        rate=0.5,
        divisor=10,
        steps=1,
        clip=0.5,
        noise_multiplier=0.0,
        statistics=[dpfy.SampleSize(), dpfy.RecordNormsBelow()],
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with dpfy.privatize(
        model,
        optimizer,
        TensorDataset(TOKENS),
        query,
        dpfy.Ledger.in_memory(),
        example_input=(TOKENS[:2],),
        insecure_test_key=3,
        announce=False,
    ) as run:
        batch = next(iter(run))
        got = run.backward(lambda tokens: loss_of(model, tokens), batch)
    return {name: value.tolist() for name, value in got.statistics.items()}


def test_statistics_count_the_records_of_all_processes_once(group):
    first, *others = group[statistics]
    size = next(value for name, value in first.items() if "size" in name)
    records = torch.tensor(size).flatten()[0].item() * 10
    assert records == pytest.approx(round(records), abs=1e-4) and 2 < records < 18
    assert others == [first] * (group.size - 1)


@scenario
def replicas(rank, size, folder):
    if size != 4:
        return None
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    quiet = released(sharded(made(), mesh=mesh))
    noisy = released(sharded(made(), mesh=mesh), noise=1.0, steps=1)
    return [quiet.tolist(), hashlib.sha256(noisy.numpy().tobytes()).hexdigest()]


@pytest.mark.slow
def test_replicas_of_shards_release_the_same(group):
    if group.size != 4:
        pytest.skip("needs four processes")
    expected = released(made())
    for each, _ in group[replicas]:
        torch.testing.assert_close(
            torch.tensor(each, dtype=torch.float64), expected, rtol=0, atol=1e-6
        )
    assert len({digest for _, digest in group[replicas]}) == 1
