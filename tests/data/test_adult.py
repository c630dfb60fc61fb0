"""Adult: the encoding comes from the documentation alone, and a malformed table is named."""

import gzip
from pathlib import Path

import pytest
import torch

from dpfy.data import adult
from dpfy.data.adult import CATEGORIES, FEATURES, LOGARITHMIC, RANGES
from dpfy.errors import DataError

ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, United-States, <=50K"
)
NUMBERS = len(RANGES) + len(LOGARITHMIC)


def write(folder: Path, *rows: str, file: str = "adult.data") -> None:
    (folder / "adult.data").write_text(ROW + "\n\n", encoding="ascii")
    (folder / "adult.test").write_text("|1x3 Cross validator\n" + ROW + ".\n\n", encoding="ascii")
    if rows:
        (folder / file).write_text("\n".join(rows) + "\n", encoding="utf-8")


def features(folder: Path, *rows: str) -> torch.Tensor:
    write(folder, *rows)
    return adult(folder).train.tensors[0]


def blocks(x: torch.Tensor) -> dict[str, torch.Tensor]:
    parts = x[:, NUMBERS:].split([len(listed) + 1 for listed in CATEGORIES.values()], dim=1)
    return dict(zip(CATEGORIES, parts, strict=True))


def test_row_is_encoded_by_public_constants(tmp_path: Path) -> None:
    x = features(tmp_path)
    assert x.shape == (1, FEATURES) == (1, 112) and x.dtype == torch.float32
    assert x[0, :NUMBERS].tolist() == pytest.approx([0.39, 12 / 15, 0.40, 0.66749, 0.0], abs=1e-5)
    for name, block in blocks(x).items():
        assert block.sum() == 1 and block[0].argmax() < len(CATEGORIES[name])
    assert blocks(x)["sex"].tolist() == [[0.0, 1.0, 0.0]]


def test_encoding_of_a_row_ignores_the_other_rows(tmp_path: Path) -> None:
    alone = features(tmp_path, ROW)
    other = ROW.replace("39", "90", 1).replace("State-gov", "Volunteer").replace("2174", "99999")
    assert torch.equal(features(tmp_path, other, ROW)[1:], alone)


@pytest.mark.parametrize("value", ["?", "Volunteer", ""])
def test_unlisted_category_sets_its_own_column(value: str, tmp_path: Path) -> None:
    block = blocks(features(tmp_path, ROW.replace("State-gov", value)))["workclass"]
    assert block[0].nonzero().flatten().tolist() == [len(CATEGORIES["workclass"])]


def test_numbers_are_clipped_to_their_public_range(tmp_path: Path) -> None:
    x = features(
        tmp_path, ROW.replace("39", "1e9", 1).replace("2174", "inf"), ROW.replace("39", "-5", 1)
    )
    assert x[:, 0].tolist() == [1.0, 0.0] and x[0, 3] == 1.0


def test_unreadable_number_is_a_bad_record_and_not_an_abort(tmp_path: Path) -> None:
    x = features(tmp_path, ROW.replace("39", "old", 1), ROW)
    assert (
        x[0, 0].isnan() and x[1].isfinite().all()
    )  # non-finite input contributes zero to a release


def test_test_file_has_a_comment_and_full_stops(tmp_path: Path) -> None:
    write(tmp_path)
    write(
        tmp_path, "|1x3 Cross validator", ROW + ".", ROW.replace("<=", ">") + ".", file="adult.test"
    )
    assert adult(tmp_path).test.tensors[1].tolist() == [0, 1]


def test_compressed_files_in_a_folder_of_that_name_are_read(tmp_path: Path) -> None:
    (tmp_path / "adult").mkdir()
    for file in ("adult.data", "adult.test"):
        (tmp_path / "adult" / f"{file}.gz").write_bytes(gzip.compress(f"{ROW}\n".encode()))
    source = adult(tmp_path)
    assert len(source.train) == 1 and source.records == 32_561 and source.input_shape == (FEATURES,)


def test_empty_table_is_an_empty_data_set(tmp_path: Path) -> None:
    assert features(tmp_path, "").shape == (0, FEATURES)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW.replace("39, ", "", 1), "found 14 fields in line 2, expected 15"),
        (ROW + ", 1", "found 16 fields in line 2, expected 15"),
        (ROW.replace("<=50K", "50K"), "found a label outside the classes"),
        (ROW.replace("State", "Stâte"), "found bytes that are not ASCII"),
    ],
)
def test_malformed_table_is_named_without_its_values(
    row: str, message: str, tmp_path: Path
) -> None:
    write(tmp_path, ROW, row)
    with pytest.raises(DataError, match=rf"adult\.data: {message}") as caught:
        adult(tmp_path)
    told = str(caught.value).replace(str(tmp_path), "")
    assert not [value for value in ("State-gov", "77516", "Adm-clerical", "2174") if value in told]


def test_missing_half_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "adult.test").unlink()
    with pytest.raises(DataError, match=r"adult\.test: found no such file"):
        adult(tmp_path)
