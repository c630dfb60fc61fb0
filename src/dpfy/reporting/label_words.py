"""What a report says where labels alone are protected, so that it is never read as full privacy.

Tests: tests/reporting/test_label_words.py.
"""

from dpfy.reporting.facts import RunFacts

KIND = "label-differentially private"
WHOSE = "the label of one record"
SCOPE = "Labels alone are protected; features are public, and nothing protects them."
OUTPUT = (
    "The release of noisy labels, and hence every model and prediction computed from them and from "
    "public features"
)
SETTING = (
    "Central differential privacy of labels: the trainer sees the raw labels once, and is trusted "
    "to draw the noisy ones as recorded and to use nothing else."
)
SAMPLING = (
    "There is no sampling: each label has a say in one draw, and no amplification is claimed, "
    "however batches are formed from the noisy labels afterwards."
)
ARITHMETIC = (
    "Coins and Laplace noise are drawn in whole numbers, with exact odds, from the cipher: "
    "docs/proofs/labels.md. Numerical δ recorded: 0."
)
ISOLATION = "A label influences nothing but its own noisy answer, or two counts by one each"
TIER = (
    "Not applicable: the tiers are about all that a user contributed, and here labels alone are "
    "protected. This ε is not comparable with one that covers features too."
)
PROTECTED_FROM = "anybody who wants to know a label (B4–B6); features: nobody"
THREAT = (
    "For labels alone: B4, and therefore B5 and B6. Protected against somebody who sees the noisy "
    "labels, every intermediate model (B4), the final parameters (B5) or predictions (B6), and who "
    "knows all features. Features are protected at no level. Not protected: the raw labels (B1, "
    "B2), which only access control keeps from view."
)
TABLE_1 = (
    "Mode of access: model weights, for labels alone (label only protection, §3.2.3). Differential "
    "privacy is added to the labels before training; noisy labels, model weights and predictions "
    "may be public, and features are taken to be."
)


def accesses(facts: RunFacts) -> str:
    """Return which reads of the labels are covered."""
    return (
        "Covered: all reads of the private labels by the one draw that this ledger reserved before "
        "a label was read. Training afterwards is ordinary training on noisy labels, which is "
        "post-processing and reads no private label. Not covered: every other read of the labels, "
        "such as choosing hyper-parameters or when to stop by the true ones. How the "
        f"hyper-parameters were chosen (declared): {facts.hyperparameter_selection}. Public data "
        f"used (declared): {facts.public_data}."
    )


def output(facts: RunFacts) -> str:
    """Return what the mechanism releases."""
    return (
        "The noisy labels, or the noisy counts that they are drawn from. What is computed from "
        "them and from public features is post-processing with the same guarantee: every model, "
        f"and every prediction. Released (declared): {facts.released}."
    )


def unit(facts: RunFacts) -> str:
    """Return what one unit of privacy is."""
    return (
        "Label: the label of one record. Features, their order and the number of records are "
        f"public. {SCOPE} A record is (declared): {facts.record}. Somebody who owns k labels is "
        "protected by k times this ε."
    )


FEATURES = (
    "Features, who took part, and how many: all of them are taken to be public, and no number in "
    "this report is about them."
)
INFERENCE = (
    "A good model predicts labels from features, also those of the records it was trained on. "
    "Label privacy bounds what a record's own label adds to that, and not how well labels can be "
    "guessed (Wu et al. 2022)."
)
