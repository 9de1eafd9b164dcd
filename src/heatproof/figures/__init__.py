"""Figures of a run: an SVG renderer for pages and a matplotlib renderer for papers."""
