"""Which mechanism runs, configured how: sampling, clipping, queries and noise, without a training loop."""
