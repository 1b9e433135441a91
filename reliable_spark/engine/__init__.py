"""One micro-batch on Spark: lineage columns, operators, bolts in Arrow, the acker, and the loop around them."""
