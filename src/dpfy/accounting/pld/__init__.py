"""Privacy loss distributions, composed numerically with certified bounds from both sides.

``README.md`` in this folder draws the refinement loop and says where to start reading.
"""
