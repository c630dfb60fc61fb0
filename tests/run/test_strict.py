"""Strict runs: what rests on an allowance is refused, and what is left is the same to the
last bit.
"""

import pytest
import torch
from runs import Dot
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import dpfy
from dpfy.errors import DataError, InvalidArgument, IsolationError, LedgerMismatch
from dpfy.gradients import LoopEngine
from dpfy.gradients.chunk import Chunk
from dpfy.ledger import Ledger
from dpfy.ledger.basis import Kind, grounds_in
from dpfy.mechanisms.clipping import Clipping, clip_to
from dpfy.run.loss_queries import PrivateArgmin
from dpfy.trainer.config import TrainConfig

ROWS = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.5, 0.5, 0.5]])


class Rows(Dataset):
    def __init__(self, rows=ROWS):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return (self.rows[index],)


@pytest.fixture
def begin(tmp_path):
    """Return a function that begins a strict run, in the same ledger whenever it is called."""
    runs = []

    def begin(data=None, model=None, plan=None, **options):
        model = model or Dot()
        plan = plan or dpfy.dpsgd(rate=1.0, divisor=1, steps=5, clip=1.0, noise_multiplier=1.0)
        given = {
            "ledger": tmp_path / "run.dpl",
            "anchor": tmp_path / "anchor",
            "strict": True,
            "announce": False,
            **options,
        }
        runs.append(
            dpfy.privatize(
                model,
                torch.optim.SGD(model.parameters(), lr=0.1),
                TensorDataset(ROWS) if data is None else data,
                plan,
                **given,
            )
        )
        return runs[-1], model

    yield begin
    for run in runs:
        run.close()


def step(run, model):
    return run.release(lambda x: model(x), next(iter(run)))


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_a_strict_run_computes_records_alone_and_rests_on_no_allowance(begin, engine):
    run, model = begin(engine=engine)
    step(run, model)
    assert run.engine == "loop" and run.ledger.header.strict and run.ledger.basis[0]["strict"]
    found = {ground.key: ground.kind for ground in grounds_in(run.ledger.basis)}
    assert Kind.ALLOWANCE not in found.values()
    assert (
        found["last_bits"] == found["isolation"] == Kind.THEOREM
        and found["equal_bits"] == Kind.CHECK
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine": "bookkeeping"}, "got 'bookkeeping'.*allowance"),
        ({"engine": "ghost"}, "got 'ghost'.*allowance"),
        ({"engine": "vmap"}, "got 'vmap'.*allowance"),
        ({"anchor": None}, "anchor=FILE"),
        ({"ledger": Ledger.in_memory(), "anchor": None}, "anchor=FILE"),
        ({"insecure_test_key": 1}, "insecure_test_key"),
        (
            {"plan": dpfy.dpis(records=60, batch_size=10, steps=2, clip=1.0, noise_multiplier=2.0)},
            "'poisson'",
        ),
    ],
    ids=["bookkeeping", "ghost", "vmap", "no anchor", "in memory", "test key", "importance"],
)
def test_what_rests_on_an_allowance_is_refused_by_name(begin, tmp_path, options, said):
    with pytest.raises(InvalidArgument, match=said):
        begin(**options)
    assert not (tmp_path / "run.dpl").exists()  # before anything was declared


def test_a_shape_that_is_not_declared_is_refused(begin):
    with pytest.raises(DataError, match="example_input="):
        begin(data=Rows())


def test_a_model_elsewhere_than_on_the_processor_is_refused(begin):
    with pytest.raises(InvalidArgument, match=r"on the CPU.*meta"):
        begin(model=nn.Linear(3, 1, device="meta"))


def test_a_shape_that_is_declared_will_do(begin):
    run, model = begin(data=Rows(), example_input=(torch.ones(2, 3),))
    step(run, model)
    found = {ground.key: ground.kind for ground in grounds_in(run.ledger.basis)}
    assert found["shape"] == Kind.DECLARATION and found["loading"] == Kind.THEOREM


def test_an_open_ledger_with_an_anchor_will_do(begin, tmp_path):
    with Ledger.open(tmp_path / "own.dpl", anchor=tmp_path / "own.head") as ledger:
        run, model = begin(ledger=ledger, anchor=None)
        step(run, model)
        assert ledger.header.strict


def test_what_is_proved_of_random_numbers_is_no_allowance(begin):
    # Generators are keyed for every record, so dropout rests on a theorem: equal bits are compared
    # under equal keys.
    run, model = begin(model=nn.Sequential(nn.Dropout(0.5), Dot()))
    step(run, model)
    found = {ground.key: ground.kind for ground in grounds_in(run.ledger.basis)}
    assert found["random_numbers"] == Kind.THEOREM and Kind.ALLOWANCE not in found.values()


def test_loading_processes_will_do_since_every_record_has_a_key_of_its_own(begin):
    run, model = begin(data=Rows(), example_input=(torch.ones(2, 3),), num_workers=1)
    step(run, model)
    assert {ground.key: ground.kind for ground in grounds_in(run.ledger.basis)}[
        "loading"
    ] == Kind.THEOREM


def test_gradients_that_differ_from_call_to_call_are_refused(begin, monkeypatch):
    calls, whole = [], LoopEngine.gradients_at

    def drifting(self, call, state, chunk, position):
        calls.append(0)
        found, stats = whole(self, call, state, chunk, position)
        return tuple(
            torch.nextafter(g, torch.full_like(g, 9.0)) if len(calls) % 2 else g for g in found
        ), stats

    run, model = begin()
    monkeypatch.setattr(LoopEngine, "gradients_at", drifting)
    with pytest.raises(IsolationError, match="other bits"):
        step(run, model)


