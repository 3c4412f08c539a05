"""One machine for the settings of every program.

A program declares a table: a frozen dataclass whose fields are `setting(...)`. From it come the flags, the environment
variables, the keys of files, the values of HAMi's files, the refusals, the manual and the schema of the chart's values.
"""
