"""How close a quantised encoder stays to its fp32 original, on prompts that never change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headstart.errors import ConfigError
from headstart.types import Frozen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headstart.interfaces import Encoder

MINIMUM_COSINE = 0.99

PROMPTS = (
    "hi",
    "What is the capital of Portugal?",
    "how do i reset my password",
    "HOW DO I RESET MY PASSWORD??",
    "Cancel my subscription.",
    "Don't cancel my subscription.",
    "Convert 72 degrees Fahrenheit to Celsius",
    "What is 15% of 240?",
    "Explain the difference between TCP and UDP to a ten year old.",
    "Which trains run from Lyon to Geneva on Sunday morning?",
    "Which trains run from Geneva to Lyon on Sunday morning?",
    "Write a haiku about autumn rain on a tin roof.",
    "Traceback: KeyError: 'user_id' in handlers/login.py line 42. What is wrong?",
    "SELECT name, SUM(total) FROM orders GROUP BY name HAVING SUM(total) > 100;",
    "def add(a, b):\n    return a + b\n\nAdd type hints and a docstring to this function.",
    "Is it safe to take ibuprofen and paracetamol at the same time?",
    "My order #48-1173 arrived broken, I want a refund or a replacement by Friday!",
    "Translate 'the library closes at nine' into Spanish, French and Italian.",
    "Wie spät ist es in Tokio, wenn es in Berlin Mittag ist?",
    "¿Cuánto cuesta enviar un paquete de dos kilos a Argentina?",
    "List five vegetarian dinners that take under thirty minutes, with their ingredients.",
    "Who wrote the first published computer program, and for which machine was it meant?",
    (
        "Summarise: The committee met on Tuesday, approved the budget for the new bridge, "
        "postponed the vote on parking fees, and asked the engineers for a second opinion on "
        "the foundations."
    ),
    (
        "You are planning a week in northern Norway in late September for two adults who like long "
        "walks, small museums and simple food, who will not drive after dark, and who must be back "
        "in Tromsø by noon on Saturday. Propose a route with one overnight stop per day, say how "
        "long each drive takes in good weather, name one walk for dry days and one museum for wet "
        "days at every stop, and finish with a packing list that fits two small rucksacks."
    ),
)
"""Short and long, formal and not, code, numbers, capitals and other languages."""


class Fidelity(Frozen):
    """Cosines between two encoders' vectors of the same prompts."""

    mean: float
    minimum: float


def encode_prompts(encoder: Encoder) -> NDArray[np.float32]:
    """Return the sentence vectors of ``PROMPTS``, one row each."""
    return np.stack([encoder.encode(prompt).sentence for prompt in PROMPTS])


def measure_fidelity(vectors: NDArray[np.float32], reference: NDArray[np.float32]) -> Fidelity:
    """Compare unit rows, pair by pair."""
    cosines = np.einsum("ij,ij->i", vectors, reference)
    return Fidelity(mean=float(cosines.mean()), minimum=float(cosines.min()))


def require_fidelity(fidelity: Fidelity, what: str) -> None:
    """Raise ConfigError when the mean cosine is under 0.99, or is not a number."""
    if not fidelity.mean >= MINIMUM_COSINE:
        raise ConfigError(
            f"{what} keeps a mean cosine of only {fidelity.mean:.4f} to its fp32 original; "
            f"{MINIMUM_COSINE} is the least that is served. Try --precision high"
        )
