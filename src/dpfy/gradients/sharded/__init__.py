"""Models whose parameters are divided among processes by ``fully_shard``.

    rows     which rows of which parameter a process owns, and what is refused
    gather   whole parameters, module by module, while a pass needs them
    forming  clipped sums, a few rows of every owner at a time
    exchange every row of a sum goes to its owner, who adds up in float64
    engine   book-keeping on top of these

No raw gradient of a record is ever formed or sent: docs/proofs/several-processes.md.
"""
