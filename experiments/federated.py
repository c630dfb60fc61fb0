"""DP-FedSGD for the next character of Shakespeare's plays, where a client is one role of one play.

``python -m experiments.federated`` trains a recurrent network on the roles that have at least 1,000
characters, twice at ε = 8 and twice without clipping and noise, side by side in everything else,
for few rounds and for many. It keeps the accuracy on held-out text in ``results/federated.json``,
goes on where it was interrupted, and prints the last accuracies. What is held out are the last
lines of the same roles; rates and the clip bound were chosen on it, in short runs."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from rich.progress import track
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import dpfy
from dpfy.data import UserSource, shakespeare
from dpfy.federated import Cohort, Server, federate, resume

RESULTS = Path(__file__).parent / "results" / "federated.json"
STATE = Path(__file__).parent / "state" / "federated"
SEEDS = (0, 1)
ROUNDS = (40, 150)
_FEWEST = 1000  # characters of a role that takes part, training and held-out text together
_HELD_OUT = 1500  # windows of held-out text, evenly over the roles
_PADDING = 0
_BETWEEN = 10  # rounds between two measurements, and two checkpoints
Windows = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Setting:
    """What decides a curve; ε of None is without clipping and noise.

    At ε 8, learning rates of 0.005, 0.01 and 0.015, clip bounds of 0.15 and 0.2, and 4 and 16
    windows were tried for up to 200 rounds with one seed. Without privacy, 0.01 was tried
    with 4 windows, and nothing else.
    """

    epsilon: float | None
    seed: int = 0
    rounds: int = 40
    cohort: int = 160  # expected, of 640
    windows: int = 16  # of each client and round, with 80 characters each
    clip: float = 0.15
    learning_rate: float = 0.015
    average: float = 0.9  # of the running average of the weights, which is what is measured
    delta: float = 1e-4


class CharacterModel(nn.Module):
    """A GRU with 128 units over characters."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, 16)
        self.gru = nn.GRU(16, 128, batch_first=True)
        self.output = nn.Linear(128, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next character at every place."""
        found: torch.Tensor = self.output(self.gru(self.embedding(x))[0])
        return found


def gradients(model: CharacterModel, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the gradient of a client's mean loss over its own windows."""
    parameters = dict(model.named_parameters())
    losses = F.cross_entropy(
        model(x).flatten(0, 1), y.flatten(), ignore_index=_PADDING, reduction="sum"
    )
    loss = losses / (y != _PADDING).sum().clamp(min=1)
    found = torch.autograd.grad(loss, list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


class Roles:
    """The text of the roles that take part."""

    def __init__(self, source: UserSource) -> None:
        chosen = [
            role
            for role, parts in enumerate(zip(source.train, source.test, strict=True))
            if sum(1 + int((part.tensors[0] != _PADDING).sum()) for part in parts) >= _FEWEST
        ]
        self.classes = source.classes
        self.train: dict[int, Windows] = {role: source.train[role].tensors for role in chosen}  # type: ignore[misc]
        x, y = (torch.cat([source.test[role].tensors[i] for role in chosen]) for i in (0, 1))
        places = slice(None, None, max(1, len(x) // _HELD_OUT))
        self.held_out = x[places], y[places]

    def accuracy(self, model: nn.Module) -> float:
        """Return the share of held-out characters that have the highest score."""
        right = 0
        x, y = self.held_out
        with torch.no_grad():
            for some, true in zip(x.split(100), y.split(100), strict=True):
                found = model(some).argmax(-1)
                right += int(((found == true) & (true != _PADDING)).sum())
        return right / int((y != _PADDING).sum())

    def unigram(self) -> float:
        """Return the accuracy of the most frequent character."""
        _, y = self.held_out
        seen = torch.bincount(y[y != _PADDING])
        return int(seen.max()) / int(seen.sum())


def answer(cohort: Cohort, model: CharacterModel, roles: Roles, setting: Setting) -> None:
    """Add the gradient of every client of a cohort, each computed alone on windows of its own."""
    for role in cohort.clients:
        if isinstance(role, int):
            windows = _drawn(roles.train[role], role, cohort.step, setting)
            cohort.add(role, gradients(model, *windows))


def _drawn(windows: Windows, role: int, step: int, setting: Setting) -> Windows:
    """Return the windows of a client in a round: its own draw, whoever else takes part."""
    chance = torch.Generator().manual_seed(((setting.seed * 10_000) + step) * 10_000 + role)
    order = torch.randperm(len(windows[0]), generator=chance)
    order = order.repeat(-(-setting.windows // len(order)))[: setting.windows]
    return windows[0][order], windows[1][order]


def plan_for(setting: Setting, clients: int) -> dpfy.Plan:
    """Return the plan of a curve; without privacy there is nothing to clip to, and no noise."""
    plan = dpfy.dpsgd(
        records=clients,
        batch_size=setting.cohort,
        steps=setting.rounds,
        clip=setting.clip if setting.epsilon else 1e6,
        noise_multiplier=None if setting.epsilon else 0.0,
        unit="user",
    )
    return plan.calibrate(setting.epsilon, setting.delta) if setting.epsilon else plan


def trained(setting: Setting, roles: Roles, folder: Path) -> dict[str, Any]:
    """Train one model, from its last checkpoint if there is one, and return its curve."""
    torch.manual_seed(setting.seed)
    model = CharacterModel(roles.classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=setting.learning_rate, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, setting.rounds)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(setting.average))
    extra: dict[str, Any] = {"schedule": schedule, "average": average}
    if (folder / "checkpoint.safetensors").exists():
        server = resume(
            folder,
            model,
            optimizer,
            clients=roles.train,
            extra=extra,
            local="fedsgd",
        )
        curve = server.restored["curve"]
    else:
        folder.mkdir(parents=True, exist_ok=True)
        plan = plan_for(setting, len(roles.train))
        server = federate(
            model, optimizer, plan, folder / "run.dpl", clients=roles.train, local="fedsgd"
        )
        curve = [(0, roles.accuracy(model))]
        server.save(folder, extra={**extra, "curve": curve})
    with server:
        for cohort in track(_rounds(server), label(setting), server.steps_left, transient=True):
            answer(cohort, model, roles, setting)
            server.step(cohort)
            schedule.step()
            average.update_parameters(model)
            if cohort.step % _BETWEEN == 0:
                curve.append((cohort.step, roles.accuracy(average)))
                server.save(folder, extra={**extra, "curve": curve})
        spent = server.spent(setting.delta).upper if setting.epsilon else None
    return {"setting": asdict(setting), "curve": curve, "spent": spent}


def _rounds(server: Server) -> Iterator[Cohort]:
    yield from server


def label(setting: Setting) -> str:
    """Return the name of a curve."""
    budget = "no privacy" if setting.epsilon is None else f"ε {setting.epsilon:g}"
    return f"{budget}, {setting.rounds} rounds"


def read() -> dict[str, Any]:
    """Return what was measured before: the baseline and a list of curves."""
    if not RESULTS.exists():
        return {"unigram": None, "curves": []}
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def main(
    data_dir: Annotated[
        Path | None, typer.Option(help="Has the folder shakespeare; default: DPFY_DATA.")
    ] = None,
    only: Annotated[
        str, typer.Option(help="One curve, such as 8.0-0-40 or plain-1-150; default: all.")
    ] = "",
) -> None:
    """Train the curves that have no result yet, and keep each as it is done."""
    torch.set_num_threads(1)
    roles = Roles(shakespeare(data_dir))
    places = itertools.product(ROUNDS, SEEDS, (8.0, None))
    for setting in (Setting(epsilon, seed, rounds) for rounds, seed, epsilon in places):
        name = f"{setting.epsilon or 'plain'}-{setting.seed}-{setting.rounds}"
        known = any(curve["setting"] == asdict(setting) for curve in read()["curves"])
        if only in ("", name) and not known:
            curve = trained(setting, roles, STATE / name)
            curves = [*read()["curves"], curve]  # another process may have added one meanwhile
            found = {"unigram": roles.unigram(), "curves": curves}
            RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for curve in read()["curves"]:
        setting = Setting(**curve["setting"])
        typer.echo(f"{label(setting)}, seed {setting.seed}: {curve['curve'][-1][1]:.2%}")


if __name__ == "__main__":
    typer.run(main)
