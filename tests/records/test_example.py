"""What is public about the records is declared: no record decides the engine, the blocks or the
noise.
"""

import pytest
import torch
import torch.nn.functional as F
from runs import Dot
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import dpfy
from dpfy.gradients.chunk import Chunk
from dpfy.records.example import declared_example

LONGEST = 40


class Sequences(Dataset):
    """Sequences of any lengths; one of length None does not load."""

    example_input = (torch.zeros(1, LONGEST), torch.zeros(1, dtype=torch.long))

    def __init__(self, lengths, ledger=None):
        self.lengths, self.ledger, self.reads = lengths, ledger, []

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        if self.ledger is not None:
            self.reads.append(self.ledger.count)
        return torch.ones(self.lengths[index]), torch.tensor(0)


class Undeclared(Dataset):
    def __len__(self):
        raise AssertionError("nothing may be looked at")

    def __getitem__(self, index):
        raise AssertionError("nothing may be read")


def begun(data, noise=1.0, **options):
    """A run of a network that takes sequences of any length."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 2))
    plan = dpfy.dpsgd(rate=0.5, divisor=8, records=16, steps=3, noise_multiplier=noise)
    run = dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        plan,
        dpfy.Ledger.in_memory(),
        insecure_test_key=1,
        **options,
    )
    return run, lambda x, y: F.cross_entropy(model(x.unsqueeze(2)).mean(1), y, reduction="none")


def seen(data, **options):
    """What a first release tells beside its values."""
    run, loss = begun(data, **options)
    with run:
        released = run.release(loss, next(iter(run)))
        return released.stddevs, run.engine, run.isolation, run.largest_chunk, run.declared


@pytest.mark.parametrize(
    "lengths",
    [[], [3], [30] * 16, [7] * 8 + [LONGEST] * 8, [1431] * 16, [5000], [None] * 16, [0, *[7] * 15]],
    ids=["empty", "one", "short", "mixed", "long", "longer", "none loads", "an empty first"],
)
def test_neither_noise_nor_engine_depends_on_records(lengths):
    """Block sizes that follow the shape of some record would move the standard deviation of the
    noise.
    """
    assert seen(Sequences(lengths)) == seen(Sequences([9] * 16))


def test_stacked_tensors_declare_themselves_also_if_there_is_none():
    stacked = [
        TensorDataset(torch.ones(n, LONGEST), torch.zeros(n, dtype=torch.long)) for n in (0, 1, 16)
    ]
    assert len({str(seen(data)) for data in [*stacked, Subset(stacked[2], [3, 5])]}) == 1


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_nothing_is_read_before_the_first_step_is_recorded(engine):
    data = Sequences([5] * 16)
    run, loss = begun(data, engine=engine)
    with run:
        data.ledger = run.ledger
        assert data.reads == []
        run.release(loss, next(iter(run)))
    assert data.reads and min(data.reads) == 1


def test_records_that_do_not_fit_contribute_nothing(started):
    """Each of these loads and collates; a loss might take it, or raise for the whole chunk."""
    fitting = [torch.ones(2), torch.ones(3), torch.ones(1)]
    odd = [
        torch.ones(4),
        torch.ones(3, 1),
        torch.ones(3).double(),
        torch.ones(3, dtype=torch.long),
        torch.tensor(1.0),
        (torch.ones(3), torch.ones(3)),
        {"x": torch.ones(3)},
        "text",
        1.0,
    ]

    def released(records, **options):
        model = Dot(1)
        s = started(records, model=model, clip=100.0, example_input=torch.zeros(1, 3), **options)
        return s.release(lambda x: x.sum(1) * model.weight[0])

    expected = released(fitting)
    assert expected.tolist() == [6.0]
    for each in odd:
        for workers in (0, 1) if each is odd[0] else (0,):
            assert torch.equal(released([each, *fitting], num_workers=workers), expected)
    assert torch.equal(
        released([*odd, *fitting], collate_fn=torch.utils.data.default_collate), expected
    )


def test_keys_in_another_order_are_not_joined_by_place():
    # Joined by place, the first record would decide what is called x in the others.
    here, there = (
        {name: torch.full((1, 2), float(ord(name))) for name in names} for names in ("xy", "yx")
    )
    chunks = [Chunk.of(each, 1) for each in (here, there)]
    assert chunks[0].fits(chunks[1]) and chunks[0].signature != chunks[1].signature


def test_lists_fit_tuples_and_texts_fit_texts():
    declared = Chunk.of(((torch.zeros(1, 3), ["a"]), {"y": torch.zeros(1)}), 1)
    assert Chunk.of([[torch.ones(2, 2), ["b", ""]], {"y": torch.ones(2)}], 2).fits(declared)
    assert not Chunk.of([[torch.ones(2, 2), torch.ones(2)], {"y": torch.ones(2)}], 2).fits(declared)
    assert not Chunk.of([[torch.ones(2, 2), ["b", ""]], {"z": torch.ones(2)}], 2).fits(declared)
    assert not Chunk.of([[torch.ones(2, 2), ["b", ""]]], 2).fits(declared)


@pytest.mark.parametrize(
    "data",
    [
        Undeclared(),
        ConcatDataset([Sequences([1]), [torch.ones(1)]]),
        [torch.ones(3)],
        Subset(Undeclared(), [0]),
    ],
    ids=["data set", "concatenated", "list", "subset"],
)
def test_a_shape_that_nobody_declared_is_asked_for_before_a_ledger_exists(data, tmp_path):
    model = Dot()
    with pytest.raises(dpfy.DataError, match=r"example_input=\(torch.zeros\(1, 3, 32, 32\)"):
        dpfy.privatize(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            data,
            dpfy.dpsgd(rate=1.0, divisor=1, steps=1, noise_multiplier=1.0),
            tmp_path / "run.dpl",
        )
    assert not (tmp_path / "run.dpl").exists()


def test_subsets_and_concatenations_pass_on_what_their_data_sets_declare():
    inner = Sequences([1, 2, 3])
    for data in (
        Subset(inner, [0]),
        ConcatDataset([inner, inner]),
        Subset(ConcatDataset([inner, inner]), [4]),
    ):
        declared = declared_example(data, None)
        assert declared.how == "data set" and declared.chunk.arguments[0].shape == (1, LONGEST)
    other = TensorDataset(torch.ones(2, LONGEST), torch.zeros(2, dtype=torch.long))
    assert declared_example(ConcatDataset([inner, other]), None).how == "data set"


def test_what_is_given_comes_before_what_the_data_set_declares():
    given = declared_example(
        Sequences([1]), None, (torch.zeros(2, 7), torch.zeros(2, dtype=torch.long))
    )
    assert given.how == "example_input" and given.chunk.arguments[0].shape == (2, 7)


def test_a_collate_function_is_given_zeros_of_the_stacked_shape():
    def collate(records):
        assert not any(field.any() for record in records for field in record)
        return torch.stack([record[0] for record in records]).flatten(1)

    declared = declared_example(TensorDataset(torch.ones(5, 2, 3)), collate)
    assert declared.how == "stacked tensors" and declared.chunk.arguments[0].shape == (1, 6)
    with pytest.raises(dpfy.DataError, match="synthetic record of zeros"):
        declared_example(TensorDataset(torch.ones(5, 2)), lambda records: 1 / 0)


def test_stacked_tensors_that_do_not_fit_what_was_given_are_an_error(started):
    with pytest.raises(dpfy.DataError, match="do not fit"):
        started(torch.ones(4, 3), example_input=torch.zeros(1, 2))


class Graph:
    """One object a record, as of a library for graphs."""


def test_records_that_nothing_could_be_collated_of_are_refused():
    """They would train on noise without a word."""
    for example, kind in (
        (None, dpfy.DataError),
        (Graph(), dpfy.InvalidArgument),
        ([Graph()], dpfy.InvalidArgument),
    ):
        with pytest.raises(kind, match="example_input"):
            begun([Graph(), Graph()], example_input=example)


def test_a_declared_example_has_a_finite_loss_or_there_is_an_error(started):
    model = Dot()
    for example, loss in (
        (torch.ones(1, 3), lambda x: model(x) / 0),
        (torch.full((1, 3), torch.nan), model),
        (torch.ones(1, 4), model),
    ):
        with pytest.raises(dpfy.LossError):
            started([torch.ones(3)], model=model, example_input=example).release(loss)


def test_zeros_declare_a_shape_and_do_not_blind_the_probe(started):
    """With equal records in the place of different ones, layers that mix would pass."""
    model = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 1)
    )
    with pytest.raises(dpfy.IsolationError, match="BatchNorm1d"):
        started([torch.ones(4)], model=model, example_input=torch.zeros(1, 4)).release(
            lambda x: model(x).squeeze(1)
        )


def test_equal_rows_are_varied_or_refused(started):
    """Whole numbers and texts that are the same in all rows would blind the probe."""
    for example in (
        torch.ones(1, 3, dtype=torch.long),
        torch.full((2, 3), 7),
        ["a"],
        (["a", "a"], torch.tensor([5, 5])),
    ):
        with pytest.raises(dpfy.InvalidArgument, match="different rows"):
            started([torch.ones(3)], example_input=example)
    model = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 1)
    )
    for rows in (1, 3):
        with pytest.raises(dpfy.IsolationError, match="BatchNorm1d"):
            started([torch.ones(4)], model=model, example_input=torch.ones(rows, 4)).release(
                lambda x: model(x).squeeze(1)
            )


def test_one_empty_text_in_front_does_not_end_a_run(started):
    """The first record decided what synthetic texts look like."""
    model = Dot(1)

    def loss(texts):
        return torch.stack([1.0 / torch.tensor(len(text)) for text in texts]) * model.weight[0]

    found = [
        started(
            ["", *["word"] * 4][start:], model=model, engine="loop", example_input=["a", "ab"]
        ).release(loss)
        for start in (0, 1)
    ]
    assert torch.equal(*found) and found[0].tolist() == [1.0]


def test_records_that_require_gradients_are_constants(started):
    rows = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))
    expected = started(rows, engine="vmap", max_physical_batch=4).release()
    assert torch.equal(
        started(rows.clone().requires_grad_(), engine="vmap", max_physical_batch=4).release(),
        expected,
    )
    assert torch.equal(
        started(
            [row.clone().requires_grad_() for row in rows], engine="vmap", max_physical_batch=4
        ).release(),
        expected,
    )


def test_settings_and_the_trainer_declare_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "declaring.py").write_text(
        "import torch\n\ndef example():\n"
        "    return torch.zeros(1, 3), torch.zeros(1, dtype=torch.long)\n"
    )
    settings = {
        "data": "own",
        "records": 6,
        "batch_size": 3,
        "epochs": 1,
        "learning_rate": 0.1,
        "clip": 1.0,
        "epsilon": 3.0,
        "delta": 1e-3,
    }
    records = [(torch.ones(3), torch.tensor(number % 2)) for number in range(6)]

    def fitted(name, example_input=None, **more):
        config = dpfy.TrainConfig(**settings, name=name, **more)
        return (
            dpfy.Trainer(config, model=nn.Linear(3, 2), train=records, example_input=example_input)
            .fit()
            .folder
        )

    with pytest.raises(dpfy.DataError, match="example = "):
        fitted("undeclared")
    assert not (tmp_path / "runs" / "undeclared").exists()
    assert fitted("settings", example="declaring:example").exists()
    assert fitted("object", (torch.zeros(1, 3), torch.zeros(1, dtype=torch.long))).exists()
