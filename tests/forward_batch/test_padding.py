"""Buckets of graphs: every number of rows or tokens has one, and padding stays small."""

from __future__ import annotations

import pytest

from radixrt.forward_batch.padding import bucket_for, bucket_ladder, graph_buckets, larger_buckets, token_buckets


@pytest.mark.parametrize("max_rows", [1, 2, 3, 7, 8, 60, 64, 65, 100, 256, 500, 512, 1000])
def test_each_number_of_rows_is_padded_a_little(max_rows: int) -> None:
    buckets = graph_buckets(max_rows)
    assert buckets == sorted(set(buckets))
    assert buckets[-1] == max_rows
    for rows in range(1, max_rows + 1):
        bucket = bucket_for(rows, buckets)
        assert bucket is not None
        assert rows <= bucket <= max(rows + 7, rows * 1.125)
    assert bucket_for(max_rows + 1, buckets) is None
    assert len(buckets) <= 45


@pytest.mark.parametrize("max_tokens", [5, 16, 17, 200, 1023, 1024, 5888])
def test_each_number_of_tokens_is_padded_a_little(max_tokens: int) -> None:
    buckets = token_buckets(max_tokens)
    assert buckets == sorted(set(buckets))
    assert buckets[-1] == max_tokens
    for tokens in range(1, max_tokens + 1):
        bucket = bucket_for(tokens, buckets)
        assert bucket is not None
        assert tokens <= bucket <= max(tokens + 15, tokens * 1.125)
    assert bucket_for(max_tokens + 1, buckets) is None
    assert len(buckets) <= 55


@pytest.mark.parametrize(
    "buckets",
    [
        *map(graph_buckets, (1, 2, 3, 7, 8, 60, 64, 65, 100, 256, 500, 1000)),
        *map(token_buckets, (5, 16, 17, 40, 1023, 5888)),
    ],
)
def test_a_few_buckets_replace_all_others(buckets: list[int]) -> None:
    ladder = bucket_ladder(buckets)
    assert ladder[0] == buckets[-1]
    assert ladder == sorted(set(ladder), reverse=True)
    for bucket in buckets:
        assert bucket in ladder or set(larger_buckets(bucket, buckets)) & set(ladder)
    assert len(ladder) <= 9
