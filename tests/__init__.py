"""Laws of the engine and of the study layer."""
