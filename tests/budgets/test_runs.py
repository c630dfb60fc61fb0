import json

import pytest
import torch
from books import DATASET, new_book, plan_of

import dpfy
from dpfy.auditing import audit_run
from dpfy.budgets import BudgetBook, State
from dpfy.budgets.runs import Booking, split_address
from dpfy.errors import (
    BudgetExhausted,
    GrantRefused,
    InvalidArgument,
    LedgerFinished,
    LedgerMismatch,
)
from dpfy.ledger import Header, Ledger
from dpfy.trainer.config import TrainConfig
from dpfy.trainer.trainer import Trainer, resume_training
from dpfy.tuning import Choice, Space, TuneConfig, tune


@pytest.fixture
def address(tmp_path, book):
    return f"{book.name}#{DATASET}"


def trained(tmp_path, address, name="first", **settings):
    settings = {"epochs": 1, "epsilon": 1.0, "delta": 1e-6, **settings}
    return Trainer(TrainConfig(out=str(tmp_path), name=name, budget=address, **settings))


def test_training_takes_settles_and_tells(tmp_path, book, address):
    trained(tmp_path, address).fit(progress=False)
    (grant,) = book.show(DATASET).grants
    assert grant.state is State.SETTLED and grant.purpose == "train first"
    folder = tmp_path / "first"
    header = Ledger.read(folder / "ledger.dpl").header
    assert header.grant == {"book": book.identity, "dataset": DATASET, "grant": grant.id}
    report = json.loads((folder / "report.json").read_text())
    said = {item["key"]: item["text"] for item in report["statement"]}
    assert "grant " + grant.id in said["dataset_budget"] and "settled" in said["dataset_budget"]
    assert report["facts"]["book"]["spent"] == book.show(DATASET).spent
    resume_training(folder, progress=False)  # writes the same report once more
    assert len(book.show(DATASET).grants) == 1 and book.verify()


def test_training_that_does_not_fit_leaves_nothing(tmp_path, book, address):
    with pytest.raises(BudgetExhausted, match="no room for this run"):
        trained(tmp_path, address, "second", epsilon=30.0).fit(progress=False)
    assert not (tmp_path / "second").exists() and book.show(DATASET).grants == ()


def test_a_run_that_is_refused_gives_its_grant_back(tmp_path, book, address, monkeypatch):
    monkeypatch.setattr(
        "dpfy.trainer.trainer.privatize",
        lambda *_, **__: (_ for _ in ()).throw(InvalidArgument("Expected another model.")),
    )
    with pytest.raises(InvalidArgument, match="another model"):
        trained(tmp_path, address).fit(progress=False)
    assert not (tmp_path / "first").exists()
    assert [grant.state for grant in book.show(DATASET).grants] == [State.WITHDRAWN]


def loss(model):
    def per_record(x, y):
        return torch.nn.functional.cross_entropy(model(x), y, reduction="none")

    return per_record


def test_a_run_takes_a_grant_and_goes_on_from_its_checkpoint(tmp_path, book, grant):
    data = torch.utils.data.TensorDataset(torch.rand(60, 4), torch.randint(2, (60,)))
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dpfy.privatize(
        model, optimizer, data, plan_of(), tmp_path / "run.dpl", grant=grant
    ) as run:
        for batch, _ in zip(run, range(5), strict=False):
            run.backward(loss(model), batch)
            optimizer.step()
            optimizer.zero_grad()
        run.save(tmp_path)
    with pytest.raises(LedgerMismatch, match="paid for by grant"):
        dpfy.resume(tmp_path, model, optimizer, data)
    with dpfy.resume(tmp_path, model, optimizer, data, grant=book.grant(grant.id)) as run:
        for batch in run:
            run.backward(loss(model), batch)
            optimizer.step()
            optimizer.zero_grad()
    assert grant.show().state is State.SETTLED
    with pytest.raises(LedgerFinished):
        dpfy.privatize(model, optimizer, data, plan_of(), tmp_path / "run.dpl", grant=grant)
    with pytest.raises(GrantRefused, match="another plan"):
        dpfy.privatize(model, optimizer, data, plan_of(noise=3.0), tmp_path / "x", grant=grant)


def test_what_knows_its_events_late_is_paid_for_when_it_is_registered(tmp_path, book):
    envelope = plan_of(1).envelope
    booking = book.pay_for(DATASET, tmp_path / "one.dpl", purpose="one release")
    with Ledger.open(booking) as ledger:
        with pytest.raises(LedgerMismatch, match="what it is for"):
            ledger.reserve(envelope[0].event)
        assert book.show(DATASET).grants == ()
        ledger.register(None, Header(envelope=envelope))
        ledger.reserve(envelope[0].event)
    assert [grant.state for grant in book.show(DATASET).grants] == [State.SETTLED]
    Ledger.open(booking).close()  # the same ledger takes the same grant
    assert len(book.show(DATASET).grants) == 1


