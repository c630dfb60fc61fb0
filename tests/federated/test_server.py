"""Rounds are paid for before anybody is drawn, and their noise does not depend on who answers."""

import json
import math
import threading

import numpy as np
import pytest
import torch
from dp_accounting import dp_event, pld
from federations import Two, change, planned, served, update
from streams import in_child

import dpfy
from dpfy.cli.app import main
from dpfy.errors import (
    BatchAlreadyReleased,
    BudgetExhausted,
    DivergenceError,
    InvalidArgument,
    LedgerError,
    LedgerFinished,
    LedgerMismatch,
    UnreleasedGradient,
)
from dpfy.federated import federate, resume

WIDE = 40_000  # coordinates: the spread of noise is known to 0.4 %


def spread_is(values, expected):
    """Whether the spread is as expected, up to six standard errors: a false alarm in 10⁹."""
    found = float(values.double().square().mean().sqrt())
    return abs(found / expected - 1) < 6 / math.sqrt(2 * values.numel())


@pytest.mark.parametrize("answers", [0, 1, 10])
@pytest.mark.parametrize("adaptive", [False, True])
def test_the_noise_is_the_same_whoever_answers(answers, adaptive):
    share = 0.2
    controllers = [dpfy.QuantileClipping(share=share)] if adaptive else []
    plan = planned(clip=0.5, noise_multiplier=2.0, divisor=5, controllers=controllers)
    server = served(plan, dimension=WIDE)
    cohort = next(iter(server))
    for client in range(answers):
        cohort.add(client, {"weight": torch.full((WIDE,), 1.0), "bias": torch.zeros(2)})
    released = server.step(cohort)
    rest = released.gradients["weight"] + answers * 0.5 / math.sqrt(WIDE) / 5
    expected = 2.0 * 0.5 / 5 / math.sqrt(1 - share if adaptive else 1)
    assert spread_is(rest, expected)
    assert not spread_is(rest, expected * 2 / 3) and not spread_is(rest, expected * 3 / 2)
    assert released.stddevs["weight"] == pytest.approx(expected, rel=1e-3)


def test_a_round_without_answers_is_noised_and_recorded():
    server = served(planned(noise_multiplier=1.0))
    moved = [change(server, cohort) for cohort in server]
    assert len(moved) == server.ledger.count == 3
    assert all(each.any() for each in moved)


def test_the_event_is_durable_before_the_cohort_is_drawn(monkeypatch):
    server = served()
    sampler = server.context.sampler

    def draw(n):
        assert server.ledger.count == 1
        raise KeyError

    monkeypatch.setattr(sampler, "draw", draw)
    with pytest.raises(KeyError):
        next(iter(server))
    assert server.steps_taken == 1  # and nobody gets that round back


