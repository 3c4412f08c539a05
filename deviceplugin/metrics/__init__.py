"""The daemon's metrics and probes: its view and samples enter, HTTP answers leave."""
