"""The service is killed at any instant: what clients were told holds, nothing is spent twice."""

import random
import threading
import time

import pytest
import teams
from services import Killable
from teams import token_of

from dpfy import dpsgd
from dpfy.budgets import BudgetBook
from dpfy.budgets.client import Service
from dpfy.budgets.service import make_app
from dpfy.budgets.store import Store
from dpfy.budgets.tokens import Tokens
from dpfy.errors import BookUnavailable, GrantRefused
from dpfy.ledger import Ledger
from dpfy.web.limits import Limits
from dpfy.web.tokens import digest_of

PLAN = dpsgd(rate=0.01, divisor=600, steps=5, noise_multiplier=100.0)
PATIENCE = 300


class Trainer(threading.Thread):
    """Reserves and runs over and over, and remembers what the service told it."""

    def __init__(self, url, folder, seed):
        super().__init__(daemon=True)
        self.told, self.asked, self.failure = {}, 0, None
        self._stopped, self._chance = threading.Event(), random.Random(seed)
        self._url, self._folder, self._seed = url, folder, seed

    def stop(self):
        self._stopped.set()
        self.join(timeout=PATIENCE)
        assert not self.is_alive() and self.failure is None, self.failure

    def run(self):
        try:
            while not self._stopped.is_set():
                self._once()
        except Exception as error:  # which the test reports
            self.failure = error

    def _once(self):
        self.asked += 1
        try:
            with BudgetBook(Service(self._url, token_of("anna"))) as book:
                self._run(book, f"{self._seed}-{self.asked}")
        except BookUnavailable:
            return  # what holds then, the test finds out

    def _run(self, book, key):
        grant = book.reserve("admissions", PLAN, purpose=key, key=key)
        self.told[grant.id] = "reserved"
        end = self._chance.choice(("withdraw", "run", "run", "forfeit", "settle"))
        if end == "withdraw":
            self.told[grant.id] = book.withdraw(grant).state
            return
        path = self._folder / f"{grant.id}.dpl"
        teams.run(grant, path, steps=self._chance.randrange(1, 6), plan=PLAN)
        self.told[grant.id] = "active"
        if end == "forfeit" and grant.show().state == "active":
            self.told[grant.id] = book.forfeit(grant, "a test").state
        elif end == "settle":
            try:
                self.told[grant.id] = book.settle(grant, path).state
            except GrantRefused:  # used up, and settled by its end
                assert grant.show().state == "settled"


# What the book may say of a grant, if a client was last told this: a later request may have been
# done although its answer was lost, and a run settles itself when all of its grant is used.
MAY_BE = {
    "reserved": {"reserved", "active", "withdrawn", "settled"},
    "active": {"active", "settled", "forfeited"},
    "withdrawn": {"withdrawn"},
    "settled": {"settled"},
    "forfeited": {"forfeited"},
}


def killed(database, folder, kills):
    with BudgetBook.open(database) as book, Store(database) as store:
        book.create("admissions", unit="record", epsilon=50.0, delta=1e-5, reference=PLAN)
        Tokens(store).issue("anna", "trainer", digest_of(token_of("anna")))
    limits = Limits(rate=1e9, body=2**20, seconds=60.0)
    service = Killable(lambda: make_app(Store(database), limits), workers=1)
    chance, trainers = random.Random(7), []
    try:
        service.start()
        url = f"http://127.0.0.1:{service.port}"
        trainers = [Trainer(url, folder, seed) for seed in range(3)]
        for trainer in trainers:
            trainer.start()
        for _ in range(kills):
            wait_for_more(trainers, chance.randrange(3))
            time.sleep(chance.random() * 0.05)  # any instant will do: nothing is awaited
            service.kill()
            service.start()
        for trainer in trainers:
            trainer.stop()
    finally:
        for trainer in trainers:
            trainer._stopped.set()
        service.close()
    return {grant: state for trainer in trainers for grant, state in trainer.told.items()}


def wait_for_more(trainers, number):
    """Wait until so many more grants were told of, so that a loaded machine sees as much."""
    before = sum(len(trainer.told) for trainer in trainers)
    for _ in range(100 * PATIENCE):
        failures = [trainer.failure for trainer in trainers if trainer.failure is not None]
        assert not failures, failures
        if sum(len(trainer.told) for trainer in trainers) >= before + number:
            return
        time.sleep(0.01)
    pytest.fail(f"the service did not answer in {PATIENCE} seconds")


def check(database, folder, told):
    with BudgetBook.open(database) as book:
        book.verify()  # the chain, every cost, and that nothing exceeded the budget
        shown = book.show("admissions")
        states = {grant.id: grant.state for grant in shown.grants}
        purposes = [grant.purpose for grant in shown.grants]
        assert len(set(purposes)) == len(purposes)  # no key was granted twice
        assert all(states[grant] in MAY_BE[said] for grant, said in told.items())
        for path in folder.glob("*.dpl"):
            steps = Ledger.read(path).count
            assert steps <= PLAN.steps
            # No orphan frees budget: what may have been released is kept or was charged.
            assert not steps or states[path.stem] in ("active", "settled", "forfeited")
        assert told


def test_a_few_kills(tmp_path):
    database = f"sqlite:///{tmp_path / 'team.db'}"
    check(database, tmp_path, killed(database, tmp_path, kills=8))


@pytest.mark.slow
def test_300_kills(database, tmp_path):
    check(database, tmp_path, killed(database, tmp_path, kills=300))
