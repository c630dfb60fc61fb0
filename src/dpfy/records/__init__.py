"""Load private records, and know whose they are, so that no record can stop or announce itself."""
