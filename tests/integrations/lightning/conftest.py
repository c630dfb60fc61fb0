"""Warnings that Lightning gives of itself, and a trainer that writes where tests may."""

import pytest

_OF_LIGHTNING = (
    "ignore::DeprecationWarning:lightning",
    "ignore::FutureWarning:lightning",
    "ignore::UserWarning:lightning",  # advice about workers, logging intervals, empty folders
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning",
)


def pytest_collection_modifyitems(items):
    """Let Lightning warn: by module, so that a warning of dpfy is still an error."""
    for item in items:
        if "integrations/lightning" in str(item.path):
            for each in _OF_LIGHTNING:
                item.add_marker(pytest.mark.filterwarnings(each))


@pytest.fixture
def trainer(tmp_path):
    """Return a trainer that is silent unless told otherwise."""
    import lightning.pytorch as pl

    def make(*callbacks, **options):
        defaults = {
            "max_epochs": -1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "accelerator": "cpu",
            "devices": 1,
            "default_root_dir": tmp_path,
        }
        return pl.Trainer(callbacks=list(callbacks), **{**defaults, **options})

    return make
