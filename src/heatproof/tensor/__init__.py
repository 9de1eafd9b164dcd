"""Pure tensor arithmetic: no models, no files."""
