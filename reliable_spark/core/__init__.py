"""The rules of guaranteed processing as pure functions of arrays: no Spark, clock, randomness or I/O."""
