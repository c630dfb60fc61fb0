"""Whatever torch is set to around a step: one record more moves the sum by what is paid for, and
nothing stays set.
"""

import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

import dpfy
from dpfy.gradients import ENGINES
from dpfy.run import step
from dpfy.sandbox import torch_settings
from dpfy.sandbox.torch_settings import TorchSettings, certified, reproducible, users_code

RECORDS = 300


@contextmanager
def setting(change, back):
    change()
    try:
        yield
    finally:
        back()


def precision(name):
    return setting(
        lambda: torch.set_float32_matmul_precision(name),
        lambda: torch.set_float32_matmul_precision("highest"),
    )


def threads(number):
    before = torch.get_num_threads()
    return setting(lambda: torch.set_num_threads(number), lambda: torch.set_num_threads(before))


def default_dtype(dtype):
    return setting(
        lambda: torch.set_default_dtype(dtype), lambda: torch.set_default_dtype(torch.float32)
    )


STATES = {
    "plain": lambda: setting(lambda: None, lambda: None),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast of half precision": lambda: torch.autocast("cpu", torch.float16),
    "medium products": lambda: precision("medium"),
    "products of a backend": lambda: setting(
        lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
        lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "none"),
    ),
    "products of all backends": lambda: setting(
        lambda: setattr(torch.backends, "fp32_precision", "tf32"),
        lambda: setattr(torch.backends, "fp32_precision", "none"),
    ),
    "products of CUDA": lambda: setting(
        lambda: setattr(torch.backends.cudnn, "fp32_precision", "tf32"),
        lambda: setattr(torch.backends.cudnn, "fp32_precision", "none"),
    ),
    "doubles": lambda: default_dtype(torch.float64),
    "short floats": lambda: default_dtype(torch.bfloat16),
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    "deterministic": lambda: setting(
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    ),
    "denormals": lambda: setting(
        lambda: torch.set_flush_denormal(True), lambda: torch.set_flush_denormal(False)
    ),
    "anomalies": lambda: setting(
        lambda: torch.set_anomaly_enabled(True), lambda: torch.set_anomaly_enabled(False)
    ),
    "saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda x: x.bfloat16(), lambda x: x.float()
    ),
    "one thread": lambda: threads(1),
    "four threads": lambda: threads(4),
}


