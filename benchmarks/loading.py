"""What loading a row costs: rows of tokens and a label, drawn at random in chunks.

All kinds take turns in one process; figures are microseconds of the processor a row, of the median
turn and, in brackets, of the fastest. Files were just written, so that the system has them in
memory. Reading an Arrow file also says by how much the memory of the process grew, pages of files
included. At most 15 µs are wanted by ``__getitems__`` of `datasets`, where it is installed, 3 µs
for tokens from an Arrow file, and at most 200 MB."""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import Dataset, TensorDataset

from dpfy.data import ArrowRecords
from dpfy.records.records import Records

_BATCH = 2**16
LIMITS = {"datasets, together": 15.0, "ArrowRecords, tokens": 3.0}
MOST_MB = 200.0


class Alone(Dataset[Any]):
    """A data set without ``__getitems__``."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index]


def write(path: Path, rows: int, tokens: int) -> None:
    """Write an Arrow file, a batch at a time."""
    schema = pa.schema([("tokens", pa.list_(pa.int32(), tokens)), ("label", pa.int64())])
    generator = np.random.default_rng(0)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for first in range(0, rows, _BATCH):
            count = min(_BATCH, rows - first)
            values = pa.array(generator.integers(0, 30_000, count * tokens, dtype=np.int32))
            lists = pa.FixedSizeListArray.from_arrays(values, tokens)
            labels = pa.array(generator.integers(0, 2, count))
            writer.write_batch(pa.record_batch([lists, labels], schema=schema))


def resident_mb() -> float:
    """Return the memory of this process, with the pages of files that it has mapped."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def kinds(path: Path, in_memory: int) -> dict[str, Records]:
    """Return the ways to load that can be compared here."""
    data = ArrowRecords(path, ["tokens", "label"])
    stacked = TensorDataset(*data.take_columns(range(min(in_memory, len(data)))))
    found: dict[str, Any] = {
        "ArrowRecords, tokens": ArrowRecords(path, ["tokens"]),
        "ArrowRecords, tokens and label": data,
        "ArrowRecords, one by one": Alone(data),
        "TensorDataset": stacked,
    }
    try:
        import datasets
    except ModuleNotFoundError:
        print("datasets is not installed and is left out")
    else:
        columns = {"tokens": stacked.tensors[0].numpy(), "label": stacked.tensors[1].numpy()}
        folder = str(path.with_suffix(".datasets"))
        datasets.disable_progress_bars()
        datasets.Dataset.from_dict(columns).save_to_disk(folder)
        table = datasets.load_from_disk(folder).with_format("torch")
        found |= {"datasets, together": table, "datasets, one by one": Alone(table)}
    records = {name: Records(each, None, 0) for name, each in found.items()}
    for each in records.values():
        each.load_together()
    return records


def microseconds(records: Records, parts: list[torch.Tensor]) -> float:
    """Return the time for a row."""
    start = time.process_time()
    rows = sum(loaded.chunk.size for loaded in records.chunks(parts))
    return 1e6 * (time.process_time() - start) / rows


def drawn(rows: int, chunk: int, chunks: int) -> list[torch.Tensor]:
    """Return random rows in chunks."""
    return list(torch.randint(rows, (chunks, chunk)))


def growth_mb(path: Path, rows: int, chunk: int, chunks: int) -> float:
    """Return by how much memory grows when an Arrow file is opened and many rows are read."""
    before = resident_mb()
    records = Records(ArrowRecords(path, ["tokens", "label"]), None, 0)
    most = 0.0
    for part in drawn(rows, chunk, chunks):
        for _ in records.chunks([part]):
            most = max(most, resident_mb() - before)
    return most


def measure(records: dict[str, Records], chunk: int, rounds: int) -> dict[str, list[float]]:
    """Return the microseconds a row of every turn, by kind."""
    times: dict[str, list[float]] = {name: [] for name in records}
    for _ in range(rounds + 1):  # one to warm up
        for name, each in records.items():
            few = 1 if "one by one" in name else 16
            times[name].append(microseconds(each, drawn(len(each), chunk, few)))
    return {name: values[1:] for name, values in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    Path("runs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="runs") as folder:
        path = Path(folder) / "rows.arrow"
        write(path, options.rows, options.tokens)
        grown = growth_mb(path, options.rows, options.chunk, chunks=400)
        missed = ", missed" if grown > MOST_MB else ""
        size = path.stat().st_size / 2**20
        print(f"memory for {options.rows} rows, {size:.0f} MB: {grown:.0f} MB more{missed}")
        times = measure(kinds(path, 10**5), options.chunk, options.rounds)
        for name, values in times.items():
            missed = ", missed" if min(values) > LIMITS.get(name, np.inf) else ""
            print(f"{name}: {statistics.median(values):.1f} ({min(values):.1f}) µs a row{missed}")


if __name__ == "__main__":
    main()
