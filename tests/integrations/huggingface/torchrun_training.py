"""One of the processes of a training: ``torchrun torchrun_training.py FOLDER ARGUMENTS``."""

import json
import os
import sys
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

import torch.distributed as dist
from hf_trainers import small_model, small_plan, trainer


def main(folder, args):
    """Train, go on from the checkpoint in the middle, and write what this rank knows."""
    rank = int(os.environ["RANK"])
    model = small_model(seed=rank)  # the run takes that of rank 0
    plan = small_plan(4)
    made = trainer(folder, model=model, plan=plan, args=args)
    made.train()
    made.report(folder / "report")
    again = trainer(folder, plan=small_plan(4), args=args)
    again.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    found = {
        "epsilon": made.spent(1e-3),
        "wrapped": made.model_wrapped is not made.model,
        "lost": again.run.lost_steps,
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
    dist.destroy_process_group()  # else its thread may outlive the interpreter, and abort
