"""Chains of streaming queries that share one ledger: queues between them, and answers back to the source."""
