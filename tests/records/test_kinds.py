"""Data of which nothing works is refused by its type or by what it declares, and no record read."""

import pytest
import torch
from runs import Dot
from torch.utils.data import Dataset

import dpfy
from dpfy.gradients.chunk import Chunk
from dpfy.records.kinds import check_records_usable

pandas = pytest.importorskip("pandas")


def run_on(data, **options):
    model = Dot()
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    plan = dpfy.dpsgd(rate=0.5, divisor=1, steps=2, noise_multiplier=1.0)
    ledger = dpfy.Ledger.in_memory()
    return dpfy.privatize(model, opt, data, plan, ledger, **options)


def of(package, name, bases=(Dataset,), **members):
    """Return an object of a class as a package that may not be installed has it."""
    members = {"__len__": lambda self: 3, "__getitem__": unread, **members}
    base = type(name, bases, {"__module__": f"{package}.data"})
    return type("Own", (base,), members)()


def unread(self, index):
    raise AssertionError("a record was read")


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        (None, "got NoneType"),
        (pandas.DataFrame({"x": [1.0, 2.0]}), "pandas's DataFrame.*is a column.*to_numpy"),
        (pandas.Series([1.0, 2.0]), "pandas's Series.*by label"),
        (of("polars", "DataFrame"), "a table of one row"),
        (of("pyarrow", "Table"), "is a column"),
        (of("datasets", "DatasetDict"), r"data\['train'\]"),
        (of("torch_geometric", "BaseData"), "one graph"),
        (of("PIL", "Image"), "one image"),
        ({"x": torch.ones(3)}, "a list of dicts"),
        ("train", "and not its name"),
        (iter([torch.ones(3)]), "__len__"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else None,
)
def test_what_is_no_data_set_is_refused_by_its_type(data, remedy):
    with pytest.raises(dpfy.DataError, match=remedy):
        run_on(data, example_input=torch.zeros(2, 3))


def test_a_class_of_ones_own_may_derive_from_a_dict():
    class Numbered(dict):
        pass

    run_on(Numbered({0: torch.ones(3)}), example_input=torch.zeros(2, 3)).close()


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        (of("torch_geometric", "Dataset"), "graphs of torch_geometric.*collate_fn="),
        (of("torchvision", "VisionDataset", transform=None), "PIL images.*ToTensor"),
    ],
)
def test_records_that_torch_cannot_collate_are_refused_unless_a_collate_fn_is_given(data, remedy):
    with pytest.raises(dpfy.DataError, match=remedy):
        run_on(data, example_input=torch.zeros(2, 3))
    run_on(data, example_input=torch.zeros(2, 3), collate_fn=lambda records: records[0]).close()


def test_images_with_a_transform_pass():
    data = of("torchvision", "VisionDataset", transform=torch.as_tensor)
    run_on(data, example_input=torch.zeros(2, 3)).close()


class Feature:
    """The declared type of a column."""

    def __init__(self, dtype):
        self.dtype = dtype


class Image:
    """The declared type of a column of images."""


def columns(kind=None, output_all_columns=False, **features):
    return of(
        "datasets",
        "Dataset",
        features=features,
        column_names=[*features],
        format={
            "type": kind,
            "columns": [name for name in features if name != "hidden"],
            "output_all_columns": output_all_columns,
        },
    )


NUMBERS = Feature("float32")
EXAMPLE = {"x": torch.zeros(2, 3), "label": torch.zeros(2, dtype=torch.long)}


@pytest.mark.parametrize(
    ("data", "example", "remedy"),
    [
        (columns(x=NUMBERS, lable=NUMBERS), EXAMPLE, "no column label. Rename"),
        (columns(x=NUMBERS), EXAMPLE, "no column label"),
        (
            columns(x=NUMBERS, label=NUMBERS),
            (torch.zeros(2, 3),),
            "Records of this data set are dicts",
        ),
        (columns(x=Image(), label=NUMBERS), EXAMPLE, "'x' holds PIL images"),
        (columns(x=NUMBERS, label=Feature("null")), EXAMPLE, "'label' holds nothing but None"),
    ],
)
def test_declared_columns_are_compared_with_the_declared_example(data, example, remedy):
    with pytest.raises(dpfy.DataError, match=remedy):
        check_records_usable(data, None, Chunk.of(example, 2))
    check_records_usable(data, lambda records: records, Chunk.of(example, 2))


@pytest.mark.parametrize(
    "data",
    [
        columns(x=NUMBERS, label=NUMBERS),
        columns(x=NUMBERS, label=NUMBERS, hidden=Image()),
        columns("torch", x=Image(), label=NUMBERS),
        columns("custom", pixels=Image()),
    ],
)
def test_columns_that_fit_or_are_made_by_a_transform_pass(data):
    check_records_usable(data, None, Chunk.of(EXAMPLE, 2))


def test_real_data_sets_of_hugging_face_are_known():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": [[1.0, 2.0, 3.0]] * 4, "lable": [0, 1, 0, 1]})
    with pytest.raises(dpfy.DataError, match="no column label"):
        run_on(data.with_format("torch"), example_input=EXAMPLE)
    fine = data.rename_column("lable", "label").with_format("torch")
    run_on(fine, example_input=EXAMPLE).close()
    with pytest.raises(dpfy.DataError, match=r"data\['train'\]"):
        run_on(datasets.DatasetDict({"train": data}), example_input=EXAMPLE)


@pytest.mark.parametrize("field", [None, object(), pandas.DataFrame({"x": [1.0]})])
def test_an_example_of_what_cannot_be_collated_is_refused(field):
    with pytest.raises(dpfy.InvalidArgument, match=r"example_input to be a collated batch"):
        run_on([torch.ones(3)], example_input=(torch.zeros(2, 3), field))
