"""What ``headstart bench`` makes of its measurements: figures, and a route that they recommend.

Pure: the calls are made by ``cli.bench_calls``.
"""
