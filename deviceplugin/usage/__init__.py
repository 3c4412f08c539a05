"""Which container uses how much of a GPU: decisions, processes and regions enter, usage leaves. Pure."""
