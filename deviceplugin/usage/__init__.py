"""The use of GPUs by containers: decisions, processes and regions enter, usage leaves. Pure."""
