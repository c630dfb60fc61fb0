"""Read the ledger of base.py, on any machine: no torch, no data, no model.

Run base.py first; this script opens the base.dpl that it left in the current folder.
"""

import sys

import dpfy

ledger = dpfy.Ledger.read("base.dpl")  # raises if a byte of it was changed
print(
    f"{ledger.count} steps, one {ledger.header.unit} as the unit, neighbours by "
    f"{ledger.header.relation}"
)
for method in ("pld", "rdp"):
    print(f"{method}: epsilon {dpfy.account(ledger, method=method).epsilon(delta=1e-5).upper}")
print("torch was loaded" if "torch" in sys.modules else "torch was not loaded")
