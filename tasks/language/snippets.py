"""The embedded text: movie review snippets with individual human ratings, and other rated texts for the judge.

Source: C.J. Hutto and E. Gilbert, "VADER", ICWSM 2014, whose data come in the source distribution of vaderSentiment
as an archive inside the archive. `NAME_GroundTruth.txt` has id, mean rating and text, `NAME_anonDataRatings.txt` id,
mean, standard deviation and the list of ratings; tab-separated, ratings from -4 to 4.
"""

from __future__ import annotations

import ast
import html
import io
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasks.errors import UserError

_INNER = "hutto_ICWSM_2014.tar.gz"
MOVIES = "movieReviewSnippets"
OTHERS = ("amazonReviewSnippets", "nytEditorialSnippets")
"""Also rated. The archive's fourth set, tweets, is left out: 199 of its means are not the means of its ratings."""


@dataclass(frozen=True)
class Snippet:
    """A text with what each of its raters said."""

    text: str
    ratings: tuple[int, ...]

    @property
    def mean(self) -> float:
        return sum(self.ratings) / len(self.ratings)


def read(sdist: Path, name: str) -> list[Snippet]:
    """The cleaned snippets of one data set in file order, each text once. Raises UserError for another layout."""
    try:
        with tarfile.open(sdist) as outer:
            member = next(m for m in outer.getmembers() if m.name.endswith("/" + _INNER))
            inner = outer.extractfile(member).read()  # type: ignore[union-attr]
        with tarfile.open(fileobj=io.BytesIO(inner)) as archive:
            files = {Path(m.name).name: m for m in archive.getmembers()}
            texts, ratings = (
                _columns(archive.extractfile(files[f"{name}_{kind}.txt"]).read())  # type: ignore[union-attr]
                for kind in ("GroundTruth", "anonDataRatings")
            )
        rated = {row[0]: ast.literal_eval(row[3]) for row in ratings}
        found = [Snippet(clean(row[2]), tuple(rated[row[0]])) for row in texts]
    except (tarfile.TarError, StopIteration, KeyError, IndexError, ValueError, SyntaxError) as error:
        raise UserError(
            f"{sdist} does not hold {name} in the expected layout ({type(error).__name__}: {error})"
        ) from None
    return list({snippet.text: snippet for snippet in found if snippet.text and snippet.ratings}.values())


def clean(text: str) -> str:
    """Undo HTML entities, doubled quotation marks, runs of spaces and spaces before , ; ! ? : and a lone full stop."""
    text = html.unescape(text).replace("''", '"').replace("``", '"').replace("`", "'")
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r" +([,;!?:]|\.(?!\.))", r"\1", text)


def rated_pairs(
    texts: Sequence[str], means: Sequence[float], *, gap: float, count: int, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """Up to `count` pairs (better, worse) of texts whose mean ratings differ by at least `gap`.

    The texts are shuffled and neighbours paired, again and again: after n rounds no text is in more than n pairs.
    Eight rounds at most, so that fewer pairs come out where the ratings do not give more.
    """
    found: dict[tuple[int, int], None] = {}
    for _ in range(8):
        order = rng.permutation(len(texts)).tolist()
        for a, b in zip(order[::2], order[1::2], strict=False):
            better, worse = (a, b) if means[a] > means[b] else (b, a)
            if means[better] - means[worse] >= gap and texts[better] != texts[worse]:
                found.setdefault((better, worse))
            if len(found) == count:
                return list(found)
    return list(found)


def votes(one: Snippet, other: Snippet) -> tuple[int, ...]:
    """How people compare two texts: 1 where the k-th rating of `one` is the higher, -1 the lower, 0 for equal ones.

    Each rating is used once, so that the votes are independent; the longer list's rest compares with nothing.
    """
    return tuple((a > b) - (a < b) for a, b in zip(one.ratings, other.ratings, strict=False))


def rater_agreement(snippets: Sequence[Snippet], *, gap: float) -> float:
    """How often one rater orders two texts as the others' means do, over pairs with means at least `gap` apart.

    Rater k of each text is left out of its mean, for every k that all texts have; equal ratings count one half. It is
    what a judge can be held against: people agree with people this far.
    """
    agree, total = 0.0, 0
    for k in range(min(len(snippet.ratings) for snippet in snippets)):
        one = np.array([snippet.ratings[k] for snippet in snippets], dtype=float)
        rest = np.array([(sum(s.ratings) - s.ratings[k]) / (len(s.ratings) - 1) for s in snippets])
        first, second = np.nonzero(rest[:, None] - rest[None, :] >= gap)
        agree += (np.sign(one[first] - one[second]) + 1).sum() / 2
        total += len(first)
    return agree / total


def _columns(data: bytes) -> list[list[str]]:
    """Tab-separated lines; some of the files begin with a byte order mark."""
    lines = data.decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    return [line.split("\t") for line in lines if line.strip()]
