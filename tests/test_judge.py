"""Judges: the fitted one against the formulas in NumPy, a classifier, a function of the user's."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import BertConfig, BertForSequenceClassification

from tasks.errors import UserError
from tasks.language import judge, ratings, snippets, text
from tasks.language.examples import Rated
from tasks.language.snippets import Snippet

TEXTS = [
    f"the {noun} is {verdict}"
    for noun in ("film", "plot", "cast", "end", "song")
    for verdict in ("good", "bad", "so so", "not good", "not bad")
]
RATINGS = [value + shift for shift in (0.0, 0.2, -0.1, 0.1, 0.3) for value in (2.0, -2.0, 0.0, -1.0, 1.0)]


def words_and_pairs(text: str) -> list[str]:
    single = text.lower().split()
    return single + [f"{a} {b}" for a, b in itertools.pairwise(single)]


def pieces(text: str) -> list[str]:
    """Character 2- to 5-grams within a word that has a space put on either side; a shorter word counts once, whole."""
    found = []
    for word in (f" {w} " for w in text.lower().split()):
        for n in range(2, 6):
            found += [word[i : i + n] for i in range(max(1, len(word) - n + 1))]
            if len(word) <= n:
                break
    return found


def tfidf(train: list[str], query: list[str], split) -> np.ndarray:
    """(1 + ln count) (1 + ln((1 + n) / (1 + df))), each row of length 1."""
    df = Counter(term for t in train for term in set(split(t)))
    terms = sorted(df)
    rows = np.zeros((len(query), len(terms)))
    for row, t in zip(rows, query, strict=True):
        counts = Counter(split(t))
        weights = [
            (1 + math.log(counts[term])) * (1 + math.log((1 + len(train)) / (1 + df[term]))) if term in counts else 0
            for term in terms
        ]
        row[:] = np.array(weights) / np.linalg.norm(weights)
    return rows


def test_the_fitted_judge_is_weighted_ridge_on_tfidf(tmp_path: Path) -> None:
    weights = np.array([1.0, 0.2] * 12 + [1.0])
    query = ["the film is not so bad", "a good song", "THE PLOT IS GOOD"]
    train, asked = (np.hstack([tfidf(TEXTS, q, words_and_pairs), tfidf(TEXTS, q, pieces)]) for q in (TEXTS, query))
    # Weighted least squares with an unpenalised intercept: subtract the weighted means, then the normal equations.
    target = np.array(RATINGS)
    centre, middle = np.average(train, axis=0, weights=weights), np.average(target, weights=weights)
    x, y = train - centre, target - middle
    coefficients = np.linalg.solve(x.T @ (weights[:, None] * x) + 0.7 * np.eye(x.shape[1]), x.T @ (weights * y))
    expected = (asked - centre) @ coefficients + middle
    model = ratings.Regression.fit(TEXTS, RATINGS, weights.tolist(), 0.7)
    np.testing.assert_allclose(model.predict(query), expected, atol=1e-4)

    judge.write(tmp_path, model.save(tmp_path))
    loaded = judge.load(tmp_path)
    prompts, answers = ["the film", [{"role": "user", "content": "a good"}]], [" is not so bad", " song"]
    assert loaded.score(prompts, answers) == model.predict(query[:2]).tolist()
    assert loaded.score([], []) == []
    assert loaded.score([""], ["ΩΩΩ"])[0] == pytest.approx(model._intercept)


def test_saving_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        model = ratings.Regression.fit(TEXTS, RATINGS, [1.0] * len(TEXTS), 1.0)
        judge.write(tmp_path / name, model.save(tmp_path / name))
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
        assert b"\x80\x04" not in path.read_bytes()[:2]  # no pickle


def test_texts_kept_aside_are_not_learnt() -> None:
    rated = [Rated(f"{t} {n}", r) for n in range(8) for t, r in zip(TEXTS, RATINGS, strict=True)]
    aside = [r for r in rated if ratings.is_aside(r.text, 4)]
    assert 0.1 < len(aside) / len(rated) < 0.2
    changed = [Rated(r.text, -r.rating) if r in aside else r for r in rated]
    first, measured = ratings.fit(rated, 1.0, seed=4, gap=1.0)
    second, reversed_ = ratings.fit(changed, 1.0, seed=4, gap=1.0)
    assert first.predict(TEXTS).tolist() == second.predict(TEXTS).tolist()
    assert measured["texts"] == len(aside)
    assert measured["pearson"] == pytest.approx(-reversed_["pearson"])
    few, nothing = ratings.fit(rated[:25], 1.0, seed=4, gap=None)
    assert nothing == {}
    assert few.predict(TEXTS).shape == (25,)


def test_agreement_by_hand_and_by_scipy() -> None:
    # Pairs with ratings at least 1 apart: (0,1) (0,2) (0,3) (1,2) (1,3); scores: right, tie, wrong, right, right.
    scores, people = [2.0, 1.0, 2.0, 2.5], [0.0, 1.5, 3.0, 3.5]
    found = ratings.agreement([-2.0, -1.0, -2.0, -2.5], [0.0, -1.5, -3.0, -3.5], gap=1.0)
    # The same pairs reversed: (0 better) -2 < -1 wrong, tie, right; then -1 > -2 right, -1 > -2.5 right.
    assert found["pairs_ordered_as_people"] == pytest.approx((0 + 0.5 + 1 + 1 + 1) / 5)
    found = ratings.agreement(scores, people, gap=1.0)
    assert found["pairs_ordered_as_people"] == pytest.approx((0 + 0.5 + 1 + 1 + 1) / 5)
    assert found["pearson"] == pytest.approx(stats.pearsonr(scores, people).statistic)
    assert ratings.agreement([1.0, 1.0], people[:2], gap=1.0)["pearson"] == 0.0


def test_one_rater_against_the_others() -> None:
    # Rater 0: the others say a 2, b 0, rater 0 says 4 > 1, right. Rater 1: the others say 4, 1; rater 1: 2 > 0, right.
    assert snippets.rater_agreement([Snippet("a", (4, 2)), Snippet("b", (1, 0))], gap=1.0) == 1.0
    # Rater 0: the others say 3 and 3, no pair. Rater 1: the others say 3 and 0, rater 1 says 3 and 3: half.
    assert snippets.rater_agreement([Snippet("a", (3, 3)), Snippet("b", (0, 3))], gap=1.0) == 0.5


def test_too_few_ratings() -> None:
    with pytest.raises(UserError, match="19 rated texts with 5 different ratings"):
        ratings.Regression.fit(TEXTS[:19], ([0.0, 1.0, 2.0, 3.0, 4.0] * 4)[:19], [1.0] * 19, 1.0)
    with pytest.raises(UserError, match="25 rated texts with 1 different ratings"):
        ratings.Regression.fit(TEXTS, [1.0] * 25, [1.0] * 25, 1.0)


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A random three-way classifier of bytes, in tmp_path/mine."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    names = {0: "bad", 1: "fair", 2: "good"}
    settings = BertConfig(vocab_size=262, max_position_embeddings=32, initializer_range=0.5, id2label=names, **sizes)
    settings.label2id = {name: index for index, name in names.items()}
    BertForSequenceClassification(settings).save_pretrained(tmp_path / "mine")
    text.byte_tokenizer().save_pretrained(tmp_path / "mine")
    return tmp_path


def test_a_classifier_gives_the_log_odds_of_its_label(classifier: Path) -> None:
    judge.keep_classifier("mine", "good", classifier, classifier / "judge")
    (classifier / "mine" / "model.safetensors").unlink()  # the judge folder stands alone
    scores = judge.load(classifier / "judge").score(["ab", ""], ["cd", "x" * 100])
    model = BertForSequenceClassification.from_pretrained(classifier / "judge" / "model").eval()
    for score, whole in zip(scores, (b"abcd", b"x" * 32), strict=True):  # cut at the context of 32
        with torch.no_grad():
            p = model(torch.tensor([list(whole)])).logits.double().softmax(-1)[0, 2].item()
        assert score == pytest.approx(math.log(p / (1 - p)), abs=1e-5)


def test_a_classifier_with_one_output_needs_no_label(classifier: Path) -> None:
    settings = BertConfig.from_pretrained(classifier / "mine", num_labels=1)
    torch.manual_seed(1)
    model = BertForSequenceClassification(settings).eval()
    model.save_pretrained(classifier / "mine")
    judge.keep_classifier("mine", None, classifier, classifier / "judge")
    with torch.no_grad():
        expected = model(torch.tensor([list(b"abcd")])).logits.item()
    assert judge.load(classifier / "judge").score(["ab"], ["cd"]) == [pytest.approx(expected, abs=1e-6)]


def test_a_classifier_that_cannot_judge(classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for model, label, message in (
        ("mine", "great", "is 'great', expected a label of mine: bad, fair, good"),
        ("mine", None, "is None, expected a label of mine"),
        ("../elsewhere", None, "is not a folder below corpus.data"),
        ("someone/not-cached", None, "cannot be loaded as a classifier"),
    ):
        with pytest.raises(UserError, match=message):
            judge.keep_classifier(model, label, classifier, classifier / "judge")


def test_a_function_is_kept_with_its_file(tmp_path: Path) -> None:
    source = tmp_path / "data" / "more" / "lengths.py"
    source.parent.mkdir(parents=True)
    source.write_text("def shorter(prompts, answers):\n    return [-len(p + a) for p, a in zip(prompts, answers)]\n")
    judge.keep_function("more/lengths.py:shorter", tmp_path / "data", tmp_path / "judge")
    source.unlink()
    loaded = judge.load(tmp_path / "judge")
    assert loaded.score(["ab", ""], ["c", "d"]) == [-3.0, -1.0]
    assert sorted(p.name for p in (tmp_path / "judge").iterdir()) == ["judge.json", "lengths.py"]


def test_a_function_of_a_module(tmp_path: Path) -> None:
    judge.keep_function("math:dist", tmp_path, tmp_path / "judge")
    with pytest.raises(UserError, match="judge math:dist failed: TypeError"):
        judge.load(tmp_path / "judge").score(["a"], ["b"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def f(prompts, answers):\n    return [0.5]\n", "returned 1 scores for 2 answers"),
        ("def f(prompts, answers):\n    return [0.5, float('nan')]\n", "returned nan for answer 'second'"),
        ("def f(prompts):\n    return [0.5]\n", "failed: TypeError"),
        ("def g():\n    pass\n", "cannot be imported: .* has no attribute 'f'"),
        ("f = 3\n", "is not a function"),
        ("import not_there\n", "cannot be imported: ModuleNotFoundError: No module named 'not_there'"),
        ("def f(:\n", "cannot be imported: .*invalid syntax"),
    ],
)
def test_a_function_that_cannot_judge(body: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(body)
    judge.keep_function("mine.py:f", tmp_path, tmp_path / "judge")
    with pytest.raises(UserError, match=message):
        judge.load(tmp_path / "judge").score(["", ""], ["first", "second"])


def test_a_function_outside_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(p, a): return [0 for _ in a]\n")
    (tmp_path / "data").mkdir()
    with pytest.raises(UserError, match=r"leads out of corpus.data"):
        judge.keep_function("../mine.py:f", tmp_path / "data", tmp_path / "judge")
    with pytest.raises(UserError, match=r"yours.py not found"):
        judge.keep_function("yours.py:f", tmp_path / "data", tmp_path / "judge")
    with pytest.raises(UserError, match="holds no judge"):
        judge.load(tmp_path / "nowhere")
