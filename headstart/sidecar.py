"""The sidecar app: the gateway in front, the admin app behind it."""
