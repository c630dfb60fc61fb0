"""Markdown, JSON and HTML: complete, valid, self-contained, and safe with any declared text."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from dpfy.ledger.events import Poisson, Sampled, SumQuery
from dpfy.reporting import RunFacts, report

DELTA = 1e-5
HOSTILE = "<script>alert(1)</script> \"'&| `x` *y* [z](w)\n# title"


class Page(HTMLParser):
    """Collects tags, attributes and text, and fails on tags that are not closed in order."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], "", []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in {"meta", "wbr"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text += data


@pytest.fixture(scope="module")
def reports(good, make, facts):
    """One report of every kind."""
    silent = Sampled(Poisson(0.1), (SumQuery(1.0, 0.0),))
    return {
        "good": good,
        "bare": report(make(), DELTA),
        "early": report(make(taken=9), DELTA, facts),
        "insecure": report(make(key_source="insecure test key"), DELTA, facts),
        "infinite": report(make(event=silent), DELTA, facts),
        "replace": report(make(relation="replace_one"), DELTA),
        "no plan": report(make(plan=None, registered=0), DELTA),
        "empty": report(make(taken=0), DELTA),
        "other plan": report(make(plan={"query": "x", "budget": 3, "records": "many"}), DELTA),
    }


KINDS = [
    "good",
    "bare",
    "early",
    "insecure",
    "infinite",
    "replace",
    "no plan",
    "empty",
    "other plan",
]


@pytest.mark.parametrize("kind", KINDS)
def test_json_follows_the_schema_and_is_strict(reports, conforms, kind):
    value = reports[kind].to_json()
    conforms(value)
    assert json.loads(json.dumps(value, allow_nan=False)) == value
    claims = [*value["costs"]["claims"], value["costs"]["without_sampling"], value["guarantee"]]
    assert all((claim["epsilon"] is None) == (claim["why_null"] is not None) for claim in claims)


def test_the_schema_can_fail(good, conforms):
    value = good.to_json()
    for broken in (
        {**value, "surprise": 1},
        {**value, "verdict": {}},
        {**value, "tier": {"number": 4, "text": ""}},
        {name: item for name, item in value.items() if name != "ledger"},
    ):
        with pytest.raises(AssertionError):
            conforms(broken)


@pytest.mark.parametrize("kind", KINDS)
def test_html_is_well_formed_and_self_contained(reports, kind):
    source = reports[kind].to_html()
    page = Page(source)
    assert not {"script", "link", "img", "iframe", "object", "a"} & set(page.tags)
    assert "http" not in source and "@import" not in source and "nan" not in source.lower().split()
    for name, value in page.attributes:
        assert not name.startswith("on")
        if name in {"href", "xlink:href", "src"}:
            assert value.startswith("#")
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", source)) <= set(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_says_the_same(reports, kind):
    result = reports[kind]
    markdown, text = unescaped(result.to_markdown()), " ".join(Page(result.to_html()).text.split())
    for item in (*result.statement, *result.assumptions, *result.protection, *result.exclusions):
        assert item.text in markdown and item.text in text
    assert result.tier.text in markdown and result.tier.text in text
    assert result.record.head_hash in markdown and result.record.head_hash in text
    assert result.formal_statement in markdown and result.formal_statement in text


@pytest.mark.parametrize("kind", ["insecure", "infinite"])
def test_not_private_is_the_first_thing_that_one_reads(reports, kind):
    assert reports[kind].to_markdown().split("\n")[0].startswith("# NOT PRIVATE")
    source = reports[kind].to_html()
    assert re.search(r"<main>\s*<header class=\"bad\"><p class=\"void\">NOT PRIVATE</p>", source)
    assert re.search(r"\.void \{[^}]*var\(--bad\)", source)
    assert "<title>NOT PRIVATE" in source
    assert list(reports[kind].to_json())[:2] == ["schema_version", "verdict"]


def test_a_private_run_is_not_called_otherwise(good):
    assert "NOT PRIVATE" not in good.to_markdown() + good.to_html()


def test_plots(reports):
    assert reports["good"].to_html().count("<svg") == 3
    assert reports["bare"].to_html().count("<svg") == 2
    assert reports["infinite"].to_html().count("<svg") == 0
    assert "registered steps" in svg_of(reports["early"]) and "registered steps" not in svg_of(
        reports["good"]
    )
    assert all(
        label in svg_of(reports["good"]) for label in ("PLD", "RDP", "Steps reserved", "var(--pld)")
    )


def test_declared_text_cannot_become_markup(make):
    words = dict.fromkeys(
        (
            "name",
            "title",
            "dataset",
            "record",
            "released",
            "model",
            "engine",
            "isolation",
            "metric",
            "hyperparameter_selection",
            "public_data",
        ),
        HOSTILE,
    )
    result = report(
        make(),
        DELTA,
        RunFacts(**words, hyperparameters={HOSTILE: HOSTILE}, history=[(1, 0.5), (2, 0.6)]),
    )
    page = Page(result.to_html())
    assert "script" not in page.tags and "<script>" in page.text
    markdown = result.to_markdown()
    assert "<script>" not in markdown.replace("\\<", "") and "\n# title" not in markdown
    for line in markdown.split("\n"):
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in {3, 4, 5}


def test_a_dollar_sign_in_the_metric_is_not_mathematics(make):
    # matplotlib would raise on an unfinished formula.
    html = report(
        make(), DELTA, RunFacts(metric="cost in $ \\frac{", history=[(1, 0.5), (2, 0.6)])
    ).to_html()
    assert "cost in $" in html


def test_reports_repeat_byte_by_byte(good):
    assert good.to_html() == good.to_html()


def test_write(good, tmp_path):
    written = good.write(tmp_path / "new" / "folder")
    assert [path.name for path in written] == ["report.md", "report.json", "report.html"]
    assert json.loads(written[1].read_text(encoding="utf-8")) == good.to_json()
    assert written[0].read_text(encoding="utf-8") == good.to_markdown()


def test_reporting_loads_neither_torch_nor_pyplot():
    code = (
        "from dpfy.ledger import Header, Ledger; from dpfy.reporting import report, RunFacts\n"
        "from dpfy.ledger.events import Poisson, Sampled, SumQuery\n"
        "import sys; assert 'matplotlib' not in sys.modules\n"
        "ledger = Ledger.in_memory(header=Header()); ledger.reserve(Sampled(Poisson(1.0), "
        "(SumQuery(1.0, 1.0),)))\n"
        "report(ledger, 1e-5, RunFacts(history=[(1, 0.5)])).to_html()\n"
        "assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def svg_of(result):
    return re.search(r"<svg.*?</svg>", result.to_html(), re.DOTALL).group()


def unescaped(markdown):
    return re.sub(r"\\([\\`*_|<>\[\]#])", r"\1", markdown)