@pytest.mark.parametrize("strict", [True, False])
def test_a_run_goes_on_as_strict_as_it_began(begin, tmp_path, strict):
    plan = dpfy.dpsgd(rate=1.0, divisor=1, steps=5, clip=1.0, noise_multiplier=1.0)
    run, model = begin(plan=plan, strict=strict)
    step(run, model)
    run.save(tmp_path / "saved")
    run.close()
    options = {"anchor": tmp_path / "anchor"}
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(LedgerMismatch, match=f"begun with strict={strict}"):
        dpfy.resume(
            tmp_path / "saved", model, opt, TensorDataset(ROWS), strict=not strict, **options
        )
    with dpfy.resume(
        tmp_path / "saved", model, opt, TensorDataset(ROWS), strict=strict, **options
    ) as again:
        assert again.steps_left == 4 and again.strict is strict


def test_searches_over_losses_are_refused(begin):
    run, _ = begin()
    with pytest.raises(InvalidArgument, match="compares no losses"):
        PrivateArgmin(run, 1.0, 0.1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "anchor"),
        ({"anchor": "a", "engine": "vmap"}, "vmap"),
        ({"anchor": "a", "sampling": "importance"}, "importance"),
        ({"anchor": "a", "algorithm": "line_search"}, "losses"),
    ],
)
def test_settings_are_refused_before_there_is_data(settings, said):
    with pytest.raises(InvalidArgument, match=said):
        TrainConfig(strict=True, **settings)
    TrainConfig(**settings)


def test_a_search_is_not_strict():
    from dpfy.tuning import Choice, Space, TuneConfig

    with pytest.raises(InvalidArgument, match="not strict"):
        TuneConfig(
            base=TrainConfig(strict=True, anchor="a"),
            space=Space({"clip": Choice((0.5, 1.0))}),
            epsilon=1.0,
        )


def test_the_trainer_writes_a_strict_report(tmp_path):
    config = TrainConfig(
        strict=True,
        anchor=str(tmp_path / "anchor"),
        epochs=0.4,
        batch_size=8,
        out=str(tmp_path),
        name="run",
        csv=False,
        records=40,
        learning_rate=0.1,
        clip=1.0,
        data="own:data",
    )
    data = TensorDataset(torch.rand(40, 3), torch.randint(2, (40,)))
    dpfy.Trainer(config, model=nn.Linear(3, 2), train=data).fit()
    text = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert "- strict: no allowance is part of this guarantee\n" in text
    assert "allowed for, not proved" not in text


# The engine itself, strict or not


class Seeing(nn.Module):
    """Notes where its input lies, and how."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.seen = []

    def forward(self, x):
        self.seen.append((x.data_ptr() % 64, x.stride(), x.storage_offset()))
        return x.flatten(1) @ self.weight


@pytest.mark.parametrize("layout", ["rows", "columns", "images", "channels last"])
def test_every_record_is_computed_from_memory_that_is_aligned_alike(layout):
    # Rows of a chunk begin anywhere, and have strides that follow the number of records; kernels
    # round by both.
    chunk = {
        "rows": torch.rand(7, 5),
        "columns": torch.rand(5, 7).T,
        "images": torch.rand(7, 5, 3, 3),
        "channels last": torch.rand(7, 5, 3, 3).contiguous(memory_format=torch.channels_last),
    }[layout]
    model = Seeing(chunk[0].numel())
    clipping = _clipping(model)
    LoopEngine(model, dict(model.named_parameters())).bounded_sums(
        lambda x: model(x), Chunk((chunk,), 7), clipping
    )
    assert set(model.seen) == {(0, torch.empty(1, *chunk.shape[1:]).stride(), 0)}


def test_torch_allocates_at_multiples_of_64_bytes():
    # What the proof of equal bits says of the copies.
    kept = [torch.empty(size).clone() for size in (*range(1, 70), 1000, 4097)]
    assert all(tensor.data_ptr() % 64 == 0 for tensor in kept)


def test_a_record_has_the_same_bits_alone_and_anywhere_in_a_chunk():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(37, 19), nn.Tanh(), nn.Linear(19, 1))
    engine, rows = LoopEngine(model, dict(model.named_parameters())), torch.randn(11, 37)
    alone = _sums(engine, model, rows[4:5].clone())
    for chunk, place in ((rows, 4), (rows[1:], 3), (rows[4:], 0), (rows.T.contiguous().T, 4)):
        others = torch.ones(len(chunk), dtype=torch.bool)
        others[place] = False
        masked = torch.where(
            others[:, None], torch.nan, chunk
        )  # of no finite loss: they add nothing
        assert all(
            torch.equal(one, other)
            for one, other in zip(_sums(engine, model, masked), alone, strict=True)
        )


def test_texts_go_through():
    model = nn.Linear(3, 1)
    engine = LoopEngine(model, dict(model.named_parameters()))
    chunk = Chunk.of((torch.rand(2, 3), ["a", "b"]), 2)

    def loss(x, words):
        assert isinstance(words[0], str)
        return model(x).flatten()

    assert engine.bounded_sums(loss, chunk, _clipping(model)).gradients[0].abs().sum() > 0


def _clipping(model):
    return Clipping(clip_to(1.0), 2.0**-40, (0,) * len(list(model.parameters())))


def _sums(engine, model, rows):
    clipping = _clipping(model)
    return engine.bounded_sums(
        lambda x: model(x).flatten(), Chunk((rows,), len(rows)), clipping
    ).gradients
