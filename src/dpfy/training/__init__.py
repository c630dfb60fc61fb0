"""The training procedure: records in chunks, per-record gradients, the run, and what is built on it."""
