"""Refuse data of which no record could be used, by its type and by what it declares.

No record is read. The names and types of the columns of a data set of Hugging Face's ``datasets``
count as public, as its class does.
"""

from collections.abc import Callable, Mapping
from typing import Any

from dpfy.errors import DataError
from dpfy.gradients.chunk import Chunk

_TABLES = (
    "Use TensorDataset(torch.tensor(frame[columns].to_numpy(), dtype=torch.float32), "
    "torch.tensor(frame[target].to_numpy())), dpfy.data.ArrowRecords for files, or dpfy.estimators "
    "for models of tables."
)
_REFUSED: dict[tuple[str, str], str] = {
    ("pandas", "DataFrame"): f"data[i] of it is a column. {_TABLES}",
    (
        "pandas",
        "Series",
    ): "Its items are found by label. Use TensorDataset(torch.tensor(series.to_numpy())).",
    ("polars", "DataFrame"): f"data[i] of it is a table of one row. {_TABLES}",
    ("pyarrow", "Table"): f"data[i] of it is a column. {_TABLES}",
    (
        "datasets",
        "DatasetDict",
    ): "It holds several data sets. Give one of them, such as data['train'].",
    (
        "torch_geometric",
        "BaseData",
    ): "It is one graph. Give a data set of graphs, of which each is a record.",
    ("PIL", "Image"): "It is one image. Give a data set of images.",
    ("builtins", "dict"): "Give a data set whose items are records, such as a list of dicts.",
    ("builtins", "str"): "Give the data set itself, and not its name.",
    ("builtins", "bytes"): "Give the data set itself.",
}
"""What has items and is no data set, by the package and the name of its class, and what to do."""


def check_container(data: Any) -> None:
    """Refuse what has a length and items, and is no data set.

    Raises:
        DataError: The type of ``data`` is known to be something else.
    """
    for package, name in _classes(data):
        if (remedy := _REFUSED.get((package, name))) is not None:
            kind = type(data)
            raise DataError(
                f"Expected a map-style data set, got {kind.__module__.partition('.')[0]}'s "
                f"{kind.__qualname__}. {remedy}"
            )


def check_records_usable(
    data: Any, collate_fn: Callable[[list[Any]], Any] | None, example: Chunk
) -> None:
    """Refuse a data set that says of itself that no record can be collated, or fit the example.

    With a collate function of the user's, only that knows what it makes of a record.

    Args:
        data: The data set.
        collate_fn: The collate function of the run, or None for torch's default.
        example: The declared example.

    Raises:
        DataError: No record could be used.
    """
    if collate_fn is not None:
        return
    classes = _classes(data)
    if any(package == "torch_geometric" for package, _ in classes):
        raise DataError(
            f"The records of a {type(data).__name__} are graphs of torch_geometric, of different "
            "sizes, and no batch can be divided by records. Give collate_fn=, which turns [graph] "
            "into tensors that are padded to a public number of nodes, such as features, adjacency "
            "and a mask, with one row."
        )
    if ("torchvision", "VisionDataset") in classes and _has_no_transform(data):
        raise DataError(
            f"The records of this {type(data).__name__} are PIL images, which cannot be collated. "
            "Give the data set a transform that makes tensors, such as "
            "torchvision.transforms.ToTensor()."
        )
    if ("datasets", "Dataset") in classes:
        _check_columns(data, example)


def _classes(data: Any) -> set[tuple[str, str]]:
    """Return the packages and names of the classes that an object is of.

    A class that derives from a built-in one may give it records.
    """
    kind = type(data)
    return {
        (each.__module__.partition(".")[0], each.__name__)
        for each in kind.__mro__
        if each is kind or each.__module__ != "builtins"
    }


def _has_no_transform(data: Any) -> bool:
    return all(getattr(data, name, None) is None for name in ("transform", "transforms"))


def _check_columns(data: Any, example: Chunk) -> None:
    """Compare the declared columns of a data set of Hugging Face with the declared example."""
    if data.format["type"] == "custom":  # a transform makes the records
        return
    found = [*(data.column_names if data.format["output_all_columns"] else data.format["columns"])]
    for name in found:
        feature = data.features[name]
        if type(feature).__name__ == "Image" and data.format["type"] is None:
            raise DataError(
                f"The column {name!r} holds PIL images, which cannot be collated. Use "
                "data.with_transform(...) or data.with_format('torch'), or give collate_fn=."
            )
        if getattr(feature, "dtype", None) == "null":
            raise DataError(
                f"The column {name!r} holds nothing but None, which cannot be collated. Leave it "
                f"out: data.remove_columns({name!r})."
            )
    (declared, *more) = example.arguments
    if more or not isinstance(declared, Mapping):
        raise DataError(
            "Records of this data set are dicts, and example_input is none. Declare a dict with "
            "the names of its columns, or give collate_fn=."
        )
    if set(declared) != set(found):
        raise DataError(
            f"The columns of the data set are not those of example_input ({', '.join(declared)}), "
            f"and no record would fit. {_named(declared, found)}Rename columns, or keep only the "
            "declared ones with data.select_columns. Columns count as public: declare features= "
            "when you load files, since inferred ones follow from the records."
        )


def _named(declared: Mapping[str, Any], found: list[str]) -> str:
    """Name the declared columns that are missing; others may be those of single records."""
    missing = [name for name in declared if name not in found]
    return f"The data set has no column {', '.join(missing)}. " if missing else ""
