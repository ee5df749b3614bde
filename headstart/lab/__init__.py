"""The lab: plays labelled prompts or a log against match policies, and says what came of it.

Pure: prompts come encoded, answers come judged, and randomness is given. ``headstart evaluate``,
``tune`` and ``replay`` are its commands; ``docs/tuning.md`` tells what the numbers mean.
"""
