"""Leave out what needs other frameworks, unless a target that has them asks for it."""

import os

collect_ignore = []
if "DPFY_TEST_INTEGRATIONS" not in os.environ:
    collect_ignore += ["src/dpfy/integrations/huggingface", "src/dpfy/integrations/lightning"]
if "DPFY_TEST_FLOWER" not in os.environ:
    collect_ignore += ["src/dpfy/integrations/flower"]
