"""From a plan to a run: the choice of an executor, the run, its report and timeline."""
