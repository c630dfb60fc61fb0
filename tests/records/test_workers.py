"""Loading: each record under a secret key of its own, and processes that a record may end."""

import os
import random
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from runs import Dot
from torch.utils.data import Dataset, Subset, get_worker_info

from dpfy.gradients.chunk import Chunk
from dpfy.noise import SecureStream
from dpfy.records.records import Records
from dpfy.sandbox.record_keys import set_generators

ROWS = torch.randn(24, 3, generator=torch.Generator().manual_seed(3))
ALL = torch.arange(24)


class Rows(Dataset):
    """Rows, of which some do something else than being loaded."""

    def __init__(self, bad=(), deed=None, rows=ROWS):
        self.bad, self.deed, self.rows = set(bad), deed, rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if index in self.bad:
            self.deed()
        return self.rows[index]


@pytest.fixture
def started(started):
    """Start runs that do not say which engine they take."""
    return partial(started, announce=False)


def numbers():
    return (*torch.rand(1).tolist(), float(np.random.rand()), random.random())


class Augmented(Rows):
    """What each of the three generators gives for a record."""

    def __getitem__(self, index):
        if index in self.bad:
            self.deed()
        return torch.tensor([index, *numbers()], dtype=torch.float64)


def test_keys_settle_all_generators_and_differ_by_index_and_key():
    found = {}
    for key in (bytes(32), bytes(31) + b"1"):
        for index in (0, 1, 2**40):
            set_generators(key, index)
            torch.randn(3), np.random.randn(), random.gauss(0, 1)  # leave half of a pair behind
            set_generators(key, index)
            found[key, index] = numbers()
            set_generators(key, index)
            assert numbers() == found[key, index]
    assert len({number for each in found.values() for number in each}) == 3 * len(found)


def drawn(data, workers, key=1, parts=(ALL[:10], ALL[10:])):
    """What every record drew, by its index, in two passes."""
    records = Records(data, None, workers, None, SecureStream(key, purpose="training"))
    passes = [
        {
            int(row[0]): tuple(row[1:].tolist())
            for loaded in records.sample(ALL, ALL).chunks(parts)
            for row in loaded.chunk.arguments[0]
        }
        for _ in range(2)
    ]
    records.close()
    return passes


def test_augmentation_is_the_same_with_and_without_workers_and_repeats_nowhere():
    """Workers with a seed for the whole run would draw the same in two steps, or numbers that 2^32
    trials find.
    """
    first, second = drawn(Augmented(), workers=0)
    assert drawn(Augmented(), workers=2) == [first, second]
    assert (
        len({number for each in (first, second) for drawn in each.values() for number in drawn})
        == 2 * 24 * 3
    )
    assert drawn(Augmented(), workers=0, key=2)[0] != first
    assert drawn(Augmented(), workers=0, key=None)[0] != drawn(Augmented(), workers=0, key=None)[0]


def seeding():
    torch.manual_seed(0), np.random.seed(0), random.seed(0)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_record_that_draws_or_seeds_changes_nothing_for_others(workers):
    """Generators that run on from one record to the next would let record 3 decide about all behind
    it.
    """
    others, _ = drawn(Augmented(), workers)
    disturbed, _ = drawn(Augmented({3}, seeding), workers, parts=(ALL.flip(0),))
    assert {index for index in others if others[index] != disturbed[index]} == {3}


def test_masks_do_not_depend_on_what_loading_code_seeds(started):
    """With seeded masks one record more moved 64 others by 8 bounds."""
    model = Dot()
    found = [
        started(data, model=model, engine="loop").release(
            lambda x: torch.nn.functional.dropout(model(x))
        )
        for data in (Rows(), Rows(range(24), seeding))
    ]
    assert torch.equal(*found)


def crashing():
    os.kill(os.getpid(), signal.SIGSEGV)


