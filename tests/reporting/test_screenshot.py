"""The pages as a browser shows them: text, figures and colours are there, in light and in dark."""

import shutil
import subprocess

import numpy as np
import pytest

from dpfy.reporting import report

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DELTA = 1e-5


def pixels(page, picture, *flags):
    """The page in a browser, as rows of red, green and blue."""
    from matplotlib.image import imread

    subprocess.run(
        [
            BROWSER,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            *flags,
            "--window-size=1100,1600",
            f"--screenshot={picture}",
            page.as_uri(),
        ],
        check=True,
        timeout=120,
        capture_output=True,
    )
    return np.round(255 * imread(picture)[..., :3]).astype(int)


def noise_share(image, colour, within=12):
    """How much of the picture has about a colour, given as #rrggbb."""
    wanted = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    return float((np.abs(image - wanted).max(axis=2) <= within).mean())


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium or Chrome")
def test_a_report_is_readable_in_light_and_dark(make, facts, tmp_path):
    make(tmp_path / "ledger.dpl")
    _, _, page = report(tmp_path / "ledger.dpl", DELTA, facts).write(tmp_path)
    light = pixels(page, tmp_path / "light.png")
    assert noise_share(light, "#ffffff") > 0.4  # paper
    assert noise_share(light, "#0b5cad") > 5e-4  # the claim, large
    assert noise_share(light, "#0072b2") > 5e-4  # lines of figures
    assert noise_share(light, "#1b1f24", 60) > 5e-3  # text
    dark = pixels(page, tmp_path / "dark.png", "--blink-settings=preferredColorScheme=0")
    assert (
        noise_share(dark, "#12161c") > 0.4
        and noise_share(dark, "#7cb8f2") > 5e-4
        and noise_share(dark, "#ffffff") < 0.01
    )
