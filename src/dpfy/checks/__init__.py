"""Check on synthetic input whether a model, a loss and a data set are fit for private training."""
