"""Row messages: FP8 rows that travel with their scales. A message is a row's codes, then its scales, padded to 16 bytes,
so that one all-to-all of bytes carries both."""

from __future__ import annotations

import torch

from octile._types import TensorType, ceil_div, round_up
from octile.torch._operators import CODES, ops

#: Bytes that a message's length is a multiple of.
ALIGNMENT = 16
_SCALE_BYTES = 4


def has_messages(kind: TensorType) -> bool:
    """Returns whether rows of a type travel as messages: those whose scales are powers of two of 1x128 blocks, because
    the transposed copy that backward needs is quantised from what has arrived."""
    return kind.granularity == "1x128" and kind.scales == "pow2"


def message_bytes(columns: int) -> int:
    """Returns the bytes of the message of a row of ``columns`` values, which are a multiple of 16."""
    return round_up(columns + _SCALE_BYTES * ceil_div(columns, 128), ALIGNMENT)


def messages_of(x: torch.Tensor, kind: TensorType) -> torch.Tensor:
    """Returns the messages of the rows of x [rows, columns], quantised as ``kind`` says: uint8 [rows, bytes]."""
    rows, columns = x.shape
    codes, scales = ops.quantize_one(x, kind.text, False)
    messages = x.new_zeros((rows, message_bytes(columns)), dtype=torch.uint8)
    messages[:, :columns] = codes.view(torch.uint8)
    messages.view(torch.float32)[:, columns // 4 : columns // 4 + scales.shape[0]] = scales[:, :rows].t()
    return messages


def opened(
    messages: torch.Tensor, index: torch.Tensor, kind: TensorType, columns: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what layers of experts read, of messages [arrived, bytes]: codes [rows, columns] and scales, flat, of
    which row r is message ``index[r]``. index: int64 [rows]."""
    rows, blocks = index.shape[0], ceil_div(columns, 128)
    # Rows of words of 8 bytes are copied by wider loads.
    codes = messages[:, :columns].view(torch.int64).index_select(0, index).view(CODES[1 if kind.dtype == "e4m3" else 2])
    words = messages.view(torch.float32)[:, columns // 4 : columns // 4 + blocks].t()
    scales = messages.new_ones(kind.scale_shape(rows, columns), dtype=torch.float32)
    scales[:, :rows] = words.index_select(1, index)
    return codes, scales.view(-1)
