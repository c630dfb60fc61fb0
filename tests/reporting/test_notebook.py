"""What notebooks show: static, escaped, and of a run nothing that its ledger does not have."""

import re
from html.parser import HTMLParser

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.accounting import RenyiFilter
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.reporting import RunFacts, report
from dpfy.reporting.notebook import html_of
from dpfy.types import GroupInterval, Interval

HOSTILE = '<script>alert("1")</script>'
PLAN = dpfy.dpsgd(records=1000, batch_size=100, epochs=2).calibrate(epsilon=3.0, delta=1e-4)
VOID = {"br", "col", "hr", "img", "input", "meta", "wbr", "path", "use", "rect", "line", "circle"}


class Page(HTMLParser):
    """The tags, the addresses and the visible text of a card; it notices tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open, self._open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            assert not name.startswith("on"), (tag, name)
            self.addresses += [value] if name in ("src", "href", "xlink:href") else []
            self.ids += [value] if name == "id" else []
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def shown(found) -> Page:
    """The card of an object, which is static and keeps its style to itself."""
    text = found._repr_html_()
    page = Page(text)
    assert text.startswith('<div class="dpfy"><style>')
    assert not {"script", "iframe", "link", "object", "img"} & set(page.tags)
    assert all(each.startswith("#") for each in page.addresses)  # of parts of the same drawing
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert ":root" not in style and "body {" not in style and "http" not in style
    assert style.startswith(".dpfy {")
    return page


@pytest.fixture
def run(tmp_path):
    model = nn.Linear(3, 1, bias=False)
    opt = torch.optim.SGD(model.parameters(), lr=0.25)
    rows = TensorDataset(torch.randn(20, 3))
    with dpfy.privatize(model, opt, rows, PLAN, tmp_path / "run.dpl") as run:
        for _, batch in zip(range(3), run, strict=False):
            run.release(lambda x: model(x).squeeze(1), batch)
        yield run


def test_an_interval_shows_what_may_be_claimed_rounded_up():
    page = shown(Interval(2.99312, 2.99512))
    assert "2.996" in page.text and "2.993" in page.text
    groups = shown(GroupInterval({HOSTILE: Interval(0.9, 1.0), "open": Interval(2.8, 3.0)}))
    assert HOSTILE in groups.text and "1.000" in groups.text and "3.000" in groups.text


def test_a_plan_shows_its_budget_and_its_constants():
    page = shown(PLAN)
    assert "ε ≤ 3 at δ = 1e-4" in page.text and f"{PLAN.noise_multiplier:.6g}" in page.text
    assert "Not calibrated" in shown(dpfy.dpsgd(records=10, batch_size=2, epochs=1)).text


def test_a_guarantee_shows_all_registered_steps_beside_those_on_record(run):
    page = shown(dpfy.account(run.ledger))
    assert "ε of all registered steps" in page.text and "1e-6" in page.text
    assert "ε of all registered steps" not in shown(dpfy.account(PLAN)).text
    assert "NOT PRIVATE" not in page.text
    with Ledger.in_memory(header=Header(key_source="test key")) as ledger:
        ledger.reserve(Sampled(Poisson(0.1), (SumQuery(1.0, 1.0),)))
        assert "NOT PRIVATE" in shown(dpfy.account(ledger)).text


def test_a_run_shows_its_ledger_and_nothing_else(run):
    """The engine, metrics, sizes and the model are not on record in this way, nor are they here."""
    run.measured(0.123456, "secret metric")
    live = type(run)._repr_html_(run)
    read = Ledger.read(run.ledger.path)
    assert live == read._repr_html_().replace("Ledger: run.dpl", "Run: run.dpl")
    page = shown(run)
    assert "Run: run.dpl" in page.text and f"3 of {PLAN.steps}" in page.text
    assert "secret metric" not in live and "0.123456" not in live
    assert "svg" in page.tags and read.head_hash == run.ledger.head_hash


def test_a_ledger_without_a_header_or_a_rule_says_so(tmp_path):
    with Ledger.open(tmp_path / f"{HOSTILE.replace('/', '')}.dpl") as ledger:
        assert "no header yet" in shown(ledger).text
        assert ledger.lines == 0  # showing it writes nothing
    with Ledger.in_memory(header=Header(plan={"budget": {"delta": "odd"}})) as ledger:
        ledger.reserve(Sampled(Poisson(0.1), (SumQuery(1.0, 1.0),)))
        assert "at δ = 1e-5" in shown(ledger).text


def test_a_void_ledger_is_shown_as_such():
    header = Header(key_source="test key", plan={"budget": {"epsilon": 1.0, "delta": 1e-6}})
    with Ledger.in_memory(header=header) as ledger:
        ledger.reserve(Sampled(Poisson(0.1), (SumQuery(1.0, 1.0),)))
        page = shown(ledger)
    assert "NOT PRIVATE" in page.text and "number" not in re.findall(
        r'class="(\w+)"', ledger._repr_html_().partition("</style>")[2]
    )


def test_a_report_is_shown_whole_and_escaped(make, tmp_path):
    make(tmp_path / "run.dpl")
    facts = RunFacts(name=HOSTILE, dataset=HOSTILE, metric=HOSTILE, history=[(10, 0.5), (20, 0.7)])
    found = report(tmp_path / "run.dpl", 1e-5, facts)
    page = shown(found)
    assert HOSTILE in page.text and "details" in page.tags and "Assumptions" in page.text


def test_drawings_of_two_cells_share_no_names(make, tmp_path):
    """A cell would show the clipped figure of another one: all cells are one page."""
    texts = []
    for taken in (20, 30):
        make(tmp_path / f"{taken}.dpl", taken=taken)
        texts.append(html_of(Ledger.read(tmp_path / f"{taken}.dpl")))
    first, second = (Page(text) for text in texts)
    assert first.ids and second.ids and not set(first.ids) & set(second.ids)
    assert {each[1:] for each in first.addresses} <= set(first.ids)


def test_what_has_no_card_has_a_repr():
    assert html_of(Repeated(Sampled(Poisson(0.1), (SumQuery(1.0, 1.0),)), 3)) is None


def test_a_guarantee_of_groups_or_of_a_filter_shows_each_claim():
    groups = {"strict": (1.0, 0.5), HOSTILE: (3.0, 0.5)}
    plan = dpfy.idpsgd(records=1000, batch_size=100, epochs=2, groups=groups, delta=1e-4)
    page = shown(dpfy.account(plan))
    assert "ε of strict" in page.text and f"ε of {HOSTILE}" in page.text
    assert "strict 1" in shown(plan).text
    rule = RenyiFilter.tuned(2.0, 1e-3, PLAN.envelope)
    with Ledger.in_memory(rule.guard(), Header(filter=rule.to_json())) as ledger:
        ledger.reserve(Sampled(Poisson(0.1), (SumQuery(1.0, 2.0),), adaptive=True))
        limit = shown(dpfy.account(ledger))
    assert "1e-3" in limit.text and "2.000" in limit.text
    assert "registered steps" not in limit.text  # the filter alone was registered
