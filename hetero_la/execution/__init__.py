"""Execution of plans: choice of an executor, run, report and timeline."""
