"""Walk through one private step as a reader does, and draw the walk.

A reader opens `run/run.py` and `run/step.py`, where a step is written down, and every file that
these two call. What such a file calls in turn is a story of its own, and is counted beside it. The
walk is traced on a real step of DP-SGD, so that the figure cannot disagree with the code:

    python docs/figures/one_step.py          # prints the counts and draws the walk
"""

import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import dpfy

TARGET = Path(__file__).parents[1] / "_static" / "one-step-walk.svg"
PAGE = ("run/run.py", "run/step.py")
_ROOT = str(Path(dpfy.__file__).parent) + "/"


@dataclass
class Walk:
    """What a step called, in the order of the first call."""

    visits: list[tuple[str, str]] = field(default_factory=list)  # file and function, by the page
    traced: dict[str, set[str]] = field(default_factory=dict)  # functions of each file, by anybody

    @property
    def files(self) -> list[str]:
        """The files that a reader opens, in order."""
        return list(dict.fromkeys(file for file, _ in self.visits))

    @property
    def changes_of_room(self) -> int:
        """How often the next file to open is in another room."""
        rooms = [file.split("/")[0] for file in self.files]
        return sum(before != after for before, after in pairwise(rooms))


def trace() -> Walk:
    """Take three steps of DP-SGD and trace the last one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(400, 20), torch.randint(10, (400,)))
    plan = dpfy.dpsgd(records=400, batch_size=64, steps=3, noise_multiplier=1.0)
    walk = Walk()

    def loss_fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    def note(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(_ROOT):
            return
        file, name = file.removeprefix(_ROOT), frame.f_code.co_name
        walk.traced.setdefault(file, set()).add(name)
        if file in PAGE or _caller(frame) in PAGE:
            walk.visits.append((file, name))

    with dpfy.privatize(model, opt, data, plan, dpfy.Ledger.in_memory()) as run:
        for batch in run:
            opt.zero_grad()
            if batch.step == plan.steps:  # the engine was chosen at the first one
                sys.setprofile(note)
            try:
                run.backward(loss_fn, batch)
            finally:
                sys.setprofile(None)
            opt.step()
    return walk


def _caller(frame: FrameType) -> str:
    """The file of dpfy that called a function, through whatever is not dpfy's."""
    outer = frame.f_back
    while outer is not None and not outer.f_code.co_filename.startswith(_ROOT):
        outer = outer.f_back
    return "" if outer is None else outer.f_code.co_filename.removeprefix(_ROOT)


def draw(walk: Walk) -> str:
    """Return the walk as SVG: a column for each room, a line from file to file."""
    files = walk.files
    rooms = list(dict.fromkeys(file.split("/")[0] for file in files))
    width, height = 40 + 118 * len(rooms), 70 + 26 * len(files)
    places = [
        (95 + 118 * rooms.index(file.split("/")[0]), 62 + 26 * row)
        for row, file in enumerate(files)
    ]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11" fill="currentColor">',
        *(
            f'<text x="{95 + 118 * column}" y="24" text-anchor="middle" font-weight="bold">'
            f"{room}</text>"
            for column, room in enumerate(rooms)
        ),
        '<polyline fill="none" stroke="#0072b2" stroke-width="1.2" opacity="0.5" points="'
        + " ".join(f"{x},{y}" for x, y in places)
        + '"/>',
    ]
    for number, (file, (x, y)) in enumerate(zip(files, places, strict=True), start=1):
        lines.append(f'<circle cx="{x}" cy="{y}" r="3" fill="#0072b2"/>')
        name = "/".join(file.split("/")[1:])
        lines.append(f'<text x="{x}" y="{y - 7}" text-anchor="middle">{number} {name}</text>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    """Print the counts and draw the walk."""
    walk = trace()
    print(f"{len(walk.files)} files to open, {walk.changes_of_room} changes of room")
    functions = sum(map(len, walk.traced.values()))
    print(f"all that runs, engine, noise and ledger included: {functions} functions of ", end="")
    print(f"{len(walk.traced)} files")
    for number, file in enumerate(walk.files, start=1):
        names = dict.fromkeys(name for each, name in walk.visits if each == file)
        print(f"{number:3} {file}: {', '.join(name for name in names if name[0] != '<')}")
    TARGET.write_text(draw(walk), encoding="utf-8")


if __name__ == "__main__":
    main()
