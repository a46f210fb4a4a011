"""A run and its trials: start, prove, settle, record, and leave the host as it was."""
