"""Leave out what needs other frameworks, unless `make test-integrations` asks for it."""

import os

collect_ignore = [] if "DPFY_TEST_INTEGRATIONS" in os.environ else ["src/dpfy/integrations"]
