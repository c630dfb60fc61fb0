"""The assumptions of a guarantee, the attackers it protects from, and what it does not cover.

Tests: tests/reporting/test_document.py.
"""

from dpfy.ledger.basis import Ground, Kind, grounds_in
from dpfy.reporting import budgets, label_words
from dpfy.reporting.basis import NOT_RECORDED
from dpfy.reporting.costs import Costs
from dpfy.reporting.facts import NOT_DECLARED, RunFacts
from dpfy.reporting.groups import CHANGES, LABELS
from dpfy.reporting.numbers import delta_text
from dpfy.reporting.record import LedgerRecord
from dpfy.reporting.statement import Item
from dpfy.reporting.verdict import Verdict
from dpfy.types import Unit

_LAWS = {
    "poisson": "Poisson: batches are not shuffled and cut; their size varies and may be zero.",
    "filtered_poisson": "Filtered Poisson: each record that has budget of its own left is drawn by "
    "itself with this rate, and moves the sum by at most its stored bound.",
    "fixed_size": "Fixed size: every batch is a fresh random set of the same number of records; "
    "the total number of records is public.",
    "truncated_poisson": "Truncated: a sample above its capacity is cut at random; the chance of "
    "that is part of δ.",
    "shuffled": "Shuffled: every record once in an epoch; an event is an epoch, and no "
    "amplification is claimed.",
    "cyclic": "Cyclic: every record once in an epoch; an event is an epoch, and no amplification "
    "is claimed.",
    "importance": "Importance: a record takes part with a probability that follows its gradient's "
    "norm, at most this rate; what this reveals about others is part of the cost.",
    "individual": "Groups: every record is drawn by itself at the rate of its group; a record of "
    "no known group never takes part.",
    "balls_in_bins": "Balls in bins: every record once in an epoch, in a batch that it draws; an "
    "event is an epoch.",
}
_OF_ROWS = {
    "cyclic": "Rows of a stream in a fixed order: every record once in an epoch; all steps are "
    "paid for together, and no amplification is claimed.",
    "shuffled": "Rows of a stream in any order: every record once in an epoch; all steps are paid "
    "for together, and no amplification is claimed.",
    "cyclic_poisson": "Rows of a stream: the parts of the records take turns, each step draws from "
    "one part by Poisson, and the number of records is public.",
    "declared": "Rows of a stream: in how many steps a record takes part, and how far apart, was "
    "declared.",
}
_LEVELS = (
    ("b1", "B1: sees the raw data", "Not protected: only access control keeps them from view."),
    ("b2", "B2: sees the training set", "Not protected: only access control keeps it from view."),
    (
        "b3",
        "B3: sees gradients before noise",
        "Not protected: they stay in the memory of the process that trains.",
    ),
    (
        "b4",
        "B4: sees every intermediate model",
        "Protected: the guarantee is about all noisy sums together, and each model is computed "
        "from these.",
    ),
    (
        "b5",
        "B5: sees the final model",
        "Protected: it is one of the models of B4. Showing it alone is not credited with a "
        "smaller ε.",
    ),
    (
        "b6",
        "B6: sees predictions",
        "Protected, however many are asked for: they are computed from the model of B5.",
    ),
)
"""The threat levels of the guide, each with what a ledger of noisy sums means for it."""
_OF_THE_CHOSEN = " This is for the trial that was chosen; nothing about the others may be seen."
_OF_TABLES = ("records", "features", "classes", "target")  # what estimators have declared
HOLDS, FAILS, DECLARED, UNKNOWN, RECORDED = (
    "holds",
    "does not hold",
    "declared",
    "not known",
    "recorded",
)
INTACT = "checked when it was read"
CHECKED, ALLOWED = (Ground(kind, "", "", "").status for kind in (Kind.CHECK, Kind.ALLOWANCE))


def assumptions(facts: RunFacts, record: LedgerRecord, costs: Costs) -> tuple[Item, ...]:
    """List the assumptions of the accounting and how they are known (guide, item 3b).

    Only theorems hold.
    """
    return (
        _sampling(record),
        _key(record, costs),
        _registered(record, costs),
        _arithmetic(record, costs),
        _isolation(facts, record),
        _rounding(record),
        _constants(record),
        *_groups(costs),
        _small_delta(record, costs),
        _durable(record),
        _intact(record),
        *_secrecy(record),
    )


