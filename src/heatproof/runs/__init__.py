"""The files of a run: their format, how they are written and verified, and one reader of them."""
