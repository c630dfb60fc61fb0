"""Users as the unit: whose rows are whose, which of them take part, and what one user can do to a
release.
"""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from runs import Dot, Started
from scipy.stats import chi2
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import dpfy
from dpfy.errors import InvalidArgument
from dpfy.gradients import LoopEngine
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.clipping import Clipping, clip_to
from dpfy.noise import SecureStream
from dpfy.records.users import UserRecords, Users, drawn_rows

WIDTH, BOUND = 3, 0.5
GRID = 2.0**-40


def seeds(count, key=3):
    """A column of words for each of ``count`` users."""
    return torch.from_numpy(
        SecureStream(key, purpose="sampling").words(4 * count).astype(np.int64)
    ).view(4, count)


def users_plan(**options):
    return dpfy.dpsgd(
        **{
            "rate": 1.0,
            "divisor": 1,
            "steps": 5,
            "clip": BOUND,
            "noise_multiplier": 0.0,
            "unit": "user",
            **options,
        }
    )


class Rows(Dataset):
    """Rows that are loaded one by one; one that is an exception is raised."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if isinstance(self.rows[index], Exception):
            raise self.rows[index]
        return self.rows[index]


# Whose rows are whose

IDS = ["b", "a", "b", "c", "a", "b"]
RANKS = [1, 0, 1, 2, 0, 1]


@pytest.mark.parametrize(
    "unit_of",
    [
        IDS,
        tuple(IDS),
        np.array(IDS),
        np.array(IDS, dtype=object),
        RANKS,
        np.array(RANKS, dtype=np.uint8),
        torch.tensor(RANKS),
        lambda row: IDS[row],
        [each.encode() for each in IDS],
        [-5, -9, -5, 10**30, -9, -5],
    ],
    ids=lambda given: type(given).__name__,
)
def test_users_own_their_rows_in_order_whatever_says_so(unit_of):
    users = Users.of(unit_of, 6)
    assert [users.rows_of(user).tolist() for user in range(len(users))] == [[1, 4], [0, 2, 5], [3]]


def test_a_row_without_an_id_is_nobodys_and_stops_nothing():
    def sometimes(row):
        return [3, 3, 5, 7][row] if row != 2 else {}["missing"]

    for unit_of in ([3, 3, None, 7], [3, 3, float("nan"), 7], [3, 3, [1], 7], sometimes):
        users = Users.of(unit_of, 4)
        assert [users.rows_of(user).tolist() for user in range(len(users))] == [[0, 1], [3]]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 9), max_size=30), st.integers(0, 9), st.randoms())
def test_one_user_more_leaves_the_others_in_the_same_order_with_the_same_rows(ids, extra, random):
    others = [each for each in ids if each != extra]
    with_extra = others + [extra] * 3
    random.shuffle(
        with_extra
    )  # also where the rows stand does not matter, as long as a user's own keep their order
    numbered = {each: iter(range(len(with_extra))) for each in set(with_extra)}
    names = [(each, next(numbered[each])) for each in with_extra]

    def owned(chosen):
        users = Users.of([each for each, _ in chosen], len(chosen))
        return [[chosen[row] for row in users.rows_of(user)] for user in range(len(users))]

    without = owned([name for name in names if name[0] != extra])
    assert [user for user in owned(names) if user[0][0] != extra] == without


@pytest.mark.parametrize(
    ("unit_of", "says"),
    [
        ("user", "Got a str"),
        (5, "Got a int"),
        ([1, 2], "length is not that"),
        (np.zeros((3, 1), int), "with 2 axes"),
        (torch.rand(3), "array of float32"),
        ([1.0, 2.0, 3.0], "No row has"),
        (lambda row: None, "No row has"),
        (np.array([True, False, True]), "array of bool"),
    ],
)
def test_what_names_no_users_is_refused(unit_of, says):
    with pytest.raises(dpfy.InvalidArgument, match=says):
        Users.of(unit_of, 3)


def test_plan_and_unit_of_belong_together(started):
    data = TensorDataset(torch.ones(3, WIDTH))
    with pytest.raises(dpfy.InvalidArgument, match=r"protects users.*unit_of=range\(len\(data\)\)"):
        started(data, plan=users_plan())
    with pytest.raises(dpfy.InvalidArgument, match="this one protects records"):
        started(data, unit_of=[1, 1, 2])
    with pytest.raises(dpfy.InvalidArgument, match="this one protects records"):
        started(data, rows_per_user=3)
    with pytest.raises(dpfy.InvalidArgument, match="rows_per_user=0"):
        started(data, plan=users_plan(), unit_of=[1, 1, 2], rows_per_user=0)


# Which rows take part


def test_rows_are_drawn_uniformly():
    """χ² over the 35 ways to draw 3 of 7; false alarm 1e-9. The first rows, or with a bias of 30 %,
    would fail.
    """
    stream = SecureStream(insecure_test_key=5, purpose="sampling")
    draws, limit = 14_000, chi2.isf(1e-9, 34)

    def distance(counts):
        return (
            sum((count - draws / 35) ** 2 for count in counts) / (draws / 35)
            + (35 - len(counts)) * draws / 35
        )

    found = Counter(tuple(drawn_rows(7, 3, stream.words(4).tobytes())) for _ in range(draws))
    assert len(found) == 35 and distance(found.values()) < limit
    assert distance([draws]) > limit
    assert distance([400 * 1.3] * 17 + [400 * 0.7] * 17 + [400]) > limit


@settings(max_examples=100)
@given(st.integers(1, 200), st.integers(1, 200), st.binary(min_size=32, max_size=32))
def test_as_many_rows_as_wanted_are_drawn_once_each(count, wanted, seed):
    wanted = min(count, wanted)
    rows = drawn_rows(count, wanted, seed)
    assert rows == sorted(set(rows)) and len(rows) == wanted and rows[0] >= 0 and rows[-1] < count


def loaded(records, part):
    """By user, the rows of its chunk, each a number; and the rows per user of every chunk."""
    found, sizes = {}, []
    for each in records.chunks([part]):
        rows = each.chunk.arguments[0].view(each.chunk.size, each.chunk.rows, -1)[:, :, 0]
        found |= dict(zip(each.indices, rows.tolist(), strict=True))
        sizes.append(each.chunk.rows)
    return found, sizes


@pytest.mark.parametrize("in_memory", [True, False])
def test_users_take_part_with_their_own_rows_up_to_the_cap(in_memory):
    ids = [0] * 3 + [1] * 50 + [2] * 5 + [3] * 3
    rows = torch.arange(61.0).unsqueeze(1)
    data = TensorDataset(rows) if in_memory else Rows(list(rows))
    records = UserRecords(data, None, 0, ids, 5)
    assert len(records) == 4
    for key in (1, 2):
        found, sizes = loaded(records.sample(torch.arange(4), seeds(4, key)), torch.arange(4))
        assert sorted(sizes) == [3, 5]
        assert (
            found[0] == [0, 1, 2] and found[2] == [53, 54, 55, 56, 57] and found[3] == [58, 59, 60]
        )
        assert len(set(found[1])) == 5 and all(3 <= row < 53 for row in found[1])
    again, _ = loaded(records.sample(torch.arange(4), seeds(4, 1)), torch.arange(4))
    assert again[1] != found[1]  # drawn anew with other seeds


def test_the_rows_of_a_user_are_the_same_with_and_without_another_user():
    """Rows drawn in one go for the whole sample, or a number of a row that others can shift, would
    fail.
    """
    ids = [1] * 40 + [5] * 30 + [9] * 50
    rows, drawn = torch.arange(120.0).unsqueeze(1), seeds(3)
    everybody = UserRecords(TensorDataset(rows), None, 0, ids, 4).sample(torch.arange(3), drawn)
    kept = [row for row, each in enumerate(ids) if each != 5]
    rest = UserRecords(TensorDataset(rows[kept]), None, 0, [ids[row] for row in kept], 4).sample(
        torch.arange(2), drawn[:, [0, 2]]
    )
    (before, _), (after, _) = loaded(everybody, torch.arange(3)), loaded(rest, torch.arange(2))
    assert before[0] == after[0] and before[2] == after[1]
    assert (
        everybody.alone(2).arguments[0].flatten().tolist() == before[2]
    )  # the same rows at a second try


def test_the_users_of_a_sample_choose_by_the_seeds_that_they_drew():
    # Seeds that went to others, such as by their place in the sample, would leave somebody without
    # one.
    records = UserRecords(
        TensorDataset(torch.arange(120.0).unsqueeze(1)), None, 0, np.arange(120) // 30, 4
    )
    drawn = seeds(2)
    found, _ = loaded(records.sample(torch.tensor([1, 3]), drawn), torch.tensor([1, 3]))
    for user, column in zip((1, 3), drawn.t(), strict=True):
        assert found[user] == [
            30 * user + row for row in drawn_rows(30, 4, column.numpy().tobytes())
        ]


def test_rows_that_do_not_load_or_fit_are_left_out_of_their_user_alone():
    long, short = torch.ones(2), torch.ones(1)
    rows = [
        OSError(),
        short,
        short,  # two rows are left
        long,
        short,
        short,  # most are short
        OSError(),
        OSError(),
        OSError(),  # nothing is left
        long,
        short,
        short,
    ]
    records = UserRecords(Rows(rows), None, 0, np.arange(12) // 3, 3)
    found = {
        index: (each.chunk.rows, each.chunk.arguments[0].shape[1:])
        for each in records.chunks([torch.arange(4)])
        for index in each.indices
    }
    assert found == {0: (2, (1,)), 1: (2, (1,)), 3: (2, (1,))}
    assert records.alone(2) is None and records.alone(1).rows == 2


@pytest.mark.parametrize("before", [1, 2])
def test_which_shape_a_user_has_is_not_decided_by_others(before):
    # The first shape that is seen in the sample would be that of somebody else's row.
    somebody, rows = torch.ones(before), [torch.ones(2), torch.ones(1)]
    records = UserRecords(Rows([somebody, *rows]), None, 0, [0, 1, 1], 3)
    shapes = {
        index: each.chunk.arguments[0].shape[1:]
        for each in records.chunks([torch.arange(2)])
        for index in each.indices
    }
    assert shapes[1] == (2,)


def test_rows_that_are_not_as_declared_are_left_out_of_their_user_alone():
    rows = [
        torch.ones(7),
        torch.ones(2),
        torch.ones(1),
        torch.ones(2, dtype=torch.long),
        torch.ones(7),
    ]
    records = UserRecords(Rows(rows), None, 0, [0, 0, 1, 1, 2], 3, Chunk((torch.zeros(1, 2),), 1))
    found = {
        index: (each.chunk.rows, each.chunk.arguments[0].shape[1:])
        for each in records.chunks([torch.arange(3)])
        for index in each.indices
    }
    assert found == {0: (1, (2,)), 1: (1, (1,))}
    assert records.alone(2) is None


# What a user can do to a release


def test_a_release_is_the_sum_of_clipped_means(started):
    x = torch.tensor([[0.1, 0, 0], [0.3, 0, 0], [0, 9, 0], [0, 0, 8], [0, 0, -8], [0, 0, 0.4]])
    s = started(x, plan=users_plan(), unit_of=["a", "a", "b", "c", "c", "c"])
    torch.testing.assert_close(s.release(), torch.tensor([0.2, BOUND, 0.4 / 3]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("engine", ["loop", "vmap", "bookkeeping", "ghost"])
def test_every_engine_releases_the_same_for_users_of_all_sizes(started, engine):
    x = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(1))
    ids = torch.randint(7, (40,), generator=torch.Generator().manual_seed(2))
    means = torch.stack([x[ids == each].mean(0) for each in ids.unique()])
    expected = (means * (BOUND / means.norm(dim=1)).clamp(max=1).unsqueeze(1)).sum(0)
    model = nn.Linear(WIDTH, 1, bias=False)
    s = started(
        x,
        plan=users_plan(),
        model=model,
        unit_of=ids,
        rows_per_user=40,
        engine=engine,
        max_physical_batch=64,
    )
    found = s.release(lambda x: model(x).squeeze(1))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_a_user_of_many_huge_rows_moves_a_release_by_at_most_the_bound(started):
    # The same key: what both data sets share draws the same coins when the extra user has the last
    # id.
    x = torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(1))
    ids = [0, 0, 1, 2, 2, 2, 3, 4, 5, 5, 6, 7]
    released = [
        started(
            torch.cat([x, torch.full((rows, WIDTH), 1e6)]),
            plan=users_plan(),
            unit_of=ids + [8] * rows,
        ).release()
        for rows in (0, 1, 100)
    ]
    for other in released[1:]:
        assert 0.99 * BOUND < float((other - released[0]).norm()) <= BOUND * (1 + 1e-5)


def test_bad_rows_of_a_user_leave_the_others_as_they_are(started):
    """A row that is not finite or that the loss cannot take makes its user contribute nothing; one
    that does not load is missing from the mean.
    """
    ones, nan, raising = (
        torch.ones(WIDTH),
        torch.full((WIDTH,), torch.nan),
        torch.full((WIDTH,), 13.0),
    )
    model = Dot(WIDTH)

    def loss(x):
        if bool((x == 13).any()):
            raise ValueError("a row that cannot be computed")
        return model(x)

    data = Rows([0.1 * ones, OSError(), ones, nan, ones, raising, 0.2 * ones])
    s = started(
        data, plan=users_plan(clip=100.0), model=model, unit_of=[0, 0, 1, 1, 2, 2, 3], engine="loop"
    )
    torch.testing.assert_close(s.release(loss), 0.3 * ones, rtol=0, atol=1e-4)


def test_a_collate_function_pads_the_rows_of_a_user_to_one_length(started):
    rows = [torch.ones(length) for length in (1, 3, 2, 3)]
    s = started(
        Rows(rows),
        plan=users_plan(clip=100.0),
        unit_of=[0, 0, 0, 1],
        collate_fn=lambda some: torch.stack(
            [nn.functional.pad(x, (0, WIDTH - len(x))) for x in some]
        ),
    )
    torch.testing.assert_close(s.release(), torch.tensor([2.0, 5 / 3, 4 / 3]), rtol=0, atol=1e-4)


def test_workers_load_the_rows_of_users(started):
    s = started(
        Rows([torch.full((WIDTH,), float(row)) for row in range(8)]),
        plan=users_plan(clip=100.0),
        unit_of=np.arange(8) // 4,
        num_workers=1,
    )
    torch.testing.assert_close(s.release(), torch.full((WIDTH,), 7.0), rtol=0, atol=1e-3)


def test_slots_hold_means_over_users(started):
    # One slot: the mean over two users, and not over their four rows.
    x = torch.tensor([[0.3, 0, 0], [0.3, 0, 0], [0.3, 0, 0], [0, 0.3, 0]])
    s = started(x, plan=users_plan(microbatches=1), unit_of=[0, 0, 0, 1])
    torch.testing.assert_close(s.release(), torch.tensor([0.15, 0.15, 0]), rtol=0, atol=1e-4)


def test_users_are_drawn_and_not_rows(started):
    """At rate 1/2 a user of 60 rows is there with all of its 4 in half of the steps.

    The number of steps is Binomial(200, 1/2): |X − 100| < 36 has a false alarm below 1e-6; rows
    drawn by themselves would be there in all steps."""
    x = torch.cat([torch.tensor([[1.0, 0, 0]]).repeat(60, 1), torch.tensor([[0, 1.0, 0]])])
    s = started(
        x,
        plan=users_plan(rate=0.5, steps=200, clip=1.0),
        unit_of=[0] * 60 + [1],
        rows_per_user=4,
        engine="loop",
    )
    released = torch.stack([s.release() for _ in range(200)])
    there = (released[:, :2] > 0.5).sum(0)
    assert bool((((released[:, :2] - 1).abs() < 1e-5) | (released[:, :2].abs() < 1e-5)).all())
    assert bool(((there - 100).abs() < 36).all())
    assert s.ledger.count == 200


def test_all_rows_of_a_user_take_part_over_the_steps(started):
    """Each of 6 rows is one of 2 in a step with probability 1/3; 80 steps miss one with probability
    6·(2/3)^80 < 1e-13.

    The first rows in every step would fail.
    """
    x = torch.eye(6)
    s = started(
        x,
        dimension=6,
        plan=users_plan(steps=80, clip=1.0),
        unit_of=[0] * 6,
        rows_per_user=2,
        engine="loop",
    )
    released = torch.stack([s.release() for _ in range(80)])
    assert bool((released.sum(0) > 1).all())
    assert bool(((released > 0.4).sum(1) == 2).all())


# Adversarial users, through loading and folding

NUMBERS = st.one_of(
    st.floats(-1e3, 1e3, width=32), st.sampled_from([0.0, 1e-30, 1e30, float("nan"), float("inf")])
)
USER = st.lists(st.lists(NUMBERS, min_size=WIDTH, max_size=WIDTH), min_size=1, max_size=6)


def noiseless(users, drawn):
    """The clipped sum over users given by their ids, each with its rows and its seed."""
    model = Dot(WIDTH)
    engine = LoopEngine(model, dict(model.named_parameters()))
    ids = [name for name, rows in users.items() for _ in rows]
    data = torch.tensor([row for rows in users.values() for row in rows], dtype=torch.float32).view(
        -1, WIDTH
    )
    order = torch.tensor(sorted(users), dtype=torch.long)
    records = UserRecords(TensorDataset(data), None, 0, ids, 3)
    total = torch.zeros(WIDTH, dtype=torch.float64)
    for each in records.sample(torch.arange(len(users)), drawn[:, order]).chunks(
        [torch.arange(len(users))]
    ):
        engine.bounded_sums(model, each.chunk, Clipping(clip_to(BOUND), GRID, (0,))).add_to([total])
    return total


@settings(max_examples=80)
@given(st.dictionaries(st.integers(0, 7), USER, min_size=1, max_size=5), st.data())
def test_adding_or_removing_any_user_moves_the_sum_by_at_most_the_bound(users, data):
    leaving = data.draw(st.sampled_from(sorted(users)))
    rest = {name: rows for name, rows in users.items() if name != leaving}
    drawn = seeds(8)
    moved = noiseless(users, drawn) - noiseless(rest, drawn)
    assert float(moved.norm()) <= BOUND * (1 + 1e-9) + 3 * GRID


def test_the_unit_may_be_given_where_the_plan_is_bound():
    """The ledger's header says what is protected, whoever said it; what protects users is never
    weakened.
    """
    data, ids = TensorDataset(torch.rand(6, 3)), [0, 0, 0, 1, 1, 1]
    plan = dpfy.dpsgd(rate=1.0, divisor=2, steps=2, noise_multiplier=0.0)
    started = Started(data, plan=plan, unit="user", unit_of=ids)
    assert started.run.plan.unit == "user" and started.run.ledger.header.unit == "user"
    with pytest.raises(InvalidArgument, match="protects users"):
        Started(data, plan=started.run.plan, unit="record")


SORTED_IDS = np.repeat(np.arange(9), [3, 1, 40, 2, 2, 7, 1, 1, 4])
STARTS = np.array([0, 3, 4, 44, 46, 48, 55, 56, 57, 61])


@pytest.mark.parametrize("kind", [np.int64, np.uint32, list, "file"])
def test_starts_of_sorted_rows_name_the_users_that_ids_name(started, tmp_path, kind):
    """The same rows of the same users take part, and the same release follows."""
    if kind == "file":
        np.save(tmp_path / "starts.npy", STARTS)
        starts = tmp_path / "starts.npy"
    else:
        starts = STARTS.tolist() if kind is list else STARTS.astype(kind)
    users, expected = Users.sorted(starts), Users.of(SORTED_IDS, 61)
    assert len(users) == 9 and users.digest() == expected.digest() and users.rows is None
    assert all(users.rows_of(u).tolist() == expected.rows_of(u).tolist() for u in range(9))
    data = TensorDataset(torch.randn(61, WIDTH, generator=torch.Generator().manual_seed(1)))
    releases = [
        started(data, plan=users_plan(), unit_of=unit_of, rows_per_user=4).release()
        for unit_of in (users, SORTED_IDS)
    ]
    assert torch.equal(*releases) and releases[0].any()


@pytest.mark.parametrize("block", [1, 2, 100])
@pytest.mark.parametrize(
    "starts",
    [[1, 2, 3], [0, 2, 2, 3], [0, 3, 2, 4], [0, 1, 2, 1], [], [[0, 1]], [0.0, 1.0], "text"],
)
def test_starts_that_are_no_order_are_refused(starts, block, monkeypatch):
    """The last number of a block is compared with the first one of the next."""
    monkeypatch.setattr("dpfy.records.users._BLOCK", block)
    with pytest.raises((dpfy.InvalidArgument, dpfy.DataError)):
        Users.sorted(starts)


def test_starts_of_other_rows_are_refused(started):
    data = TensorDataset(torch.ones(60, WIDTH))
    with pytest.raises(dpfy.InvalidArgument, match="as many rows"):
        started(data, plan=users_plan(), unit_of=Users.sorted(STARTS))


def test_the_hash_of_users_is_of_all_rows_and_owners(monkeypatch):
    one = Users.of([1, 1, 2, 2], 4)
    others = [[1, 2, 2, 2], [1, 2, 1, 2], [2, 1, 1, 2], [1, 1, 2, None]]
    for block in (1, 100):
        monkeypatch.setattr("dpfy.records.users._BLOCK", block)
        assert len({users.digest() for users in (one, *(Users.of(ids, 4) for ids in others))}) == 5