def _sampling(record: LedgerRecord) -> Item:
    names = ", ".join(record.policies) or "none"
    text = (
        label_words.SAMPLING
        if record.unit is Unit.LABEL
        else f"Sampling: {names}. By construction: the recorded event is named by the sampler that "
        "draws the batch, and no setting pairs one with another's accounting. "
        f"{_laws(record)}".strip()
    )
    return Item(
        "sampling", "The sampling that is accounted is the sampling that ran", text, status=HOLDS
    )


def _laws(record: LedgerRecord) -> str:
    """Return one sentence for each policy of a ledger."""
    sampled = [policy for policy, _ in record.kinds]
    laws = (law for tag, law in _LAWS.items() if any(name.startswith(tag) for name in sampled))
    return " ".join((*laws, *(_OF_ROWS[policy] for _, policy in record.streams)))


def _key(record: LedgerRecord, costs: Costs) -> Item:
    fresh = "A fresh key from the operating system in every process, never saved"
    own = (
        f"{fresh}; noise and samples are drawn from a cipher under it."
        if record.mode is None
        else f"{fresh}; noise is drawn from a cipher under it. {record.mode.key}".strip()
    )
    text = (
        own
        if costs.secret_key
        else "Anybody who knows the key can recompute the noise and the samples and subtract the "
        "noise. Runs with such keys are for testing."
    )
    return Item(
        "secret_key",
        "Noise and samples come from a secret key",
        f"Key source: {record.key_source}. {text}",
        status=RECORDED if costs.secret_key else FAILS,
    )


def _registered(record: LedgerRecord, costs: Costs) -> Item:
    if costs.filter is not None:
        return Item(
            "registered",
            "What may be spent was fixed before the first step",
            f"The header declares a {costs.filter.title}, whose guard was asked before each of the "
            f"{record.steps_reserved} reserved steps and admits all of them. They may have been "
            f"chosen from outputs, and so may when to stop. {costs.filter.remark}".strip(),
            status=HOLDS,
        )
    title = "The steps were fixed before the first one"
    if not record.registered:
        return Item(
            "registered",
            title,
            "The ledger registered no list of steps in advance. The numbers hold only if neither "
            "the steps nor their number were chosen from outputs.",
            status=UNKNOWN,
        )
    if record.unregistered:
        return Item(
            "registered",
            title,
            f"{record.unregistered} of {record.steps_reserved} reserved steps are not in the "
            "registered list, in its order.",
            status=FAILS,
        )
    early = (
        " The run has not used all of them. If it was stopped after looking at outputs, only the ε "
        "of all registered steps holds, which is the one claimed; the smaller ε of the reserved "
        "steps may be claimed if stopping had nothing to do with the outputs."
        if record.steps_reserved < record.steps_registered
        else ""
    )
    beside = " but for what an interruption was charged" if record.interruptions else ""
    return Item(
        "registered",
        title,
        f"{record.steps_registered} steps are registered in the header; {record.steps_reserved} "
        f"were reserved, all of them from that list{beside}.{early}",
        status=HOLDS,
    )


def _arithmetic(record: LedgerRecord, costs: Costs) -> Item:
    title = "Noise on a computer is as good as real noise"
    if record.unit is Unit.LABEL:
        return Item("arithmetic", title, label_words.ARITHMETIC, status=HOLDS)
    return Item(
        "arithmetic",
        title,
        "Sums and noise are rounded to one lattice, fixed before the data is seen: its step is a "
        "power of two between 2^-29 and 2^-28 of the noise's standard deviation, or of 1/16 of "
        "the clip bound if that is more. Rounding is exact, and what it adds to the bound is "
        "inside the noise scale, so the release is post-processing of the Gaussian mechanism. "
        f"Numerical δ recorded: {delta_text(costs.numerical_delta)}; it is set aside before ε is "
        "claimed.",
        status=HOLDS,
    )


