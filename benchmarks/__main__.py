"""How do the benchmarks come out, all of them?

python -m benchmarks [--quick]
"""

from benchmarks import word_count

word_count.main()
