"""Ridge regression on TF-IDF of words and of characters: what the fitted judge is made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge

from tasks.errors import UserError
from tasks.language.dialogue import draw
from tasks.language.examples import Rated

_VIEWS: tuple[dict[str, Any], ...] = (
    {"analyzer": "word", "ngram_range": (1, 2), "token_pattern": r"[\w']+|[!?]", "sublinear_tf": True},
    {"analyzer": "char_wb", "ngram_range": (2, 5), "sublinear_tf": True},
)
"""Words carry the opinion; pieces of words make up for the words that few rated texts have."""
_ASIDE = 0.15
"""Share of the rated texts that the judge is measured on and does not learn from."""
_FEWEST_ASIDE = 10
_FEWEST = 20
"""Rated texts below which a fit means nothing."""


class Regression:
    """score(text) = features . weights + intercept."""

    def __init__(self, vectorizers: list[TfidfVectorizer], weights: np.ndarray, intercept: float) -> None:
        self._vectorizers = vectorizers
        self._weights = weights
        self._intercept = intercept

    @classmethod
    def fit(
        cls, texts: Sequence[str], ratings: Sequence[float], importance: Sequence[float], ridge: float
    ) -> Regression:
        """Least squares weighted by `importance`, with an L2 penalty `ridge`. Raises UserError without enough data."""
        if len(texts) < _FEWEST or max(ratings) == min(ratings):
            raise UserError(
                f"corpus.judge: {len(texts)} rated texts with {len(set(ratings))} different ratings, "
                f"expected at least {_FEWEST} texts and two ratings"
            )
        # A piece of a word that one text has is noise, unless there are few texts at all.
        least = {"word": 1, "char_wb": 2 if len(texts) >= 200 else 1}
        vectorizers = [TfidfVectorizer(min_df=least[view["analyzer"]], **view) for view in _VIEWS]
        features = sparse.hstack([v.fit_transform(texts) for v in vectorizers]).tocsr()
        # Conjugate gradients from zero: no random state, the same on every run.
        model = Ridge(alpha=ridge, solver="sparse_cg", tol=1e-6).fit(features, ratings, sample_weight=importance)
        return cls(vectorizers, model.coef_, float(model.intercept_))

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """Predicted ratings [len(texts)], float64."""
        if not texts:
            return np.zeros(0)
        features = sparse.hstack([v.transform(texts) for v in self._vectorizers]).tocsr()
        return features @ self._weights + self._intercept

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the arrays; returns the settings that `load` needs besides them."""
        folder.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, np.ndarray] = {"weights": self._weights}
        for number, vectorizer in enumerate(self._vectorizers):
            arrays[f"idf_{number}"] = vectorizer.idf_
            terms = "\n".join(sorted(vectorizer.vocabulary_, key=vectorizer.vocabulary_.__getitem__))
            (folder / f"terms_{number}.txt").write_text(terms, encoding="utf-8", newline="\n")
        save_file(arrays, folder / "weights.safetensors")
        return {
            "kind": "fitted",
            "intercept": self._intercept,
            "terms": [len(v.vocabulary_) for v in self._vectorizers],
        }

    @classmethod
    def load(cls, folder: Path, settings: dict[str, Any]) -> Regression:
        """What `save` wrote; scores are equal to the bit."""
        arrays = load_file(folder / "weights.safetensors")
        vectorizers = []
        for number, view in enumerate(_VIEWS):
            terms = (folder / f"terms_{number}.txt").read_bytes().decode("utf-8").split("\n")
            vectorizer = TfidfVectorizer(vocabulary={term: index for index, term in enumerate(terms)}, **view)
            vectorizer.idf_ = arrays[f"idf_{number}"]
            vectorizers.append(vectorizer)
        return cls(vectorizers, arrays["weights"], settings["intercept"])


def fit(rated: Sequence[Rated], ridge: float, *, seed: int, gap: float | None) -> tuple[Regression, dict[str, float]]:
    """A judge and how well it follows people; the judge that is measured is the one returned.

    Texts of full importance are kept aside by `is_aside` for the measurement; where that would be too few, all are
    learnt from and the figures are empty. gap: see `agreement`; None takes one standard deviation of the ratings.
    """
    aside = [r for r in rated if r.importance == 1 and is_aside(r.text, seed)]
    if len(aside) < _FEWEST_ASIDE:
        aside = []
    apart = set(aside)
    learnt = [r for r in rated if r not in apart]
    model = Regression.fit([r.text for r in learnt], [r.rating for r in learnt], [r.importance for r in learnt], ridge)
    if not aside:
        return model, {}
    gap = gap or float(np.std([r.rating for r in aside]))
    scores = model.predict([r.text for r in aside]).tolist()
    return model, agreement(scores, [r.rating for r in aside], gap=gap) | {"gap": gap}


def is_aside(text: str, seed: int) -> bool:
    """Whether a text is kept for measuring the judge: a hash decides, so that it stays so when others join."""
    return draw(seed, "aside", text) < _ASIDE


def agreement(scores: Sequence[float], ratings: Sequence[float], *, gap: float) -> dict[str, float]:
    """How far scores follow people's ratings: Pearson r, and the share of pairs ordered alike.

    Only pairs whose ratings differ by at least `gap` count; a tie of the scores counts one half.
    """
    score, rating = np.asarray(scores, dtype=float), np.asarray(ratings, dtype=float)
    first, second = np.nonzero(rating[:, None] - rating[None, :] >= gap)
    ordered = (np.sign(score[first] - score[second]) + 1) / 2
    flat = score.std() == 0 or rating.std() == 0
    return {
        "texts": len(score),
        "pearson": 0.0 if flat else float(np.corrcoef(score, rating)[0, 1]),
        "pairs_ordered_as_people": float(ordered.mean()) if len(ordered) else 0.5,
    }
