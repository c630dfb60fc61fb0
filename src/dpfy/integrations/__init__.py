"""Train privately inside other frameworks; each room needs the extra of its name."""
