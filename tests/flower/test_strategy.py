"""The strategy, called with messages made by hand: no reply can do more than move a bounded sum."""

import logging
import math

import pytest
import torch
from flower_nodes import fixed_model, trained
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

import dpfy
from dpfy.errors import InvalidArgument
from dpfy.federated import federate
from dpfy.integrations.flower import PrivateFedAvg

pytestmark = pytest.mark.usefixtures("task")


class FakeGrid:
    """Knows which nodes are connected."""

    def __init__(self, nodes):
        self.nodes = nodes

    def get_node_ids(self):
        return iter(self.nodes)


NODES = [770077, 330033, 550055, 110011, 990099, 220022]
GRID = FakeGrid(NODES)


def planned(**changes):
    given = {"records": 6, "batch_size": 6, "steps": 3, "noise_multiplier": 0.0, "unit": "user"}
    return dpfy.dpsgd(**{**given, **changes})


def made(plan=None, **options):
    model = fixed_model()
    return PrivateFedAvg(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        plan or planned(),
        dpfy.Ledger.in_memory(),
        insecure_test_key=2,
        **options,
    )


def asked(strategy, number=1, grid=GRID):
    return [*strategy.configure_train(number, strategy.arrays, ConfigRecord(), grid)]


def reply(message, state=None, metrics=None, key="arrays"):
    if state is None:
        model = fixed_model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        state = trained(model, message.metadata.dst_node_id).state_dict()
    content = {key: ArrayRecord(state), "metrics": MetricRecord(metrics or {"num-examples": 5})}
    return Message(content=RecordDict(content), reply_to=message)


def moved(before, strategy):
    after = strategy.arrays.to_torch_state_dict()
    return {name: value - before[name] for name, value in after.items()}


def test_rounds_equal_those_of_a_server_by_hand():
    plan = planned(batch_size=4, noise_multiplier=1.0, controllers=[dpfy.QuantileClipping()])
    strategy, model = made(plan), fixed_model()
    for number in (1, 2, 3):
        strategy.aggregate_train(number, map(reply, asked(strategy, number)))
    server = federate(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        plan,
        dpfy.Ledger.in_memory(),
        clients=sorted(NODES),
        insecure_test_key=2,
    )
    for cohort in server:
        for node in cohort.clients:
            cohort.add(node, cohort.update_of(trained(cohort.model(), node)))
        server.step(cohort)
    for name, value in model.state_dict().items():
        assert torch.equal(value, strategy.arrays.to_torch_state_dict()[name])


def test_nodes_get_the_model_the_round_and_the_configuration():
    strategy = made(configrecord_key="settings")
    messages = strategy.configure_train(
        7, strategy.arrays, ConfigRecord({"lr": 0.5}), FakeGrid(NODES)
    )
    assert [message.metadata.dst_node_id for message in messages] == sorted(NODES)
    content = messages[0].content
    assert dict(content["settings"]) == {"lr": 0.5, "server-round": 7}
    sent = content["arrays"].to_torch_state_dict()
    assert all(torch.equal(sent[name], value) for name, value in fixed_model().state_dict().items())


def poisoned(value):
    state = fixed_model().state_dict()
    state["last.bias"][0] = value
    return state


def extra(state, **more):
    return {**state, **more}


ODD = {
    "an error": lambda m: Message(error=Error(code=1, reason="secret"), reply_to=m),
    "no arrays": lambda m: Message(content=RecordDict(), reply_to=m),
    "another key": lambda m: reply(m, key="other"),
    "NaN": lambda m: reply(m, poisoned(math.nan)),
    "infinity": lambda m: reply(m, poisoned(math.inf)),
    "a name is missing": lambda m: reply(m, {"last.bias": torch.ones(2)}),
    "another shape": lambda m: reply(
        m, extra(fixed_model().state_dict(), **{"last.bias": torch.ones(3)})
    ),
    "a shape that broadcasts": lambda m: reply(
        m, extra(fixed_model().state_dict(), **{"last.bias": torch.ones(())})
    ),
    "nothing at all": lambda m: None,
}


@pytest.mark.parametrize("name", ODD)
def test_odd_replies_contribute_zero_and_nothing_is_logged_of_them(name, caplog):
    strategy = made(planned(statistics=[dpfy.Contributing()]))
    before = strategy.arrays.to_torch_state_dict()
    first, second, *_ = asked(strategy)
    flower = logging.getLogger("flwr")  # which tells no logger above it
    flower.addHandler(caplog.handler)
    with caplog.at_level(logging.DEBUG, "flwr"):
        _, metrics = strategy.aggregate_train(1, [ODD[name](first), reply(second)])
        strategy.summary()
    flower.removeHandler(caplog.handler)
    assert "Plan" in caplog.text  # so it would be heard
    assert metrics["contributing"] == pytest.approx(1 / 6)
    assert "secret" not in caplog.text and str(first.metadata.dst_node_id) not in caplog.text
    update = moved(before, strategy)
    norm = math.hypot(*(float(update[n].norm()) for n, _ in fixed_model().named_parameters()))
    assert 0 < norm <= 1 / 6 * 1.0001  # one answer of one bound over six expected ones


