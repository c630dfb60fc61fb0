"""Rules of events that are no plain sampled step: one-shot queries, nested events, streams."""
