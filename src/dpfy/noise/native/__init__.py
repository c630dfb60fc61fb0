"""Run the loops over long vectors in C, where a compiler is found; numpy gives the same bits."""
