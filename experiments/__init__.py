"""The papers' tables, run with dpfy as a user would: ``python -m experiments list``."""
