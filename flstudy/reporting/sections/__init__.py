"""Sections of a report, one per file: see `flstudy.reporting.section`."""
