"""Hold torch, random generators and output still while private records are computed on."""
