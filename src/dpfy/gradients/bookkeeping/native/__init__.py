"""Run loops over records in C, where a compiler is found; torch computes the same without it."""
