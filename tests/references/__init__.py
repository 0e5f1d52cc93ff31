"""Plain-numpy transcriptions of the papers' equations: the yardstick for the real implementation."""
