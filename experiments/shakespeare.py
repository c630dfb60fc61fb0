"""A small GPT-2 on Shakespeare's characters, with a role of a play as the unit of privacy.

``python -m experiments.shakespeare`` trains once for each ε and once without privacy, side by side
in everything else, and keeps the perplexity on held-out text along the way in
``results/shakespeare.json``, beside that of two tables of frequencies. What is held out are the
last lines of each role."""

import json
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track
from torch.utils.data import ConcatDataset, TensorDataset

import dpfy
from dpfy.data import UserSource, shakespeare

RESULTS = Path(__file__).parent / "results" / "shakespeare.json"
_HELD_OUT = 2000  # windows of held-out text, evenly over the roles
_READINGS = 20
_SMOOTHING = 0.01  # counts that every pair of characters has from the start
_PADDING, _IGNORED = 0, -100
Steps = Callable[..., Iterator[tuple[int, float | None]]]


@dataclass(frozen=True)
class Setting:
    """What decides a curve; ε of None is without clipping and noise.

    Settings were chosen by the perplexity of the held-out text, in short runs: the learning rate
    beside 0.003 at ε 8, and without privacy the spread of initial weights beside GPT-2's 0.02, and
    more steps with fewer roles. Steps and width are what half an hour on one core allows.
    """

    epsilon: float | None
    steps: int = 400
    roles: int = 80  # in a step, of 1,341
    windows: int = 4  # of each role, with 80 characters each
    layers: int = 2
    width: int = 64
    spread: float = 0.1  # of initial weights, which for this width is more than GPT-2 has
    clip: float = 0.5
    learning_rate: float = 8e-3
    delta: float = 1e-5
    seed: int = 0


def model_for(setting: Setting, classes: int, length: int) -> Any:
    """Return GPT-2 in a small shape with the initial weights of the seed."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(setting.seed)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=classes,
            n_positions=length,
            n_embd=setting.width,
            n_layer=setting.layers,
            n_head=4,
            initializer_range=setting.spread,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def loss_of(model: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the mean loss over the characters of each window."""
    from dpfy.integrations.huggingface import private_loss

    loss = private_loss(model, "causal_lm")

    def of_windows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen = x != _PADDING
        labels = x.masked_fill(~seen, _IGNORED)
        return loss({"input_ids": x, "attention_mask": seen, "labels": labels})

    return of_windows


def perplexity(model: Any, windows: torch.Tensor) -> float:
    """Return the perplexity of held-out characters, each given those before it in its window."""
    total, count = 0.0, 0
    with torch.no_grad():
        for part in windows.split(200):
            logits = model(part).logits[:, :-1].transpose(1, 2)
            targets = part[:, 1:].masked_fill(part[:, 1:] == _PADDING, _IGNORED)
            total += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
            count += int((targets != _IGNORED).sum())
    return math.exp(total / count)


