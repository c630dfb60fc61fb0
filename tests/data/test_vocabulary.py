"""A vocabulary that was trained on the private text is refused, and the owner is told why."""

import pytest

from dpfy.data import TokenSequences, Vocabulary
from dpfy.data.vocabulary import ORIGINS
from dpfy.errors import InvalidArgument


@pytest.mark.parametrize("origin", ORIGINS)
def test_only_training_on_private_text_is_refused(origin: str) -> None:
    vocabulary = Vocabulary(origin, "somewhere")
    if origin != "private":
        assert vocabulary.sound
        vocabulary.require_sound()
        return
    assert not vocabulary.sound
    with pytest.raises(InvalidArgument, match=r"repeats parts of it.*public text.*fixed.*pay for"):
        vocabulary.require_sound()
    with pytest.raises(InvalidArgument, match="repeats parts of it"):
        TokenSequences([[1, 2]], 2, vocabulary=vocabulary)


def test_unknown_origin_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'public', 'fixed', 'released', 'private'"):
        Vocabulary("own")
