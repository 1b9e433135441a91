"""The ledger: Delta tables that hold what is not finished, what died, and one row of counts per batch."""
