"""Compose privacy loss distributions numerically, with certified bounds from both sides; README.md
draws the loop.
"""
