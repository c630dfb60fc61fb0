"""Benchmarks of this repository.

A regular package on purpose: Opacus installs one of the same name, which would win over a folder
without this file."""
