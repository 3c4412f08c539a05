"""Everything that a program needs in order to run: log lines, listening ports, settings, tasks."""
