"""From a study's folder to what a person reads: tables, figures, the next command. Needs no server."""

from flstudy.reporting.report import Report, write_report

__all__ = ["Report", "write_report"]
