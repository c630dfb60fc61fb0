"""Declare what a trainer knows of its run, for the report.

Tests: tests/integrations/huggingface/test_trainer.py.
"""

from typing import Any

from dpfy.reporting import RunFacts

_SETTINGS = (
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "optim",
    "weight_decay",
    "max_grad_norm",
    "bf16",
    "seed",
)


def facts_of(trainer: Any) -> RunFacts:
    """Return the public facts that a :class:`DPTrainer` knows."""
    args, run, model = trainer.args, trainer.run, trainer.model
    metric, history = _history(trainer)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    settings = {name: getattr(args, name) for name in _SETTINGS}
    known = {} if run is None else {"engine": run.engine, "isolation": run.isolation}
    return RunFacts(
        name=trainer.ledger.stem,
        title=f"Privacy report: {trainer.ledger.stem}",
        released="the model after every step",
        model=f"{type(model).__name__} with {trained:,} trained parameters",
        hyperparameters={name: getattr(value, "value", value) for name, value in settings.items()},
        public_data="eval_dataset, for evaluation" if history else "none",
        metric=f"{metric} on public data",
        history=history,
        **known,
    )


def _history(trainer: Any) -> tuple[str, tuple[tuple[int, float], ...]]:
    """Return a metric of the evaluations: the one that chooses the best model, or the loss."""
    name = trainer.args.metric_for_best_model or "loss"
    metric = name if name.startswith("eval_") else f"eval_{name}"
    logs = trainer.state.log_history
    return metric, tuple((each["step"], each[metric]) for each in logs if metric in each)
