"""The sections of a report, a file each: see `section`."""
