"""The composition root names the clock; all others are given it."""

import time

clock = time.time  # noqa: TID251
