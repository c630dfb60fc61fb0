"""Programs that some slow tests start and that Python does not install."""

import os
import shutil
from pathlib import Path

import pytest

# Servers are installed where the paths of users do not lead.
_POSTGRESQL = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", *_POSTGRESQL])


def need(feature: str, *programs: str) -> None:
    """Skip a test whose programs are missing; fail it if ``DPFY_REQUIRE`` names the feature."""
    missing = [program for program in programs if shutil.which(program, path=PATH) is None]
    if missing:
        required = feature in os.environ.get("DPFY_REQUIRE", "").split(",")
        (pytest.fail if required else pytest.skip)(
            f"{', '.join(missing)} not found: .ci/install-servers installs what {feature} needs"
        )