def test_a_node_counts_once_and_a_huge_one_by_one_bound():
    strategy = made()
    before = strategy.arrays.to_torch_state_dict()
    message = asked(strategy)[0]
    huge = {name: value.double() + 1e30 for name, value in fixed_model().state_dict().items()}
    replies = [reply(message, huge, {"num-examples": 1e6})] * 3
    strategy.aggregate_train(1, replies)
    update = moved(before, strategy)
    norm = math.hypot(*(float(update[n].norm()) for n, _ in fixed_model().named_parameters()))
    assert norm == pytest.approx(1 / 6, rel=1e-4)


def test_weights_are_capped_and_nothing_is_renormalised():
    norms = []
    for examples in (1, 4, 10**6):
        strategy = made(largest_weight=4.0)
        before = strategy.arrays.to_torch_state_dict()
        message = asked(strategy)[0]
        strategy.aggregate_train(1, [reply(message, metrics={"num-examples": examples})])
        update = moved(before, strategy)
        norms.append(math.hypot(*(float(update[n].norm()) for n in ("first.weight", "last.bias"))))
    assert norms[0] == pytest.approx(norms[1] / 4, rel=1e-4)
    assert norms[1] == pytest.approx(norms[2], rel=1e-6)


def test_metrics_of_nodes_leave_as_statistics_only():
    strategy = made(planned(statistics=[dpfy.Statistic("loss", bound=4.0)]))
    replies = [reply(m, metrics={"loss": 3.0, "age": 41.0}) for m in asked(strategy)]
    _, metrics = strategy.aggregate_train(1, replies)
    assert dict(metrics) == {"loss": pytest.approx(3.0)}


def test_nodes_are_never_asked_for_evaluation():
    strategy = made()
    assert [*strategy.configure_evaluate(1, strategy.arrays, ConfigRecord(), GRID)] == []
    assert strategy.aggregate_evaluate(1, []) is None


def test_a_round_without_replies_or_nodes_is_noised_and_recorded():
    strategy = made(planned(noise_multiplier=1.0))
    for number, grid in ((1, GRID), (2, FakeGrid([]))):
        before = strategy.arrays.to_torch_state_dict()
        asked(strategy, number, grid)
        strategy.aggregate_train(number, [])
        assert moved(before, strategy)["first.weight"].all()
        assert strategy.server.ledger.count == number


def test_rounds_beyond_the_plan_leave_the_model_as_it_is():
    strategy = made(planned(steps=1))
    strategy.aggregate_train(1, map(reply, asked(strategy)))
    before = strategy.arrays.to_torch_state_dict()
    assert asked(strategy, 2) == []
    assert strategy.aggregate_train(2, []) == (None, None)
    assert not any(each.any() for each in moved(before, strategy).values())
    assert strategy.server.ledger.count == 1


def test_arrays_of_another_model_are_refused_before_a_round_is_paid_for():
    strategy = made()
    other = ArrayRecord(poisoned(1.0))
    with pytest.raises(InvalidArgument, match="initial_arrays"):
        strategy.configure_train(1, other, ConfigRecord(), GRID)
    assert strategy.server.ledger.count == 0


def test_gradients_are_taken_where_nodes_send_them():
    strategy = made(local="fedsgd")
    before = strategy.arrays.to_torch_state_dict()
    message = asked(strategy)[0]
    sent = {name: torch.full_like(p, 0.01) for name, p in fixed_model().named_parameters()}
    strategy.aggregate_train(1, [reply(message, sent)])
    assert torch.allclose(moved(before, strategy)["last.bias"], torch.tensor(-0.01 / 6), atol=1e-6)


def test_nodes_that_cannot_be_sampled_take_turns():
    plan = dpfy.dpftrl(
        records=6, batch_size=2, epochs=2, strategy="tree", noise_multiplier=1.0, unit="user"
    )
    strategy = made(plan, nodes=NODES)
    turns = []
    for number in range(1, 7):
        messages = asked(strategy, number)
        turns.append([message.metadata.dst_node_id for message in messages])
        strategy.aggregate_train(number, map(reply, messages))
    assert turns == [NODES[:2], NODES[2:4], NODES[4:]] * 2
