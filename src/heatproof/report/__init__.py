"""What a person sees: a static site that opens from disk, without server, network or scripts from elsewhere."""

from heatproof.report.build import build as build
