"""Reports of studies from their folders: tables, figures, the next command. They need no server."""

from flstudy.reporting.report import Report, write_report

__all__ = ["Report", "write_report"]
