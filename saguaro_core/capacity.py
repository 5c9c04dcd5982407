"""How many outcomes the speculation cache may hold. Standard library only."""

from __future__ import annotations

from math import ceil, log

COVERAGE = 0.95  # the chance wanted that the next outcome of every row of a batch is in the cache
MEMORY_LIMIT = 2**29  # bytes
TOKEN_BYTES, PROBABILITY_BYTES = 8, 4


def entry_bytes(k: int, q_columns: int) -> int:
    """What one prepared outcome occupies: its bonus and `k` drafted tokens, and `k` distributions over `q_columns`
    tokens in float32 (0 where verification needs none). Keys and values are not in it: the draft's store has its
    scratch slots in any case."""
    return (k + 1) * TOKEN_BYTES + k * q_columns * PROBABILITY_BYTES


def optimal_cache_size(
    batch_size: int, hit_rate: float, memory_limit: int, *, bytes_per_entry: int, entries: int = 1
) -> int:
    """Entries for a whole batch, from the share `hit_rate` of outcomes found among `entries` a row, and `memory_limit`
    in bytes.

    A batch waits if one of its rows misses, so for the chance c = `COVERAGE` that none does each row needs the hit rate
    c^(1/B). If every further share of entries found the same part of what is still missing, n entries would miss
    (1 - h)^(n / entries), hence n = entries * ln(1 - c^(1/B)) / ln(1 - h). Real candidates get worse, so n is the
    least that could do. A hit rate of 0 tells nothing: then, as whenever n does not fit, memory decides; but at least
    one entry a row. Raises ValueError for arguments out of range.
    """
    if batch_size < 1 or entries < 1 or bytes_per_entry < 1 or not 0 <= hit_rate <= 1 or memory_limit < 0:
        raise ValueError("a cache needs a batch, entries and bytes of 1 or more, and a hit rate between 0 and 1")
    fitting = max(batch_size, memory_limit // bytes_per_entry)
    if hit_rate == 0:
        return fitting
    if hit_rate == 1:
        return min(batch_size * entries, fitting)
    share = log(1 - COVERAGE ** (1 / batch_size)) / log(1 - hit_rate)
    return min(batch_size * max(1, ceil(entries * share)), fitting)
