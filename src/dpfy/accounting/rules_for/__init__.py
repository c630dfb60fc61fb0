"""Account for the events that have rules of their own: one-shot queries, nested events, balls in
bins, streams.
"""
