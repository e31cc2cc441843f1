"""What a user did not mean: said in one sentence, without a traceback."""

from __future__ import annotations

__all__ = ["NotFiniteError", "UserError"]


class UserError(ValueError):
    """Bad input from outside: a file, a name, a value. The message is a full explanation by itself."""


class NotFiniteError(UserError):
    """NaN or infinity where there must be numbers."""
