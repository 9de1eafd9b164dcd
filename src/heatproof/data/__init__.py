"""Images with stable ids."""
