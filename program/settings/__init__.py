"""Settings of every program: from flags, environment and files to one frozen dataclass.

A program declares a table: a frozen dataclass whose fields are `setting(...)`. From the table come the flags, the
environment variables, the keys of files, the places in HAMi's files, the errors, the manual and the schema of the
chart's values.
"""
