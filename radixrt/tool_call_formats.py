"""`ToolFormatName`: names of the formats of tool calls, which options and the table in `constrained.tags` share."""

from __future__ import annotations

from typing import Literal, get_args

ToolFormatName = Literal[
    "hermes", "llama3", "json", "exaone", "kimi", "deepseek_r1", "deepseek_v3_1", "deepseek_v3_2", "deepseek_v4",
    "deepseek_v4_1", "qwen_3_coder", "mimo_lines", "mimo", "glm_4_5", "glm_4_7", "minimax", "minimax_m3", "cohere",
    "kimi_k3",
]  # fmt: skip

TOOL_FORMAT_NAMES: tuple[ToolFormatName, ...] = get_args(ToolFormatName)
