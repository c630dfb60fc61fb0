"""A state that is written in one copy is the state that numpy would have set."""

import numpy as np
import pytest
from numpy.random import mtrand

from dpfy.sandbox import numpy_state
from dpfy.sandbox.numpy_state import set_mersenne, set_numpy_state

WORDS = np.random.Generator(np.random.PCG64(1)).integers(0, 2**32, 624, dtype=np.uint32)


@pytest.fixture(autouse=True)
def restored():
    before, generator = np.random.get_state(), mtrand.get_bit_generator()
    yield
    mtrand.set_bit_generator(generator)
    np.random.set_state(before)


@pytest.fixture(params=[True, False], ids=["copied", "by numpy"])
def known(request, monkeypatch):
    monkeypatch.setattr(numpy_state, "_is_as_known", lambda: request.param)


def drawn():
    return [np.random.rand(3).tolist(), np.random.randn(3).tolist(), np.random.randint(9, size=4)]


@pytest.mark.parametrize("used", [0, 5, 624])
def test_the_numbers_that_follow_are_those_of_numpy(known, used):
    np.random.set_state(("MT19937", WORDS, used, 0, 0.0))
    expected = str([drawn() for _ in range(300)])  # more than the twister has words
    np.random.randn()
    assert np.random.get_state()[3] == 1  # a normal number is kept, which must not come next
    set_mersenne(WORDS, used)
    assert str([drawn() for _ in range(300)]) == expected


@pytest.mark.parametrize("normals", [0, 1, 2])
def test_a_state_comes_back_with_the_normal_number_that_it_keeps(known, normals):
    np.random.seed(3)
    for _ in range(normals):
        np.random.randn()
    before = np.random.get_state()
    expected = str(drawn())
    set_mersenne(WORDS)
    set_numpy_state(before)
    assert str(drawn()) == expected


def test_other_views_of_the_same_generator_follow():
    """Code may hold the bit generator itself, and must not go on with numbers that are known."""
    generator = mtrand.get_bit_generator()
    set_mersenne(WORDS)
    one = generator.random_raw(3).tolist()
    set_mersenne(WORDS)
    assert mtrand.get_bit_generator() is generator
    assert generator.random_raw(3).tolist() == one


def test_a_state_of_numpy_is_known_here_and_another_generator_is_left_to_numpy():
    assert numpy_state._is_as_known()
    mtrand.set_bit_generator(np.random.PCG64(1))
    state = np.random.get_state(legacy=False)
    expected = np.random.rand()
    set_numpy_state(state)
    assert np.random.rand() == expected


def test_a_state_of_another_length_is_refused():
    with pytest.raises(ValueError, match="624 words"):
        set_mersenne(WORDS[:623])
