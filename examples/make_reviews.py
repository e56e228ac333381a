"""Writes examples/reviews: a small made-up data set with every kind of table that a user would bring.

Run from the repository root: python examples/make_reviews.py
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

DISHES = "soup bread risotto pie coffee salad curry omelette stew cake tea dumplings pancakes chowder tart sandwich"
PLACES = (
    "the harbour café,the corner bakery,the old mill,the station kiosk,the night market,the garden bistro,"
    "the hill inn,the river boat,the museum canteen,the blue door,the lighthouse,the campus grill,"
    "the village hall,the roof terrace,the ferry bar,the orchard"
)
GOOD = [
    (" was warm, generous and full of flavour.", 2.8),
    (" made the whole evening worth it.", 2.6),
    (" came quickly and tasted wonderful.", 2.4),
    (" is the best I have had this year.", 3.4),
    (" was a delight from the first bite to the last.", 3.2),
    (" was simple, fresh and very good.", 2.2),
    (" is a reason to come back soon.", 2.0),
    (" was lovely, and the staff were kind.", 2.5),
    (" was great.", 2.6),
    (" was superb.", 3.1),
]
FAIR = [
    (" was fine, nothing more.", 0.2),
    (" filled me up but I have forgotten it already.", -0.3),
    (" was decent for the price.", 0.8),
    (" could use a little more salt.", -0.6),
    (" was fine.", 0.3),
]
POOR = [
    (" was cold and took an hour.", -2.4),
    (" tasted of nothing at all.", -2.0),
    (" was burnt, greasy and far too dear.", -3.0),
    (" ruined an otherwise pleasant lunch.", -2.7),
    (" was stale, and nobody seemed to care.", -2.8),
    (" is the worst thing on a bad menu.", -3.4),
    (" left me hungry and annoyed.", -2.3),
    (" was a sad, watery disappointment.", -2.9),
    (" was awful.", -3.0),
    (" was bad.", -2.2),
]


def main(folder: Path = Path("examples/reviews")) -> None:
    """Write the four tables; the same bytes each time."""
    rng = random.Random(17)
    openings = [f"The {dish} at {place}" for dish, place in itertools.product(DISHES.split(), PLACES.split(","))]
    rng.shuffle(openings)
    shown, asked, judged = openings[:120], openings[120:220], openings[220:] + openings[:84]
    every = GOOD + FAIR + POOR
    _write(folder / "demonstrations.jsonl", [{"prompt": o, "answer": rng.choice(every)[0]} for o in shown])
    _write(folder / "prompts.jsonl", [{"prompt": o} for o in asked])
    pairs = [(o, rng.choice(GOOD + FAIR[:1]), rng.choice(POOR + FAIR[-1:])) for o in judged]
    _write(folder / "preferences.jsonl", [{"prompt": o, "chosen": c[0], "rejected": r[0]} for o, c, r in pairs])
    rated = []
    for opening in rng.sample(openings[:120] + openings[220:], 150):
        answer, rating = rng.choice(every)
        rated.append({"text": opening + answer, "rating": round(rating + rng.uniform(-0.5, 0.5), 1)})
    _write(folder / "rated.jsonl", rated)


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
