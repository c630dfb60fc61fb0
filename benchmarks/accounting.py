"""Accountants side by side: time and tightness, for single runs, a ledger of different steps, and
calibration.

Times are CPU seconds of this process. ``excess`` is the upper end over the lower end that this
library certifies, less one: how far above the truth a claim may be. Peers that are not installed
are left out (extra ``bench``)."""

import random
import time
from collections.abc import Callable
from importlib.util import find_spec

from dpfy.accounting import account, calibrate_noise, rdp
from dpfy.accounting.pld import accountant as pld
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.types import Relation

CASES = [
    (0.01, 1.0, 10_000, 1e-5),
    (0.001, 0.6, 100_000, 1e-6),
    (0.17, 4.65, 600, 1e-5),
    (1.0, 30.0, 1000, 1e-5),
    (1e-4, 0.8, 10**6, 1e-6),
    (0.01, 1.0, 10, 1e-5),
]


def run(rate: float, noise: float, steps: int) -> Repeated:
    return Repeated(Sampled(Poisson(rate), (SumQuery(1.0, noise),)), steps)


def timed(work: Callable[[], float]) -> tuple[float, float]:
    """The value and the CPU seconds of the second of two calls: imports are not counted, caches are
    emptied.
    """
    work()
    for cached in (pld.epsilon_bracket, rdp._curve, rdp.log_moment):
        cached.cache_clear()
    start = time.process_time()
    value = work()
    return value, time.process_time() - start


def dp_accounting(rate: float, noise: float, steps: int, delta: float, method: str) -> float:
    import dp_accounting as peer
    from dp_accounting import pld as peer_pld, rdp as peer_rdp

    accountant = (
        peer_rdp.RdpAccountant()
        if method == "rdp"
        else peer_pld.PLDAccountant(value_discretization_interval=float(method))
    )
    return accountant.compose(
        peer.PoissonSampledDpEvent(rate, peer.GaussianDpEvent(noise)), steps
    ).get_epsilon(delta)


def opacus(rate: float, noise: float, steps: int, delta: float, method: str) -> float:
    from opacus.accountants import create_accountant

    accountant = create_accountant(method)
    accountant.history = [(noise, rate, steps)]
    return accountant.get_epsilon(delta)


def prv_accountant(rate: float, noise: float, steps: int, delta: float) -> float:
    from prv_accountant.dpsgd import DPSGDAccountant

    accountant = DPSGDAccountant(
        noise_multiplier=noise,
        sampling_probability=rate,
        eps_error=0.01,
        delta_error=delta / 1000,
        max_steps=steps,
    )
    return accountant.compute_epsilon(delta=delta, num_steps=steps)[2]


PEERS: dict[str, tuple[str, Callable[..., float]]] = {
    "dp-accounting PLD 1e-3": ("dp_accounting", lambda *case: dp_accounting(*case, "1e-3")),
    "dp-accounting PLD 1e-4": ("dp_accounting", lambda *case: dp_accounting(*case, "1e-4")),
    "dp-accounting RDP": ("dp_accounting", lambda *case: dp_accounting(*case, "rdp")),
    "opacus PRV": ("opacus", lambda *case: opacus(*case, "prv")),
    "opacus RDP": ("opacus", lambda *case: opacus(*case, "rdp")),
    "prv-accountant": ("prv_accountant", prv_accountant),
}


def single_runs() -> None:
    for rate, noise, steps, delta in CASES:
        events = run(rate, noise, steps)
        lower = account(events, accuracy=1e-5).epsilon(delta).lower
        print(
            f"rate {rate:g}, noise {noise:g}, {steps} steps, delta {delta:g}: at least {lower:.6f}"
        )
        own: dict[str, Callable[[], float]] = {
            "dpfy": lambda e=events, d=delta: account(e).epsilon(d).upper,
            "dpfy accuracy 1e-5": lambda e=events, d=delta: (
                account(e, accuracy=1e-5).epsilon(d).upper
            ),
            "dpfy rdp": lambda e=events, d=delta: account(e, "rdp").claim(d),
        }
        peers = {
            name: (lambda w=work, c=(rate, noise, steps, delta): w(*c))
            for name, (module, work) in PEERS.items()
            if find_spec(module)
        }
        for name, work in (own | peers).items():
            value, seconds = timed(work)
            print(f"  {name:24s} {value:10.6f}  excess {value / lower - 1:8.1e}  {seconds:7.3f} s")


def different_steps() -> None:
    draws = random.Random(1)
    ledgers = {
        "10 000 noise multipliers": [run(0.01, 2 * 0.35 ** (t / 9999), 1) for t in range(10_000)],
        "10 000 rates and noise multipliers": [
            run(10 ** draws.uniform(-3, -1.3), draws.uniform(0.6, 3), 1) for _ in range(10_000)
        ],
    }
    for name, events in ledgers.items():
        for relation in Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE:
            guarantee = account(events, relation=relation)
            start = time.process_time()
            lower, upper = guarantee.epsilon(1e-5)
            print(
                f"{name}, {relation}: [{lower:.5f}, {upper:.5f}] in "
                f"{time.process_time() - start:.3f} s"
            )


def calibration() -> None:
    for steps in (50, 3000, 10**6):
        noise, seconds = timed(
            lambda s=steps: calibrate_noise(epsilon=3.0, delta=1e-5, rate=0.02, steps=s)
        )
        print(
            f"noise for epsilon 3, delta 1e-5, rate 0.02, {steps} steps: {noise:.6f} in "
            f"{seconds:.3f} s"
        )


if __name__ == "__main__":
    single_runs()
    different_steps()
    calibration()