DEEDS = {
    "exit": lambda: os._exit(1),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "crash": crashing,
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_process_group_ends_no_worker(started, number):
    """Launchers signal the group; the parent still has a step to end and a state to save."""

    def told():
        os.kill(os.getpid(), number)

    expected = started(ROWS, num_workers=1).release()
    assert torch.equal(started(Rows({5}, told), num_workers=1).release(), expected)


def test_a_program_that_does_not_close_its_run_still_ends():
    """Multiprocessing would wait for workers that ignore its SIGTERM."""
    program = """
import tempfile
kept = tempfile.TemporaryDirectory()  # registers finalizers to run after multiprocessing's
import torch
from torch.utils.data import TensorDataset
from dpfy.records.records import Records
records = Records(TensorDataset(torch.eye(4)), None, 1)
assert len(list(records.chunks([torch.arange(4)]))) == 1
"""
    subprocess.run([sys.executable, "-c", program], timeout=100, check=True)


@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
def test_a_record_that_ends_its_process_is_left_out_and_not_announced(started, deed, capfd):
    """Its neighbours in the chunk keep every bit."""
    others = Rows(rows=torch.cat([ROWS[:5], ROWS[6:]]))
    expected = started(others, num_workers=1).release()
    s = started(Rows({5}, deed), num_workers=1)
    for _ in range(2):
        assert torch.equal(s.release(), expected)
    s.run.close()
    assert capfd.readouterr() == ("", "")


def test_culprits_are_found_among_several_chunks_and_workers(started, capfd):
    s = started(Rows({0, 5, 6, 23}, DEEDS["exit"]), num_workers=2, max_physical_batch=6)
    kept = [index for index in range(24) if index not in (0, 5, 6, 23)]
    assert torch.equal(s.release(), started(ROWS[kept]).release())
    assert capfd.readouterr() == ("", "")


class Together(Rows):
    """Two records that end a process which has loaded both."""

    def __getitem__(self, index):
        self.bad.add(index)
        if {1, 2} <= self.bad:
            os._exit(1)
        return self.rows[index]


def test_records_that_end_a_process_in_company_only_are_loaded_alone():
    records = Records(Together(), None, 1)
    found = list(records.chunks([ALL[:4]]))
    assert [loaded.indices for loaded in found] in (
        [(0, 1, 2, 3)],
        [(0, 3)],
        [(0, 1, 3)],
        [(0, 2, 3)],
    )
    records.close()


def test_what_workers_say_is_not_heard(started, capfd):
    def speak():
        print("record 5")
        os.write(2, b"record 5")

    assert torch.equal(started(Rows({5}, speak), num_workers=1).release(), started(ROWS).release())
    assert capfd.readouterr() == ("", "")


class Typed(Rows):
    """Fields of every kind, some of them empty."""

    def __getitem__(self, index):
        row = self.rows[index]
        return {
            "half": row.bfloat16(),
            "flag": row > 0,
            "none": row[:0],
            "complex": row.to(torch.complex64),
            "text": str(index),
            "nested": [index, row.double()],
        }


def test_fields_of_every_kind_pass_between_processes():
    chunks = []
    for workers in (0, 1):
        records = Records(Typed(), None, workers)
        (loaded,) = records.chunks([ALL[:3]])
        chunks.append(loaded.chunk)
        records.close()
    assert chunks[0].signature == chunks[1].signature
    for here, there in zip(*(chunk.leaves() for chunk in chunks), strict=True):
        assert torch.equal(here, there) if isinstance(here, torch.Tensor) else here == there


class Informed(Rows):
    def __getitem__(self, index):
        info = get_worker_info()
        return torch.tensor([info.id, info.num_workers, len(info.dataset)])


def test_data_sets_can_ask_which_worker_they_are_in():
    records = Records(Informed(), None, 2)
    found = torch.cat(
        [loaded.chunk.arguments[0] for loaded in records.chunks(list(ALL[:4].split(1)))]
    )
    assert found.tolist() == [[0, 2, 24], [1, 2, 24]] * 2
    records.close()


def test_a_pass_that_was_left_does_not_answer_the_next():
    records = Records(Rows(), None, 2)
    passing = records.chunks([*ALL.split(6)])
    next(passing)
    assert torch.equal(records.alone(20).arguments[0], ROWS[20:21])
    passing.close()
    assert [loaded.indices for loaded in records.chunks([ALL])] == [tuple(range(24))]
    records.close()


class Fetching(Rows):
    """Rows that are loaded several at once, and how often each way was used."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = []

    def __getitem__(self, index):
        self.calls.append(1)
        return super().__getitem__(index)

    def __getitems__(self, indices):
        self.calls.append(len(indices))
        return [Rows.__getitem__(self, index) for index in indices]


def fetched(data, collate_fn=None, example=None):
    """What a data set gives that may load several rows at once, by index, and its calls."""
    records = Records(data, collate_fn, 0, example, SecureStream(1, purpose="training"))
    records.load_together()
    rows = {
        index: row
        for loaded in records.chunks([ALL[3:13]])
        for index, row in zip(loaded.indices, loaded.chunk.arguments[0], strict=True)
    }
    return rows, getattr(data, "calls", None)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def failing():
    raise ValueError("record 5")


@pytest.mark.parametrize("wrapped", [lambda data: data, lambda data: Subset(data, range(24))])
def test_several_rows_are_loaded_in_one_call(wrapped):
    expected, _ = fetched(Rows())
    data = Fetching()
    assert same(fetched(wrapped(data))[0], expected) and data.calls == [10]
    assert same(fetched(wrapped(Fetching({5}, failing)))[0], fetched(Rows({5}, failing))[0])


def test_a_subset_of_rows_that_load_alone_loads_them_alone(monkeypatch):
    """Its own __getitems__ is a loop, which would draw random numbers for nothing."""
    monkeypatch.setattr(Subset, "__getitems__", None)
    assert same(fetched(Subset(Rows(), range(24)))[0], fetched(Rows())[0])


class Wrong(Fetching):
    """Several rows come in a form that does not say which is which."""

    def __init__(self, given):
        super().__init__()
        self.given = given

    def __getitems__(self, indices):
        return self.given(super().__getitems__(indices))


@pytest.mark.parametrize(
    "given", [lambda rows: rows[1:], torch.stack, lambda rows: None, dict.fromkeys]
)
def test_another_number_or_type_than_one_item_per_row_is_not_used(given):
    assert same(fetched(Wrong(given))[0], fetched(Rows())[0])


class Nullable(Fetching):
    """A missing value makes a whole column of numbers floating, as Arrow and pandas do."""

    def __getitems__(self, indices):
        rows = super().__getitems__(indices)
        return [row.double() for row in rows] if 5 in indices else rows

    def __getitem__(self, index):
        row = super().__getitem__(index)
        return row.double() if index == 5 else row


def test_a_record_does_not_change_the_type_of_others():
    """Nine rows would no longer fit the declaration and drop out, because of the tenth."""
    example = Chunk.of(torch.zeros(1, 3), 1)
    expected, _ = fetched(Rows({5}, failing), example=example)
    found, _ = fetched(Nullable(), example=example)
    assert same(found, expected) and len(found) == 9


class AugmentedTogether(Augmented):
    def __init__(self, *args):
        super().__init__(*args)
        self.calls = []

    def __getitems__(self, indices):
        self.calls.append(len(indices))
        return [self[index] for index in indices]


def test_rows_that_draw_random_numbers_have_those_that_they_have_alone():
    """The second row of a call would draw numbers that depend on what the first one drew."""
    alone, together = Augmented(), AugmentedTogether({3}, seeding)
    expected, _ = fetched(alone)
    found, calls = fetched(together)
    del expected[3], found[3]
    assert same(found, expected) and calls == [10]
    records = Records(together, None, 0)
    records.load_together()
    list(records.chunks([*ALL.split(6)]))
    assert together.calls == [10, 6]  # the call is made once, and given up


def test_collation_has_the_numbers_of_the_record():
    def noisy(records):
        return torch.stack(records) + torch.rand(1, 3) + random.random()

    assert same(fetched(Fetching(), noisy)[0], fetched(Rows(), noisy)[0])


def test_workers_load_several_rows_in_one_call_and_survive(started, capfd):
    """A process that ends in a call for several rows is asked for each of them."""

    class Counting(Fetching):
        def __getitem__(self, index):
            raise ValueError  # only a call for several rows succeeds, where it has more than one

    records = Records(Counting(), None, 1)
    records.load_together()
    assert [loaded.indices for loaded in records.chunks([ALL[:6]])] == [(0, 1, 2, 3, 4, 5)]
    records.close()
    s = started(Fetching({5}, DEEDS["exit"]), num_workers=1)
    expected = started(torch.cat([ROWS[:5], ROWS[6:]])).release()
    for _ in range(2):
        assert torch.equal(s.release(), expected)
    s.run.close()
    assert capfd.readouterr() == ("", "")


class Processes(Rows):
    """The process that loads a record."""

    def __getitem__(self, index):
        if index in self.bad:
            self.deed()
        return torch.tensor([os.getpid()])


def fail():
    raise ValueError("a record")


def test_processes_live_over_passes_and_share_each_part():
    """A pass that starts processes anew would show in their numbers, as would an idle one."""
    records = Records(Processes({3}, fail), None, 2)
    found = [
        set(loaded.chunk.arguments[0].flatten().tolist())
        for _ in range(3)
        for loaded in records.fresh().chunks([ALL[:8]])
    ]
    records.close()
    assert found == [found[0]] * 3 and len(found[0]) == 2 and os.getpid() not in found[0]


def ended(worker):
    """Whether a process is gone, or waits to be collected."""
    return worker.process is None or not worker.process.is_alive()


def test_what_was_begun_outlives_passes_between_and_passes_that_were_left(capfd):
    """Parts of the next step are with processes that the present one may end or give up."""
    records = Records(Rows({5}, DEEDS["exit"]), None, 2)
    later, now = records.fresh(), records.fresh()
    later.begin([[ALL[10:18], ALL[18:]]])
    passing = now.chunks([*ALL[:10].split(2)])
    assert next(passing).indices == (0, 1)
    assert torch.equal(now.alone(20).arguments[0], ROWS[20:21])
    passing.close()
    assert [loaded.indices for loaded in now.chunks([ALL[:10]])] == [(0, 1, 2, 3, 4, 6, 7, 8, 9)]
    found = [*later.chunks([ALL[10:18], ALL[18:]])]
    assert [loaded.indices for loaded in found] == [(*range(10, 18),), (*range(18, 24),)]
    assert torch.equal(torch.cat([loaded.chunk.arguments[0] for loaded in found]), ROWS[10:])
    records.close()
    assert all(map(ended, records._workers._team)) and capfd.readouterr() == ("", "")


def test_what_was_begun_and_is_not_wanted_is_given_up():
    records = Records(Rows(), None, 2)
    records.begin([[ALL[:10]], [ALL[10:]]])
    records.begin([])
    assert not records._workers._ahead and not records._workers._waiting
    assert [loaded.indices for loaded in records.chunks([ALL])] == [tuple(range(24))]
    records.close()


def test_processes_are_a_few_parts_ahead_and_no_more():
    """All that is loaded and not taken is in memory."""
    records = Records(Rows(), None, 3)
    records.begin([[*ALL.split(2)]])
    taken = records.chunks([*ALL.split(2)])
    for _ in range(4):
        next(taken)
        assert len(records._workers._ahead) == 3
    taken.close()
    records.close()


class Large(Rows):
    """Records of more than fit into the pipes between processes."""

    def __getitem__(self, index):
        return torch.full((300_000,), float(index))


def test_large_parts_wait_for_one_another_without_a_deadlock():
    records = Records(Large(), None, 1)
    records.begin([[*ALL[:4].split(1)], [*ALL[4:8].split(1)]])
    firsts = [
        float(loaded.chunk.arguments[0][0, 0])
        for parts in (ALL[:4], ALL[4:8])
        for loaded in records.chunks([*parts.split(1)])
    ]
    records.close()
    assert firsts == [*map(float, range(8))]


class Mixed(Rows):
    """Numbers of two types, which collate to one."""

    def __getitem__(self, index):
        return index if index % 3 else np.int64(index)


def test_the_rows_of_a_part_keep_their_order_whoever_loads_them():
    """A user's rows have to stay together."""
    records = Records(Mixed(), None, 2)
    (loaded,) = records.chunks([ALL[:8]])
    records.close()
    assert loaded.indices == (*range(8),) == (*loaded.chunk.arguments[0].tolist(),)
