"""The bulk tier: cases at production sizes (vocabulary 151,936; 4,096 tokens per row), built on demand as safetensors files.

Inputs come from integers and lie on the float32 or bf16 grid; there are so few distinct values among them that every answer is
computed at 50 digits from counts of values, and rounded once. The files are therefore the same bytes on every platform.
"""

from __future__ import annotations