def test_a_request_that_was_lost_is_found_again(tmp_path, book, monkeypatch):
    """Killed between the grant and the ledger: the next start finds what it had reserved."""
    header = Header(envelope=plan_of().envelope)
    path = tmp_path / "run.dpl"
    first = Booking(book, DATASET, path, "a test").grant(header)
    assert Booking(book, DATASET, path, "a test").grant(header).id == first.id
    other = Header(envelope=plan_of(5).envelope)
    assert Booking(book, DATASET, path, "a test").grant(other).id != first.id


def test_a_grant_that_was_withdrawn_is_not_taken_again(tmp_path, book):
    booking = Booking(book, DATASET, tmp_path / "run.dpl", "a test")
    book.withdraw(booking.grant(plan_of()))
    with Ledger.open(booking, header=Header(envelope=plan_of().envelope)) as ledger:
        ledger.reserve(plan_of().event)
    states = [each.state for each in book.show(DATASET).grants]
    assert states == [State.WITHDRAWN, State.ACTIVE]


def test_a_ledger_of_another_data_set_is_refused(tmp_path, book):
    book.create("other", unit="record", epsilon=1.0, delta=1e-6)
    booking = book.pay_for(DATASET, tmp_path / "run.dpl", purpose="a test")
    with Ledger.open(booking, header=Header(envelope=plan_of().envelope)):
        pass
    with pytest.raises(InvalidArgument, match="without a grant of 'other'"):
        Ledger.open(book.pay_for("other", tmp_path / "run.dpl", purpose="a test"))


@pytest.mark.parametrize("wrong", ["sqlite:///team.db", "#x", "sqlite:///team.db#", ""])
def test_addresses_name_a_book_and_a_data_set(wrong):
    with pytest.raises(InvalidArgument, match="book and a data set"):
        split_address(wrong)


def test_a_password_is_refused_before_settings_or_reports_keep_it():
    address = "postgresql+psycopg://me:secret@host/team#admissions-2026"
    for take in (split_address, lambda text: TrainConfig(budget=text)):
        with pytest.raises(InvalidArgument, match="without a password") as refused:
            take(address)
        assert "secret" not in str(refused.value)
    assert "budget" not in TrainConfig(budget="sqlite:///team.db#x").hyperparameters()


def test_estimators_and_summaries_are_paid_for(tmp_path):
    estimators = pytest.importorskip("dpfy.estimators")
    url = f"sqlite:///{tmp_path / 'tables.db'}"
    with new_book(url, relation="zero_out") as book:
        rows = torch.rand(200, 2).numpy()
        model = estimators.GaussianNB(
            epsilon=1.0,
            bounds=(0.0, 1.0),
            classes=(0, 1),
            ledger=book.pay_for(DATASET, tmp_path / "fit.dpl", purpose="a model"),
        )
        model.fit(rows, (rows[:, 0] > 0.5).astype(int))
        (grant,) = book.show(DATASET).grants
        assert grant.state is State.SETTLED and 0 < grant.epsilon < 8
        with pytest.raises(BudgetExhausted):
            model.fit(rows, (rows[:, 0] > 0.5).astype(int))  # a fit is a ledger of its own


def test_audits_are_charged_each(tmp_path, book, address):
    model = torch.nn.Linear(4, 2)
    data = torch.utils.data.TensorDataset(torch.rand(60, 4), torch.randint(2, (60,)))

    def audit(name):
        return audit_run(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            data,
            plan_of(),
            loss(model),
            1e-6,
            canaries=60,
            booking=book.pay_for(DATASET, tmp_path / name, purpose="audit"),
        )

    audit("one.dpl"), audit("two.dpl")
    assert [grant.state for grant in book.show(DATASET).grants] == [State.SETTLED] * 2
    with pytest.raises(InvalidArgument, match="a run of its own"):
        audit("two.dpl")


def test_searches_by_composition_are_paid_for_and_selections_refused(tmp_path, book, address):
    def config(name, accounting):
        base = TrainConfig(epochs=1, delta=1e-6, out=str(tmp_path), name=name, budget=address)
        space = Space({"learning_rate": Choice((0.1, 0.5))})
        return TuneConfig(
            base, space, epsilon=1.0, trials=2, accounting=accounting, score="private"
        )

    found = tune(config("search", "compose"))
    (grant,) = book.show(DATASET).grants
    assert grant.state is State.SETTLED and grant.purpose == "search search"
    report = json.loads((found.folder / "report.json").read_text())
    assert report["facts"]["book"]["state"] == "settled"
    with pytest.raises(InvalidArgument, match="number is not known in advance"):
        tune(config("other", "select"))


def test_a_book_opened_twice_is_one(tmp_path, book, address):
    with BudgetBook.open(book.name) as again:
        assert again.identity == book.identity
        assert again.show(DATASET) == book.show(DATASET)
