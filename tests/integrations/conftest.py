"""Collect the tests of integrations only where their packages are to be tested."""

import os

collect_ignore_glob = [] if "DPFY_TEST_INTEGRATIONS" in os.environ else ["*"]
