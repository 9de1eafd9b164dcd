"""Figures drawn with matplotlib, for papers; it is imported when the first one is drawn."""
