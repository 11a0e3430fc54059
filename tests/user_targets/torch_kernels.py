"""Kernels as users write them, in plain torch; tests copy this file to an empty folder."""

from __future__ import annotations

import ctypes
import os
import time

import torch


def _attend(output, query, key_cache, value_cache, table, position, row, scale, first=0):
    """Attend with one query; ``table`` names the blocks of the row."""
    block_size, kv_heads = key_cache.shape[1:3]
    used = table[: position // block_size + 1].long()
    keys = key_cache[used].flatten(0, 1)[first : position + 1].float()
    values = value_cache[used].flatten(0, 1)[first : position + 1].float()
    q = query[row].float().unflatten(0, (kv_heads, -1))
    weights = torch.softmax(torch.einsum("hgd,thd->hgt", q, keys) * scale, dim=-1)
    output[row] = torch.einsum("hgt,thd->hgd", weights, values).flatten(0, 1).to(output.dtype)


def decode(output, query, key_cache, value_cache, block_tables, seq_lens, scale):
    for row, length in enumerate(seq_lens.tolist()):
        _attend(output, query, key_cache, value_cache, block_tables[row], length - 1, row, scale)


def decode_wrong_block(output, query, key_cache, value_cache, block_tables, seq_lens, scale):
    """Takes the first block again for the second."""
    tables = block_tables.clone()
    if tables.shape[1] > 2:
        tables[:, 1] = tables[:, 0]
    decode(output, query, key_cache, value_cache, tables, seq_lens, scale)


def decode_one_block_too_many(output, query, key_cache, value_cache, block_tables, seq_lens):
    """Follows the table to the block behind the last."""
    for row, length in enumerate(seq_lens.tolist()):
        key_cache[block_tables[row, : length // key_cache.shape[1] + 2].long()].sum()
    decode(output, query, key_cache, value_cache, block_tables, seq_lens, 1.0)


def decode_leaves_a_row(output, query, key_cache, value_cache, block_tables, seq_lens):
    """Never computes the last row of a batch of two or more."""
    rows = max(1, len(seq_lens) - 1)
    decode(output[:rows], query, key_cache, value_cache, block_tables, seq_lens[:rows], 1.0)


def mixed(output, query, key_cache, value_cache, block_tables, seq_lens, query_start_loc, window, scale, unused=3):
    """Serves prefill, mixed batches, decode and windows."""
    assert unused == 3
    starts = query_start_loc.tolist()
    for row, length in enumerate(seq_lens.tolist()):
        for token in range(starts[row], starts[row + 1]):
            position = length - starts[row + 1] + token
            first = 0 if window is None else max(0, position - window + 1)
            _attend(output, query, key_cache, value_cache, block_tables[row], position, token, scale, first)


def mixed_forgets_the_window(output, query, key_cache, value_cache, block_tables, seq_lens, query_start_loc, window):
    mixed(output, query, key_cache, value_cache, block_tables, seq_lens, query_start_loc, None, 1.0)


def checked(output, query, key_cache, value_cache, block_tables, seq_lens, sums, row_sums):
    """Leaves the sums, too."""
    decode(output, query, key_cache, value_cache, block_tables, seq_lens, 1.0)
    block_size, kv_heads = key_cache.shape[1:3]
    for row, length in enumerate(seq_lens.tolist()):
        used = block_tables[row, : (length - 1) // block_size + 1].long()
        keys, values = (cache[used].flatten(0, 1)[:length].float() for cache in (key_cache, value_cache))
        scores = torch.einsum("hgd,thd->hgt", query[row].float().unflatten(0, (kv_heads, -1)), keys)
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        row_sums[row] = weights.sum(-1).flatten()
        sums[row] = torch.einsum("hgt,thd->hgd", weights, values).flatten(0, 1)


def checked_loses_a_token(output, query, key_cache, value_cache, block_tables, seq_lens, sums, row_sums):
    """Its sum of weights is short of one token; its output is not."""
    checked(output, query, key_cache, value_cache, block_tables, seq_lens, sums, row_sums)
    row_sums -= 1


def write(key, value, key_cache, value_cache, slot_mapping):
    written = slot_mapping >= 0
    key_cache.flatten(0, 1)[slot_mapping[written]] = key[written]
    value_cache.flatten(0, 1)[slot_mapping[written]] = value[written]


def write_padding(key, value, key_cache, value_cache, slot_mapping):
    """Slot -1 is the pool's last one."""
    key_cache.flatten(0, 1)[slot_mapping] = key
    value_cache.flatten(0, 1)[slot_mapping] = value


def copy(key_cache, value_cache, block_mapping):
    for source, destination in block_mapping.tolist():
        key_cache[destination] = key_cache[source]
        value_cache[destination] = value_cache[source]


def copy_keys_only(key_cache, value_cache, block_mapping):
    for source, destination in block_mapping.tolist():
        key_cache[destination] = key_cache[source]


def raises(output, query, key_cache, value_cache, block_tables, seq_lens):
    raise RuntimeError("no kernel image is available")


def dereferences_null(output, query, key_cache, value_cache, block_tables, seq_lens):
    ctypes.string_at(0)


def exits(output, query, key_cache, value_cache, block_tables, seq_lens):
    os._exit(4)


def hangs(output, query, key_cache, value_cache, block_tables, seq_lens):
    time.sleep(3600)


# -- not what can be handed in


def asks_for_more(output, query, key_cache, value_cache, block_tables, seq_lens, alibi_slopes):
    """Has a parameter that nobody knows."""


def has_no_output(query, key_cache, value_cache, block_tables, seq_lens):
    """Returns its output, perhaps."""


def has_no_role(a, b):
    """Could be anything."""


def does_everything(key, value, output, query, key_cache, value_cache, slot_mapping, block_tables, seq_lens):
    """Writes and attends."""


def has_half_of_the_sums(output, query, key_cache, value_cache, block_tables, seq_lens, sums):
    """Has no row_sums."""


number = 3
