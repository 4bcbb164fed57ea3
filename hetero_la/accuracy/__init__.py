"""What results are worth: backward and forward errors, condition, energy; as a report."""