def held_out(source: UserSource) -> torch.Tensor:
    """Return the windows that perplexity is measured on."""
    windows = torch.cat([each.tensors[0] for each in source.test if len(each)])
    return windows[:: max(1, len(windows) // _HELD_OUT)]


def baselines(source: UserSource) -> dict[str, float]:
    """Return the perplexity by frequencies without privacy: of characters, and of those after
    another.
    """
    shape, windows = (source.classes, source.classes), held_out(source)
    pairs = torch.ones(shape, dtype=torch.double) * _SMOOTHING
    for role in source.train:
        before, after = _pairs(role.tensors[0])
        pairs += torch.bincount(before * shape[1] + after, minlength=pairs.numel()).view(shape)
    before, after = _pairs(windows)
    single = (pairs.sum(0) / pairs.sum())[after]
    given = (pairs / pairs.sum(1, keepdim=True))[before, after]
    return {
        name: math.exp(-float(chance.log().mean()))
        for name, chance in (("characters", single), ("pairs", given))
    }


def trained(setting: Setting, source: UserSource, correlated: bool = False) -> dict[str, Any]:
    """Train one model and return its curve of perplexity, with what it cost."""
    model = model_for(setting, source.classes, *source.input_shape)
    optimizer = torch.optim.Adam(model.parameters(), lr=setting.learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, setting.steps)
    windows = held_out(source)
    steps: Steps = _plain_steps
    if setting.epsilon is not None:
        planned = ftrl_plan_for if correlated else plan_for
        steps = partial(_private_steps, planned(setting, source.users))
    curve, spent = [(0, perplexity(model, windows))], None
    for step, cost in track(
        steps(setting, source, model, optimizer),
        _label(setting),
        total=setting.steps,
        transient=True,
    ):
        schedule.step()
        spent = cost
        if step % max(1, setting.steps // _READINGS) == 0:
            curve.append((step, perplexity(model, windows)))
    return {"setting": asdict(setting), "curve": curve, "spent": spent}


def plan_for(setting: Setting, roles: int) -> dpfy.Plan:
    """Return the plan of a private curve, with its noise."""
    assert setting.epsilon is not None
    return dpfy.dpsgd(
        records=roles,
        batch_size=setting.roles,
        steps=setting.steps,
        clip=setting.clip,
        unit="user",
    ).calibrate(setting.epsilon, setting.delta)


def ftrl_plan_for(setting: Setting, roles: int) -> dpfy.Plan:
    """Return the plan of a curve whose roles come in a fixed order, with correlated noise."""
    assert setting.epsilon is not None
    return dpfy.dpftrl(
        records=roles,
        batch_size=setting.roles,
        steps=setting.steps,
        clip=setting.clip,
        unit="user",
    ).calibrate(setting.epsilon, setting.delta)


def _private_steps(
    plan: dpfy.Plan,
    setting: Setting,
    source: UserSource,
    model: Any,
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[int, float | None]]:
    rows: ConcatDataset[Any] = ConcatDataset(source.train)
    owner = [user for user, windows in enumerate(source.train) for _ in range(len(windows))]
    example = tuple(torch.zeros_like(field[:2]) for field in source.train[0].tensors)
    loss = loss_of(model)
    with (
        tempfile.TemporaryDirectory() as folder,
        dpfy.privatize(
            model,
            optimizer,
            rows,
            plan,
            Path(folder) / "ledger.dpl",
            unit_of=owner,
            rows_per_user=setting.windows,
            example_input=example,
        ) as run,
    ):
        for batch in run:
            optimizer.zero_grad()
            run.backward(loss, batch)
            optimizer.step()
            yield batch.step, run.spent(setting.delta).upper if run.steps_left == 0 else None


def _plain_steps(
    setting: Setting, source: UserSource, model: Any, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[int, float | None]]:
    loss, chance = loss_of(model), torch.Generator().manual_seed(setting.seed)
    speaking = [windows for windows in source.train if len(windows)]
    for step in range(1, setting.steps + 1):
        chosen = torch.randperm(len(speaking), generator=chance)[: setting.roles]
        parts = [_some(speaking[role], setting.windows, chance) for role in chosen]
        optimizer.zero_grad()
        for x in torch.cat(parts).split(400):
            (loss(x, x).sum() / sum(map(len, parts))).backward()
        optimizer.step()
        yield step, None


def _pairs(windows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    before, after = windows[:, :-1].flatten(), windows[:, 1:].flatten()
    return before[after != _PADDING], after[after != _PADDING]


def _some(windows: TensorDataset, count: int, chance: torch.Generator) -> torch.Tensor:
    return windows.tensors[0][torch.randperm(len(windows), generator=chance)[:count]]


def main(
    epsilon: Annotated[str, typer.Option(help="The curves to train, beside no privacy.")] = "2,8",
    data_dir: Annotated[
        Path | None, typer.Option(help="Has the folder shakespeare; default: DPFY_DATA.")
    ] = None,
    steps: Annotated[
        int, typer.Option(help="Of each curve; another number keeps no results.")
    ] = Setting.steps,
    correlated: Annotated[
        bool,
        typer.Option(
            "--correlated",
            help="Take the roles in a fixed order, with correlated noise (BLT) and the same "
            "settings; keeps no results.",
        ),
    ] = False,
) -> None:
    """Train the curves that have no result yet, and keep each as it is done."""
    if correlated:
        for asked in map(float, epsilon.split(",")):
            result = trained(Setting(asked, steps=steps), shakespeare(data_dir), correlated=True)
            typer.echo(f"ε {asked:g}, fixed order: perplexity {result['curve'][-1][1]:.2f}")
        return
    source, found = shakespeare(data_dir), read()
    kept = [each for each in found["curves"] if _has_defaults(each["setting"])]
    for each in (None, *map(float, epsilon.split(","))):
        setting = Setting(each, steps=steps)
        if any(curve["setting"] == asdict(setting) for curve in kept):
            continue
        result = trained(setting, source)
        typer.echo(f"{_label(setting)}: perplexity {result['curve'][-1][1]:.2f}")
        if steps == Setting.steps:
            kept.append(result)
            kept.sort(key=lambda curve: curve["setting"]["epsilon"] or 0.0)
            _write({"baselines": baselines(source), "curves": kept})


def read() -> dict[str, Any]:
    """Return what was measured before: the baselines by name, and a list of curves."""
    if not RESULTS.exists():
        return {"baselines": {}, "curves": []}
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def _write(found: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _has_defaults(setting: dict[str, Any]) -> bool:
    return setting == asdict(Setting(setting["epsilon"]))


def _label(setting: Setting) -> str:
    return "no privacy" if setting.epsilon is None else f"ε {setting.epsilon:g}"


if __name__ == "__main__":
    typer.run(main)