def released(records, engine, around, monkeypatch, dtype=torch.float32):
    """The noiseless sum of a step in a state of torch, and by how much one record may move it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
    rows = 1 + 0.01 * torch.randn(RECORDS + 1, 12, generator=torch.Generator().manual_seed(1)).to(
        dtype
    )
    paid, mechanism = [], step.mechanism_for
    monkeypatch.setattr(
        step, "mechanism_for", lambda *given: paid.append(mechanism(*given)) or paid[-1]
    )
    run = dpfy.privatize(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        TensorDataset(rows[:records]),
        dpfy.dpsgd(records=RECORDS, batch_size=RECORDS, steps=1, noise_multiplier=0.0),
        dpfy.Ledger.in_memory(),
        engine=engine,
        insecure_test_key=1,
    )
    with run, around:
        before = TorchSettings.present()
        run.backward(lambda x: 1e3 * model(x).squeeze(1).square(), next(iter(run)))
        assert TorchSettings.present() == before
    assert not any(p.grad.is_inference() or p.grad.requires_grad for p in model.parameters())
    return RECORDS * torch.cat([p.grad.double().flatten() for p in model.parameters()]), paid[
        -1
    ].sensitivity


@pytest.mark.parametrize("state", ["plain", "autocast", "autocast of half precision"])
@pytest.mark.parametrize("engine", ENGINES)
def test_one_record_more_moves_the_sum_by_what_is_paid_for(engine, state, monkeypatch):
    """Under autocast the sum of 300 equal gradients was rounded to 8 bits, and moved by 1.3
    bounds.
    """
    few, bound = released(RECORDS, engine, STATES[state](), monkeypatch)
    more, _ = released(RECORDS + 1, engine, STATES[state](), monkeypatch)
    assert float((more - few).norm()) <= bound
    assert float((more - few).norm()) > 0.5  # there is something to be bounded


@pytest.mark.parametrize("engine", ENGINES)
def test_no_state_but_autocast_changes_a_bit_of_the_result(engine, monkeypatch):
    plain, _ = released(40, engine, STATES["plain"](), monkeypatch)
    for state in STATES:
        if "autocast" not in state:  # which the loss has inside, as it is meant
            assert torch.equal(released(40, engine, STATES[state](), monkeypatch)[0], plain), state


def test_user_code_has_its_own_autocast_and_default_dtype_and_ours_comes_back():
    with torch.autocast("cpu", torch.bfloat16), default_dtype(torch.float64):
        with certified():
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
            ours = TorchSettings.present()
            with users_code():
                assert torch.get_default_dtype() == torch.float64
                single = torch.ones(2, 2, dtype=torch.float32)
                assert (single @ single).dtype == torch.bfloat16
                torch.set_default_dtype(torch.bfloat16)  # whatever it sets
                torch.set_grad_enabled(False)
                torch.set_float32_matmul_precision("medium")
            assert TorchSettings.present() == ours and torch.is_grad_enabled()
            assert ours.matmul_precision == "highest"
            torch.set_float32_matmul_precision(
                "highest"
            )  # the name that torch has for it is nobody's setting
        assert torch.get_default_dtype() == torch.float64 and torch.is_autocast_enabled("cpu")


def test_hooks_on_saved_tensors_see_nothing_of_a_step_and_are_there_again_afterwards():
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or x, lambda x: x):
        weight = torch.ones(2, requires_grad=True)
        with certified():
            (weight * weight).sum().backward()
        assert not seen
        (weight * weight).sum()
        assert seen


def test_a_run_that_is_made_in_inference_mode_can_be_trained():
    """What was declared there was an inference tensor, and every engine refused it."""
    model = nn.Linear(3, 1)
    plan = dpfy.dpsgd(rate=1.0, divisor=1, steps=1, noise_multiplier=0.0)
    with torch.inference_mode():
        run = dpfy.privatize(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            TensorDataset(torch.ones(4, 3)),
            plan,
            dpfy.Ledger.in_memory(),
            example_input=torch.rand(2, 3),
        )
        released = run.release(lambda x: model(x).squeeze(1), next(iter(run)))
    assert released.gradients["weight"].any()


def test_states_are_put_back_after_an_error():
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        before = TorchSettings.present()
        with pytest.raises(ZeroDivisionError), certified():
            raise ZeroDivisionError
        assert TorchSettings.present() == before and not torch.is_grad_enabled()


def test_threads_of_a_pool_that_flush_denormals_are_not_used(monkeypatch):
    """They are born so under a thread that does, and cannot be told otherwise: norm and sum might
    then disagree.
    """
    with threads(2):
        monkeypatch.setattr(torch_settings, "_pool_flushes_denormals", lambda number: number > 1)
        with certified():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2


def test_denormals_are_kept_where_the_user_flushes_them():
    tiny = torch.from_numpy(np.full(3, 2.0**-140, dtype=np.float32))
    with STATES["denormals"]():
        assert not (tiny * 1).any()
        with certified():
            assert (tiny * 1).all()
        assert not (tiny * 1).any()


def test_two_threads_take_turns(started):
    """They would share the vector of the sums, the generators and torch's settings."""
    rows = torch.eye(3)
    s = started(rows, steps=40)
    batches, found = [*s.run], []

    def take(some):
        found.extend(s.run.release(s.loss, batch).gradients["weight"] for batch in some)

    workers = [threading.Thread(target=take, args=(batches[start::4],)) for start in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 40 and all(torch.equal(gradient, torch.ones(3)) for gradient in found)


@pytest.fixture
def with_cuda(monkeypatch):
    """Let dpfy look after the settings of CUDA, which torch has on every machine."""
    found = torch_settings._MULTIPLIERS
    monkeypatch.setattr(
        torch_settings,
        "_MULTIPLIERS",
        tuple(dict.fromkeys((*found, *torch_settings._CUDA_MULTIPLIERS))),
    )
    monkeypatch.setattr(torch_settings, "_REDUCTIONS", torch_settings._CUDA_REDUCTIONS)


@pytest.mark.usefixtures("with_cuda")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("state", ["products of all backends"])
def test_norms_and_sums_are_computed_in_ieee_float32(engine, state, monkeypatch):
    """Whatever the user set, for the CPU and for CUDA; and the engine's own products are there."""
    modes, reductions = set(), set()
    backends = torch.backends

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.mv):
                modes.update(each.fp32_precision for each in MULTIPLIERS)
                reductions.add(backends.cuda.matmul.allow_bf16_reduced_precision_reduction)
            return func(*args, **(kwargs or {}))

    with Spy():
        released(5, engine, STATES[state](), monkeypatch)
    assert modes <= {"ieee", "none"} and modes
    assert reductions == {False}
    assert backends.cuda.matmul.allow_bf16_reduced_precision_reduction


MULTIPLIERS = (
    torch.backends.mkldnn.matmul,
    torch.backends.mkldnn.conv,
    torch.backends.cuda.matmul,
    torch.backends.cudnn.conv,
    torch.backends.cudnn.rnn,
)


@pytest.mark.usefixtures("with_cuda")
def test_what_followed_another_setting_follows_it_again():
    followers = torch.backends.mkldnn.matmul, torch.backends.cuda.matmul
    for each in followers:
        each.fp32_precision = "none"
    with STATES["products of all backends"]():
        with certified():
            assert {each.fp32_precision for each in MULTIPLIERS} == {"ieee"}
        assert {each.fp32_precision for each in followers} == {"tf32"}
        torch.backends.fp32_precision = "ieee"
        assert {each.fp32_precision for each in followers} == {"ieee"}


@pytest.mark.usefixtures("with_cuda")
@pytest.mark.parametrize("state", ["products of all backends", "products of CUDA"])
def test_what_has_a_setting_of_its_own_keeps_it(state):
    matmul = torch.backends.cuda.matmul
    with STATES[state]():
        matmul.fp32_precision = "tf32"
        try:
            with certified():
                assert matmul.fp32_precision == "ieee"
            torch.backends.fp32_precision = torch.backends.cudnn.fp32_precision = "ieee"
            assert matmul.fp32_precision == "tf32"
        finally:
            matmul.fp32_precision = "none"
            torch.backends.fp32_precision = torch.backends.cudnn.fp32_precision = "none"


def test_a_kernel_without_equal_bits_raises_where_they_are_needed():
    with certified():
        before = TorchSettings.present()
        with reproducible(), users_code():
            assert torch.get_deterministic_debug_mode() == 2
        assert TorchSettings.present() == before
