"""Parts that commands share: routines, problems, rows of results, values of options."""
