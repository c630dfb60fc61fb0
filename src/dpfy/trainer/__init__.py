"""Train from a configuration: settings in; model, ledger and report out."""
