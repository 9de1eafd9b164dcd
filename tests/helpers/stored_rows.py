"""Rows of a run, for tests that do not compute any."""

from typing import Any

import pyarrow as pa

from heatproof.runs.columns import COLUMNS, make_rows


def stored_rows(**columns: Any) -> pa.Table:
    """Return rows with some columns; the others have one value, a text or a number of their type.

    Args:
        **columns: The values of columns by name, or one value for all rows.
    """
    values = {c.name: "x" if pa.types.is_string(c.type) else 1 for c in COLUMNS}
    return make_rows(**{**values, "status": "ok", "message": "", "note": "", **columns})
