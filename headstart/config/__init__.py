"""Settings from ``headstart.toml``, the environment and the command line."""
