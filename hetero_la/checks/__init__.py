"""Checks of arguments, and warnings."""