def _isolation(facts: RunFacts, record: LedgerRecord) -> Item:
    title = (
        label_words.ISOLATION
        if record.unit is Unit.LABEL
        else "A record influences nothing but its own clipped contribution"
    )
    if not record.basis:
        return Item(
            "isolation",
            title,
            f"Not recorded in the ledger. Declared engine: {facts.engine}. Declared isolation: "
            f"{facts.isolation}.",
            status=UNKNOWN if facts.isolation == NOT_DECLARED else DECLARED,
        )
    known = [
        ground
        for ground in grounds_in(record.basis)
        if ground.key in ("isolation", "slots", "no_memory")
    ]
    text = " ".join(ground.text for ground in known)
    proved = bool(known) and all(ground.kind is Kind.THEOREM for ground in known)
    return Item(
        "isolation", title, f"Recorded by the run: {text}", status=HOLDS if proved else CHECKED
    )


def _rounding(record: LedgerRecord) -> Item:
    """Return what is known of rounding error: the weakest of all that was recorded."""
    title = "Other records do not change what a record adds, not even by rounding error"
    if not record.basis:
        return Item("rounding", title, NOT_RECORDED, status=UNKNOWN)
    allowed = [
        ground.text
        for ground in grounds_in(record.basis)
        if ground.kind is Kind.ALLOWANCE and ground.key.startswith("last_bits")
    ]
    proved = [
        ground.text
        for ground in grounds_in(record.basis)
        if ground.kind is Kind.THEOREM and ground.key == "rounding_of_sums"
    ] or ["No record shares its arithmetic with another one, bit by bit: docs/proofs/isolation.md."]
    return Item(
        "rounding", title, " ".join(allowed or proved), status=ALLOWED if allowed else HOLDS
    )


def _constants(record: LedgerRecord) -> Item:
    of_tables = " ".join(
        ground.text
        for ground in grounds_in(record.basis)
        if ground.kind is Kind.DECLARATION and ground.key in _OF_TABLES
    )
    constants = (
        f"{of_tables} That this and the settings are public"
        if of_tables
        else "Number of records, expected batch size, rate, number of steps and the first clip "
        "bound are constants of the plan, never read off the data by the library. That they, the "
        "hyper-parameters and the initial model are public"
    )
    return Item(
        "public_constants",
        "What is called public is public",
        f"{constants} is the responsibility of those who declared them.",
        status=DECLARED,
    )


def _groups(costs: Costs) -> tuple[Item, ...]:
    """Return what guarantees of groups rest on, if there are any."""
    if not costs.groups:
        return ()
    return (
        Item(
            "public_groups",
            "The group of each record is public",
            "Groups were given beside the records, by those who made the run. They, the rates and "
            "the bounds of groups must not have been chosen by looking at the records. A record "
            "without a known group never took part in a step with groups.",
            status=DECLARED,
        ),
    )


def _small_delta(record: LedgerRecord, costs: Costs) -> Item:
    title = "δ is below one over the number of units"
    count = (record.plan or {}).get("records")
    if not isinstance(count, int) or count < 1:
        return Item(
            "small_delta",
            title,
            f"δ = {delta_text(costs.delta)}; the plan does not declare the number of records.",
            status=UNKNOWN,
        )
    usual = float(count) ** -1.1
    place = "within" if costs.delta <= usual * (1 + 1e-9) else "above"
    return Item(
        "small_delta",
        title,
        f"δ = {delta_text(costs.delta)} with {count} units; it is {place} the conventional "
        f"{count}^-1.1 = {delta_text(usual)}.",
        status=HOLDS if costs.delta < 1 / count else FAILS,
    )


def _durable(record: LedgerRecord) -> Item:
    if record.durable:
        return Item(
            "durable",
            "Everything that was spent is on record",
            "Each step was written to stable storage before records were read for it, so a crash "
            "can over-count and never under-count.",
            status=HOLDS,
        )
    return Item(
        "durable",
        "Everything that was spent is on record",
        "NOT DURABLE: the ledger lives in memory and is gone with its process; a crash leaves no "
        "trace of what was spent.",
        status=FAILS,
    )


def _intact(record: LedgerRecord) -> Item:
    torn = (
        f"The last line is torn ({record.torn_bytes} bytes) and counts as one more step spent. "
        if record.torn_bytes
        else ""
    )
    checked = (
        "Every line was checked against the chain of hashes and the remembered head. Restoring an "
        "older ledger together with its head, anchor and checkpoint cannot be noticed locally."
        if record.durable
        else "Only the process that kept it can vouch for it."
    )
    return Item(
        "intact",
        "The ledger is complete and unaltered",
        torn + checked,
        status=INTACT if record.durable else UNKNOWN,
    )


