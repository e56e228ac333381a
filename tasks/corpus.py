"""corpus: demonstrations, training prompts, held-out prompts, off-policy pairs and the judge."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.algorithms.panel import rating_spread
from tasks.errors import UserError
from tasks.language import embedded, examples, judge, ratings, readers, snippets, text
from tasks.language.dialogue import draw
from tasks.language.examples import Dropped, Example, Rated
from tasks.language.overlap import HeldOut, distinct, refuse_leak
from tasks.runtime import config, record, records

_OTHER_DOMAINS = 0.2
"""Importance of a rated text that is no movie snippet (measured: Pearson r .69 without them, .71 with)."""
_GAP = 1.0
"""Difference of two mean ratings (scale -4 to 4) above which the judge is expected to order them as people do."""
_GROUPS = 40
"""Groups of texts with about the same mean rating that the spread of people's ratings is taken from: 130 texts each."""
_SHORTEST_ANSWER = 3
"""Words after the prompt that a snippet must have."""


@dataclass
class Parts:
    """The corpus before it is written."""

    demonstrations: list[Example]
    prompts: list[Example]
    held_out: list[Example]
    pairs: list[Example]
    rated: list[Rated]
    """What a fitted judge learns from; empty for the other kinds."""
    gap: float | None = None
    """Difference of two ratings that the judge's order is checked at; None: one standard deviation."""
    people: float | None = None
    """How often one person orders two texts at that gap as the other raters do."""
    spread: dict[str, Any] | None = None
    """How people's ratings of a text scatter around their mean; None where no individual ratings are known."""


def run(shared: config.Shared, cfg: config.Corpus, *, base: Path, out: Path) -> dict[str, Any]:
    """Write demonstrations.jsonl, prompts.jsonl, held_out.jsonl, pairs.jsonl and judge/ to `out`.

    Where individual ratings are known, raters.json says how they scatter, for a panel of simulated annotators.

    base: folder of the model, whose tokenizer lengths are counted with. Raises UserError that names file and row.
    """
    dropped = Dropped()
    tokenizer = text.load_tokenizer(base)
    if cfg.source.kind == "embedded":
        parts = _embedded(shared, cfg, cfg.source, tokenizer, dropped)
    else:
        parts = _files(shared, cfg, cfg.source, dropped)
    for line in dropped.lines():
        record.note(line)
    _check(parts, shared, tokenizer, dropped)
    _write(parts, out, "ratings" if cfg.source.kind == "embedded" else "file")
    return {
        "rows": {
            name: len(getattr(parts, name)) for name in ("demonstrations", "prompts", "held_out", "pairs", "rated")
        },
        "answers_cut": sum(not _fits(tokenizer, e.answer, shared.answer_tokens) for e in parts.demonstrations),
        "judge": _judge(shared, cfg, parts, out / "judge"),
        "dropped": dict(sorted(dropped.counts.items())),
    }


def _embedded(
    shared: config.Shared, cfg: config.Corpus, source: config.EmbeddedSource, tokenizer: Any, dropped: Dropped
) -> Parts:
    """The snippets in two halves: the judge's, and the policy's, whose opening words are the prompts."""
    sdist = embedded.fetch("snippets")
    movies = sorted(snippets.read(sdist, snippets.MOVIES), key=lambda s: draw(shared.seed, "order", s.text))
    theirs = [s for s in movies if draw(shared.seed, "half", s.text) < source.judge_share]
    ours = [s for s in movies if draw(shared.seed, "half", s.text) >= source.judge_share]
    opened = _openings(ours, source.prompt_words, dropped)
    held_out = distinct(opened)[: cfg.held_out]
    seen, taken = HeldOut(held_out, cfg.overlap), {e.id for e in held_out}
    rest = seen.apart([e for e in opened if e.id not in taken], "snippets", dropped)
    # Demonstrations that end within the longest answer teach where answers end.
    whole = [e for e in rest if _fits(tokenizer, e.answer, shared.answer_tokens)]
    demonstrations = whole[: source.demonstrations]
    used = {e.id for e in demonstrations}
    short = [e for e in rest if _fits(tokenizer, e.text, shared.prompt_tokens + shared.answer_tokens)]
    for name, found, asked in (("demonstrations", whole, source.demonstrations), ("held_out", held_out, cfg.held_out)):
        if len(found) < asked:
            record.note(f"{name}: {len(found)} snippets serve, {asked} were asked for")
    parts = Parts(
        demonstrations=demonstrations,
        prompts=distinct([e for e in rest if e.id not in used])[: source.prompts],
        held_out=held_out,
        pairs=_rated_pairs(shared.seed, source, [e.text for e in short], {s.text: s for s in ours}),
        rated=[],
    )
    if cfg.judge.kind != "fitted" or cfg.judge.rated is not None:
        parts.rated = _given(cfg, dropped)
    else:
        parts.rated = _embedded_ratings(sdist, theirs)
        people = snippets.rater_agreement([s for s in theirs if ratings.is_aside(s.text, shared.seed)], gap=_GAP)
        parts.gap, parts.people = _GAP, people
        levels, means, shares = rating_spread([s.ratings for s in theirs], groups=min(_GROUPS, len(theirs)))
        parts.spread = {"levels": levels, "means": means, "shares": shares}
    parts.rated = _unseen(parts.rated, seen, dropped)
    return parts


