"""Reproductions of papers: their studies, run one after another, and the results beside the published values."""
