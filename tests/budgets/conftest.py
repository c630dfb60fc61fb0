import pytest
from books import DATASET, new_book, plan_of


@pytest.fixture
def book(tmp_path):
    with new_book(f"sqlite:///{tmp_path / 'team.db'}") as book:
        yield book


@pytest.fixture
def grant(book):
    return book.reserve(DATASET, plan_of(), purpose="a test")