@pytest.mark.parametrize(
    "controllers", [[], [dpfy.QuantileClipping()]], ids=["fixed", "adaptive clipping"]
)
def test_epsilon_is_that_of_the_command_and_of_another_accountant(controllers, capsys):
    rate, noise, rounds, delta = 0.05, 1.0, 40, 1e-4
    plan = planned(
        records=20, batch_size=1, steps=rounds, noise_multiplier=noise, controllers=controllers
    )
    server = served(plan, clients=range(20))
    for cohort in server:
        server.step(cohort)
    spent = server.spent(delta).upper
    asked = f"epsilon --rate {rate} --noise-multiplier {noise} --steps {rounds} --delta {delta}"
    with pytest.raises(SystemExit):
        main([*asked.split(), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert spent == pytest.approx(answer["epsilon"], rel=1e-3)
    other = pld.PLDAccountant()
    step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    other.compose(dp_event.SelfComposedDpEvent(step, rounds))
    assert spent == pytest.approx(other.get_epsilon(delta), rel=1e-2)


@pytest.mark.parametrize("start", [0.1, 3.0])
def test_the_bound_comes_to_the_median_of_the_norms_from_below_and_above(start):
    chance = np.random.default_rng(7)
    plan = planned(
        records=400,
        batch_size=100,
        steps=60,
        clip=start,
        noise_multiplier=1.0,
        controllers=[dpfy.QuantileClipping(0.5)],
    )
    server = served(plan, clients=range(400))
    for cohort in server:
        for client in cohort.clients:
            cohort.add(client, update(float(chance.lognormal(0, 0.3)), 0.0, 0.0))
        bounds = server.step(cohort).bounds
    assert bounds["gradient"] == pytest.approx(1.0, rel=0.15)


def test_clients_are_drawn_by_coins_of_their_own():
    server = served(planned(records=50, batch_size=10, steps=40), clients=range(1000))
    seen = np.zeros(1000)
    for cohort in server:
        seen[list(cohort.clients)] += 1
        server.step(cohort)
    # Binomial(40, 0.2) each: the mean over 1,000 clients within 6.5 standard errors
    assert seen.mean() == pytest.approx(8, abs=6.5 * math.sqrt(6.4 / 1000))
    assert 6.4 * 0.7 < seen.var() < 6.4 * 1.3  # 45 by one shared coin, 0 by turns


def test_those_who_can_be_reached_may_change_from_round_to_round():
    waiting = [["a", "b", "b"], ["c"], []]
    server = served(clients=lambda: waiting.pop(0))
    found = []
    for cohort in server:
        found.append(cohort.clients)
        server.step(cohort)
    assert found == [("a", "b"), ("c",), ()]


def test_a_round_that_was_given_up_releases_nothing_and_is_paid_for():
    server = served(planned(divisor=1))
    rounds = iter(server)
    given_up = next(rounds)
    given_up.add(0, update(0.5, 0.0, 0.0))
    with torch.no_grad():
        server.model.weight += 7.0  # by a client's training on the server's own model
    cohort = next(rounds)
    assert not server.model.weight.any() and not given_up._sums.any()
    with pytest.raises(BatchAlreadyReleased):
        server.step(given_up)
    cohort.add(0, update(0.25, 0.0, 0.0))
    server.model.weight.data.fill_(7.0)
    server.step(cohort)
    assert server.model.weight.tolist() == [0.25, 0.0, 0.0]
    with pytest.raises(BatchAlreadyReleased):
        server.step(cohort)
    assert server.ledger.count == 2 and server.steps_left == 1


def test_training_on_the_servers_own_model_reaches_no_client_and_no_checkpoint(tmp_path):
    server = served(ledger=tmp_path / "fl.dpl")
    cohort = next(iter(server))
    server.model.weight.data.fill_(7.0)
    assert not cohort.model().weight.any()
    trained = {"weight": torch.ones(3), "bias": torch.zeros(2)}
    assert cohort.update_of(trained)["weight"].tolist() == [1.0, 1.0, 1.0]
    server.save(tmp_path)
    server.model.weight.data.fill_(7.0)
    server.close()  # with the round open
    assert not server.model.weight.any()
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    resume(tmp_path, model, optimizer, clients=range(10), insecure_test_key=1).close()
    assert not model.weight.any()


def test_of_two_threads_that_step_one_round_one_releases_it(monkeypatch):
    server = served(planned(divisor=1))
    cohort = next(iter(server))
    cohort.add(0, update(0.5, 0.0, 0.0))
    restore, other, refused = server._restore_model, [], []

    def tries():
        try:
            server.step(cohort)
        except BatchAlreadyReleased as error:
            refused.append(error)

    def restored():
        if not other:
            other.append(threading.Thread(target=tries))
            other[0].start()
            other[0].join(timeout=0.2)  # it waits for the step to end, or would not be refused
        restore()

    monkeypatch.setattr(server, "_restore_model", restored)
    server.step(cohort)
    other[0].join()
    assert len(refused) == 1 and float(server.model.weight.detach()[0]) == 0.5


def test_a_failed_step_leaves_no_sum_in_memory(monkeypatch):
    server = served()
    cohort = next(iter(server))
    cohort.add(0, update(0.5, 0.0, 0.0))
    monkeypatch.setattr(server.context.noise, "release", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        server.step(cohort)
    assert not cohort._sums.any() and not server.model.weight.any()


def test_the_optimizer_refuses_gradients_of_clients():
    server = served()
    next(iter(server))
    server.model.weight.sum().backward()
    with pytest.raises(UnreleasedGradient):
        server.optimizers[0].step()
    with pytest.raises(UnreleasedGradient):
        torch.optim.SGD(server.model.parameters(), lr=1.0).step()
    server.close()
    server.optimizers[0].step()


def test_a_fork_cannot_release_a_round_again(tmp_path):
    server = served(ledger=tmp_path / "fl.dpl")
    rounds = iter(server)
    cohort = next(rounds)

    def tries():
        refused = 0
        for action in (lambda: server.step(cohort), lambda: next(iter(server))):
            try:
                action()
            except LedgerError:
                refused += 1
        return b"%d" % refused

    assert in_child(tries) == b"2"
    server.step(cohort)
    server.close()


def test_a_closed_server_takes_no_rounds():
    server = served()
    rounds = iter(server)
    next(rounds)
    server.close()
    with pytest.raises(InvalidArgument, match="closed"):
        next(rounds)


def test_a_diverged_model_is_refused_before_the_round_is_paid_for():
    server = served()
    for kept in server._released:
        kept.fill_(math.inf)
    with pytest.raises(DivergenceError):
        next(iter(server))
    assert server.ledger.count == 0


def test_a_filter_ends_the_rounds_where_its_budget_ends():
    plan = planned(records=20, batch_size=2, steps=50, noise_multiplier=1.0)
    rule = dpfy.accounting.RenyiFilter.tuned(epsilon=2.5, delta=1e-4, to=plan.envelope)
    server = served(plan.under(rule), clients=range(20))
    with pytest.raises(BudgetExhausted):
        for cohort in server:
            server.step(cohort)
    assert 0 < server.ledger.count < 50


def turns(**changes):
    given = {"records": 12, "batch_size": 4, "epochs": 3, "unit": "user", "noise_multiplier": 0.5}
    return dpfy.dpftrl(**{**given, "strategy": "banded", "bands": 3, **changes})


def test_clients_that_cannot_be_sampled_take_turns_with_correlated_noise():
    server = served(turns(), dimension=WIDE, clients=[f"c{number:02}" for number in range(12)])
    drawn, spreads, rows = [], [], []
    for cohort in server:
        drawn.append(cohort.clients)
        rows.append(server.step(cohort).gradients["weight"])
        spreads.append(server.context.noise.spread)
    assert drawn[:3] == [tuple(f"c{n:02}" for n in range(4 * t, 4 * t + 4)) for t in range(3)]
    assert drawn[3:6] == drawn[:3]
    assert spreads[0] == 1 and all(each > 1.01 for each in spreads[2:])
    correlation = float(torch.corrcoef(torch.stack(rows[3:5]))[0, 1])
    assert correlation < -6 / math.sqrt(WIDE)  # a later row takes back part of an earlier one
    assert spread_is(rows[0], 0.5 / 4) and spread_is(rows[4], 0.5 / 4 * spreads[4])
    assert server.spent(1e-3).upper == pytest.approx(
        dpfy.account(server.ledger).epsilon(1e-3).upper
    )


def test_two_servers_cannot_write_rows_of_one_stream():
    ledger = dpfy.Ledger.in_memory()
    first, second = (served(turns(), clients=range(12), ledger=ledger) for _ in range(2))
    first.step(next(iter(first)))
    with pytest.raises(LedgerMismatch):
        next(iter(second))


def test_a_saved_server_goes_on_with_fresh_noise_and_counts_lost_rounds(tmp_path):
    plan = planned(noise_multiplier=1.0, steps=6, controllers=[dpfy.QuantileClipping()])
    server = served(plan, ledger=tmp_path / "fl.dpl", key=None)
    rounds = iter(server)
    for _ in range(2):
        server.step(next(rounds))
    server.save(tmp_path, extra={"note": 3})
    kept = server.model.weight.detach().clone()
    bounds = server.context.controllers.state_dict()
    lost = change(server, next(rounds))
    next(rounds)  # and one that was only begun
    server.close()
    model = Two()
    again = resume(tmp_path, model, torch.optim.SGD(model.parameters(), lr=1.0), clients=range(10))
    assert torch.equal(model.weight, kept) and again.restored == {"note": 3}
    assert again.context.controllers.state_dict() == bounds
    assert again.lost_steps == 2 and again.steps_left == 2
    assert not torch.equal(change(again, next(iter(again))), lost)
    for cohort in again:
        again.step(cohort)
    again.close()
    with pytest.raises(LedgerFinished):
        served(plan, ledger=tmp_path / "fl.dpl", key=None)


def test_listeners_hear_of_rounds_and_the_report_says_what_happened(tmp_path):
    heard = []

    class Ears(dpfy.Callback):
        def on_step(self, step):
            heard.append((step.step, step.epsilon))

    plan = planned(noise_multiplier=1.0).calibrate(epsilon=2.0, delta=1e-3)
    server = served(plan, ledger=tmp_path / "fl.dpl").listen(Ears())
    for cohort in server:
        server.step(cohort)
        server.measured(0.5)
    server.report(tmp_path / "report")
    server.close()
    assert [step for step, _ in heard] == [1, 2, 3] and 1.9 < heard[-1][1] <= 2.0
    text = (tmp_path / "report" / "report.md").read_text()
    assert "each client computes alone" in text and "can be reached" in text


def test_the_scheduler_of_the_server_and_its_momentum_work():
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    server = federate(
        model,
        optimizer,
        planned(divisor=1),
        dpfy.Ledger.in_memory(),
        clients=range(10),
        insecure_test_key=1,
    )
    for cohort in server:
        cohort.add(0, update(0.5, 0.0, 0.0))
        server.step(cohort)
    assert float(model.weight.detach()[0]) == pytest.approx(0.5 + 0.75 + 0.875)
    assert model.weight.grad is None


REFUSED = {
    "single records": (planned(unit="record"), {}, "unit='user'"),
    "epochs": (planned(sampling="shuffled", relation="zero_out"), {}, "shuffled"),
    "microbatches": (planned(microbatches=2), {}, "two bounds"),
    "least_sample": (planned(least_sample=5), {}, "two bounds"),
    "a norm of the sum": (
        planned(statistics=[dpfy.mechanisms.query.NormOfSum(share=0.1)]),
        {},
        "norm of the sum",
    ),
    "equal ids": (planned(), {"clients": [1, 1]}, "same id"),
    "another number of clients": (
        planned(sampling="fixed_size", relation="replace_one"),
        {"clients": range(9)},
        "10",
    ),
    "turns of a set": (turns(), {"clients": {str(each) for each in range(12)}}, "order"),
    "turns of a list that changes": (turns(), {"clients": lambda: [1]}, "fixed order"),
    "kind of update": (planned(), {"local": "both"}, "local"),
    "weight": (planned(), {"largest_weight": 0.0}, "largest_weight"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_server_can_do_is_refused_before_there_is_a_ledger(name, tmp_path):
    plan, options, reason = REFUSED[name]
    with pytest.raises(dpfy.DpfyError, match=reason):
        served(plan, ledger=tmp_path / "fl.dpl", **options)
    assert not (tmp_path / "fl.dpl").exists()