def _files(shared: config.Shared, cfg: config.Corpus, source: config.FileSource, dropped: Dropped) -> Parts:
    """The user's tables; held-out prompts are split off by a hash of their text where no table gives them."""

    def table(given: config.Table | None) -> list[readers.Row]:
        return readers.read(cfg.data, given) if given else []

    demonstrations = examples.demonstrations(table(source.demonstrations), dropped)
    pairs = examples.preferences(table(source.preferences), dropped)
    if source.prompts:
        prompts = examples.prompts(table(source.prompts), "prompts", dropped)
    else:
        prompts = [Example(e.where, e.prompt) for e in demonstrations]
    prompts = sorted(distinct(prompts), key=lambda e: draw(shared.seed, "order", e.prompt))
    if source.held_out:
        held_out = examples.prompts(table(source.held_out), "held_out", dropped)
        held_out = sorted(distinct(held_out), key=lambda e: draw(shared.seed, "order", e.prompt))[: cfg.held_out]
        refuse_leak(held_out, [*demonstrations, *prompts, *pairs])
    else:
        held_out, prompts = prompts[: cfg.held_out], prompts[cfg.held_out :]
        if held_out and not prompts:
            raise UserError(f"corpus.held_out: is {cfg.held_out}, but there are {len(held_out)} prompts in all")
    seen = HeldOut(held_out, cfg.overlap)
    return Parts(
        demonstrations=sorted(
            seen.apart(demonstrations, "demonstrations", dropped), key=lambda e: draw(shared.seed, "order", e.id)
        ),
        prompts=seen.apart(prompts, "prompts", dropped),
        held_out=held_out,
        pairs=seen.apart(pairs, "preferences", dropped),
        rated=_unseen(_given(cfg, dropped), seen, dropped),
    )


def _openings(found: list[snippets.Snippet], prompt_words: int, dropped: Dropped) -> list[Example]:
    """Snippets cut after their opening words; the answer keeps the space in front of it."""
    opened = []
    for snippet in found:
        words = snippet.text.split(" ")
        prompt = " ".join(words[:prompt_words])
        if len(words) < prompt_words + _SHORTEST_ANSWER:
            dropped.add("snippets", "too short")
        else:
            opened.append(Example(f"snippet {snippet.text[:40]!r}", prompt, snippet.text[len(prompt) :]))
    return opened


def _rated_pairs(
    seed: int, source: config.EmbeddedSource, texts: list[str], rated: dict[str, snippets.Snippet]
) -> list[Example]:
    """Pairs of texts by their mean ratings, with the votes of the individual raters."""
    mean = [rated[t].mean for t in texts]
    rng = np.random.default_rng([seed, 1])
    chosen = snippets.rated_pairs(texts, mean, gap=source.pair_gap, count=source.pairs, rng=rng)
    if len(chosen) < source.pairs:
        record.note(f"{len(chosen)} pairs have a gap of {source.pair_gap}; {source.pairs} were asked for")
    found = []
    for a, b in chosen:
        votes = snippets.votes(rated[texts[a]], rated[texts[b]])
        sides = {"chosen": texts[a], "rejected": texts[b]}
        found.append(Example("ratings", "", **sides, margin=mean[a] - mean[b], votes=votes))
    return found


def _given(cfg: config.Corpus, dropped: Dropped) -> list[Rated]:
    """The rated texts that params.yaml names for a fitted judge, if any."""
    if cfg.judge.kind != "fitted" or cfg.judge.rated is None:
        return []
    return examples.rated(readers.read(cfg.data, cfg.judge.rated), dropped)


