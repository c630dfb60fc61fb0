"""Names of controllers and their hooks before version 0.2, which stay valid with a warning.

Tests: tests/mechanisms/controllers/test_controllers.py.
"""

CLASSES = {"Directed": "RecipeControlled"}
"""Classes that ``dpfy.mechanisms.controllers`` exported, and what they are called now."""

HOOKS = {
    "extended": "extend_query",
    "applied": "configure",
    "updated": "update",
    "measured": "on_public_metric",
    "beside": "extra_events",
    "steers": "controls",
}
"""Hooks that a subclass of ``Controller`` may define, and what they are called now."""
