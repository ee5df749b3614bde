"""The laboratory: everything that runs beside the proxy, and that the proxy does not need.

The modules of this folder are pure. They play encoded prompts, with labels or logged answers,
against match policies (``headstart evaluate``, ``tune`` and ``replay``: ``docs/tuning.md``), and
compare measurements of providers (``headstart bench``: ``docs/bench.md``). ``simulator/`` has
simulated providers, and ``commands/`` has the commands.
"""