def _embedded_ratings(sdist: Path, theirs: list[snippets.Snippet]) -> list[Rated]:
    """The judge's half of the snippets, and with less importance the rated texts of other domains."""
    found = [Rated(s.text, s.mean) for s in theirs]
    for name in snippets.OTHERS:
        found += [Rated(s.text, s.mean, _OTHER_DOMAINS) for s in snippets.read(sdist, name)]
    return found


def _fits(tokenizer: Any, answer: str | None, limit: int) -> bool:
    """Whether an answer and its end-of-sequence token take at most `limit` tokens."""
    return len(text.answer_tokens(tokenizer, answer or "", limit + 1)) <= limit


def _unseen(rated: list[Rated], seen: HeldOut, dropped: Dropped) -> list[Rated]:
    """The rated texts that share no run of words with a held-out one: the judge must not know those, either."""
    kept = [r for r in rated if not seen.shares(r.text)]
    dropped.add("rated", "overlaps a held-out text", len(rated) - len(kept))
    return kept


def _check(parts: Parts, shared: config.Shared, tokenizer: Any, dropped: Dropped) -> None:
    """Refuse a part without rows, and a prompt that is too long, before any training."""
    for name in ("demonstrations", "prompts", "held_out"):
        if not getattr(parts, name):
            raise UserError(f"corpus: no usable row for {name} ({'; '.join(dropped.lines()) or 'the source is empty'})")
    long: Counter[str] = Counter()
    for example in (*parts.demonstrations, *parts.prompts, *parts.held_out, *parts.pairs):
        try:
            tokens = len(text.prompt_tokens(tokenizer, example.prompt, shared.format))
        except UserError as error:
            raise UserError(f"{example.where}: {error}") from None
        if tokens > shared.prompt_tokens:
            long[example.where] = tokens
    if long:
        where, tokens = next(iter(long.items()))
        raise UserError(
            f"{where}: the prompt has {tokens} tokens, shared.prompt_tokens allows {shared.prompt_tokens} "
            f"(too long: {len(long)} prompts, the longest with {max(long.values())}): raise it or shorten them"
        )


def _write(parts: Parts, out: Path, origin: str) -> None:
    def rows(found: list[Example], *fields: str, **more: Any) -> list[dict[str, Any]]:
        return [{"id": e.id, "prompt": e.prompt} | {f: getattr(e, f) for f in fields} | more for e in found]

    records.write_jsonl(out / "demonstrations.jsonl", rows(parts.demonstrations, "answer"))
    records.write_jsonl(out / "prompts.jsonl", rows([Example(e.where, e.prompt) for e in parts.prompts]))
    records.write_jsonl(out / "held_out.jsonl", rows([Example(e.where, e.prompt) for e in parts.held_out]))
    records.write_jsonl(out / "pairs.jsonl", rows(parts.pairs, "chosen", "rejected", "margin", "votes", origin=origin))
    if parts.spread:
        records.write_json(out / "raters.json", parts.spread)


def _judge(shared: config.Shared, cfg: config.Corpus, parts: Parts, folder: Path) -> dict[str, Any]:
    """Write the judge and try it once; returns how well a fitted one follows people, on rated texts kept aside."""
    measured: dict[str, Any] = {}
    if cfg.judge.kind == "callable":
        judge.keep_function(cfg.judge.function, cfg.data, folder)
    elif cfg.judge.kind == "classifier":
        judge.keep_classifier(cfg.judge.model, cfg.judge.label, cfg.data, folder)
    elif cfg.judge.kind == "endpoint":
        judge.keep_endpoint(cfg.judge.model_dump(), folder)
    elif cfg.judge.kind == "human":
        measured["verdicts"] = judge.keep_human(readers.read(cfg.data, cfg.judge.verdicts), folder)
    else:
        fitted, measured = ratings.fit(parts.rated, cfg.judge.ridge, seed=shared.seed, gap=parts.gap)
        judge.write(folder, fitted.save(folder))
        if not measured:
            record.note(f"the judge is fitted on all {len(parts.rated)} rated texts: too few to measure it on some")
    if measured and parts.people is not None:
        measured["one_person_ordered_as_the_others"] = parts.people
    # A judge that cannot judge is found out now, not after the training. Equal texts would not be asked about.
    trial = parts.demonstrations[0]
    judge.compare(judge.load(folder), [trial.prompt], [trial.answer or ""], [(trial.answer or "") + "."])
    return measured
