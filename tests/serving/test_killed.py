"""A service under load, killed over and over: nothing is answered that was not paid for."""

import json
import random
import time
from pathlib import Path

import numpy as np
import pytest
from services import TOKEN, Clients, Killable, ask

from dpfy import Ledger, PrivatePredictor
from dpfy.ensembles.predictor import _hash_of, canonical_inputs
from dpfy.serving import Limits, make_app
from dpfy.web.tokens import digest_of

QUICK = Limits(rate=1e9)


class Split:
    """Teachers that do not agree: an answer that is drawn twice differs most of the time."""

    parts, key_source, unit = 40, "operating system", "record"

    def answers(self, x):
        return np.repeat(np.arange(40)[:, np.newaxis], len(x), axis=1) % 4


def service(ledger, epsilon):
    settings = {"classes": 4, "noise": 20.0, "delta": 1e-6, "shape": (2,), "patience": 120}
    return PrivatePredictor(Split(), ledger=ledger, epsilon=epsilon, **settings)


def check(ledger, answers, plan):
    """Every answer that somebody got is on record, once, and was paid for."""
    lines = Path(f"{ledger}.answers").read_text().splitlines()[1:]
    entries = [json.loads(line) for line in lines]
    paid = Ledger.read(ledger)
    known = {each["question"]: each["answer"] for each in entries}
    assert len(known) == len(entries) <= paid.count <= plan.answers
    serials = [each["paid"] for each in entries]
    assert serials == sorted(set(serials)) and (not serials or serials[-1] <= paid.count)
    for x, answer in answers:
        (row,) = canonical_inputs([x], (2,))
        assert known[_hash_of(row)] == answer
    return paid.count


def killed(tmp_path, kills, epsilon):
    """Kill both workers many times under load, then empty the budget and check the books."""
    ledger = tmp_path / "service.dpl"
    plan = service(ledger, epsilon).plan
    dice = random.Random(kills)

    def inputs(client, count):  # two of each three are asked by several clients, and again later
        return [[count // 3, 0], [count, client % 2], [count % 7, 1]]

    servers = Killable(lambda: make_app(service(ledger, epsilon), digest_of(TOKEN), QUICK))
    clients = Clients(servers.port, inputs)
    try:
        for _ in range(kills):
            servers.start()
            clients.wait_for(dice.randrange(1, 4))
            time.sleep(dice.uniform(0, 0.02))  # into the middle of what they do
            servers.kill()
        servers.start()
        clients.wait_for(4)
        clients.stop()
        count = check(ledger, clients.answers, plan)
        assert len(clients.answers) > kills and set(clients.statuses) <= {200, 403}
        for start in range(0, plan.answers - count + 64, 64):
            ask(servers.port, [[each + start, 99] for each in range(64)])
        assert Ledger.read(ledger).count == plan.answers
        assert ask(servers.port, [[-1, -1]])[0] == 403
        assert ask(servers.port, None, path="/budget")[1]["answers_left"] == 0
        again = [x for x, _ in clients.answers[:60]]
        assert ask(servers.port, again)[1]["answers"] == [a for _, a in clients.answers[:60]]
        check(ledger, clients.answers, plan)
    finally:
        clients.stop()
        servers.close()


def test_nothing_is_answered_that_was_not_paid_for_when_killed_5_times(tmp_path):
    killed(tmp_path, 5, epsilon=4.0)


@pytest.mark.apart
def test_nothing_is_answered_that_was_not_paid_for_when_killed_50_times(tmp_path):
    killed(tmp_path, 50, epsilon=14.0)