def _secrecy(record: LedgerRecord) -> tuple[Item, ...]:
    """Return what a private selection rests on, if there is one."""
    text = None if record.search is None else record.search.secrecy
    return (
        ()
        if text is None
        else (
            Item(
                "secret_trials",
                "Nothing is known of the search but its choice",
                text,
                status=DECLARED,
            ),
        )
    )


def protection(record: LedgerRecord, verdict: Verdict) -> tuple[Item, ...]:
    """Return the protected threat levels, B1 to B6 of §3.1, and the row of Table 1."""
    if not verdict.private:
        return (
            Item("threat_level", "Threat level", "None of B1 to B6 is protected.", "§3.1"),
            Item("table_1", "Row of Table 1", "None applies.", "Table 1"),
        )
    if record.unit is Unit.LABEL:
        return (
            Item("threat_level", "Threat level", label_words.THREAT, "§3.1"),
            Item("table_1", "Row of Table 1", label_words.TABLE_1, "Table 1"),
        )
    if record.mode is not None:
        return (
            Item("threat_level", "Threat level", record.mode.threat_level, "§3.1"),
            Item("table_1", "Row of Table 1", record.mode.table_1, "Table 1"),
        )
    whose = "users" if record.unit is Unit.USER else "records"
    of_which = (
        ", for the trial that was chosen: nothing about the others may be seen"
        if (record.search is not None and record.search.secrecy)
        else ""
    )
    return (
        Item(
            "threat_level",
            "Threat level",
            f"B4, and therefore B5 and B6{of_which}. Protected against somebody who sees every "
            "intermediate model and noisy sum (B4), the final parameters (B5) or its predictions, "
            "any number of them (B6). Not protected: the raw data (B1), the training set (B2) and "
            f"gradients of single {whose} (B3), which only access control keeps from view.",
            "§3.1",
        ),
        *(
            Item(key, title, text + (_OF_THE_CHOSEN if of_which and key == "b4" else ""), "§3.1")
            for key, title, text in _LEVELS
        ),
        Item(
            "table_1",
            "Row of Table 1",
            "Mode of access: model weights. Differential privacy is added in the training process; "
            "model weights and model predictions may be public, the training data may not.",
            "Table 1",
        ),
    )


def exclusions(facts: RunFacts, record: LedgerRecord, costs: Costs) -> tuple[Item, ...]:
    """List what no number in the report covers."""
    searched = (
        ""
        if record.search is None
        else "The search on record is covered, and what came before it is not. "
    )
    labels_alone = (
        Item("features", "Features are not protected", label_words.FEATURES),
        Item("label_inference", "Labels guessed from features", label_words.INFERENCE),
    )
    hidden = "" if record.unit is Unit.LABEL else "Differential privacy hides who took part. "
    return (
        *(labels_alone if record.unit is Unit.LABEL else ()),
        Item(
            "timing",
            "Timing and other side channels",
            "How long a step takes, memory, power and logs of the surrounding system depend on the "
            "records.",
        ),
        Item(
            "tuning",
            "Hyper-parameters chosen on private data",
            f"{searched}If settings were chosen by looking at earlier runs on the same data, those "
            "runs have their own cost and so has the choice. Declared: "
            f"{facts.hyperparameter_selection}.",
        ),
        Item(
            "curation",
            "Data curation",
            "Cleaning, filtering, labelling and featurising with statistics of the private data "
            "came before the ledger.",
        ),
        Item(
            "other_ledgers",
            "Other ledgers on the same data",
            budgets.OTHERS_UNKNOWN if record.grant is None else budgets.OTHERS_KNOWN,
        ),
        Item(
            "rollback",
            "Restored copies",
            "If ledger, head, anchor and checkpoint are all restored from one older copy, steps "
            "can be repeated without a trace in these files.",
        ),
        Item(
            "population",
            "Facts about the population",
            f"{hidden}What the model teaches about people in general may be used for inferences "
            "about anybody, whether in the data or not.",
        ),
        *(
            (
                Item("group_labels", "Which group a record is in", LABELS),
                Item("group_changes", "A change of group", CHANGES),
            )
            if costs.groups
            else ()
        ),
    )
