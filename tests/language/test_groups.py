"""Rankings of a prompt together, each answer once."""

from __future__ import annotations

import math

import pytest
import torch

from tasks.errors import UserError
from tasks.language.batches import Completion
from tasks.language.groups import Group, answer_rankings, grouped, packed, pair_rankings, table, unseen

A, B, C, D = [4], [5, 5], [6], [8, 8, 8]


def pair(prompt, chosen, rejected, margin=None, origin="sampled"):
    return {
        "prompt_tokens": prompt,
        "chosen_tokens": chosen,
        "rejected_tokens": rejected,
        "margin": margin,
        "origin": origin,
    }


def ranked(prompt, *answers):
    return {
        "prompt_tokens": prompt,
        "answers": [{"tokens": t, "score": s} for t, s in answers],
        "origin": "sampled",
    }


def groups_of(*rows) -> list[Group]:
    return grouped(pair_rankings(rows))


def test_each_answer_of_a_prompt_stands_once_however_many_pairs_it_is_in():
    """All six pairs of four answers: four sequences, not twelve."""
    every = [(A, B), (A, C), (A, D), (B, C), (B, D), (C, D)]
    (group,) = groups_of(*(pair([1], *sides) for sides in every))
    assert [c.answer for c in group.answers] == [A, B, C, D]
    assert [[group.answers[i].answer for i in places] for places in group.places] == [list(sides) for sides in every]


def test_pairs_of_a_prompt_come_together_wherever_they_stand_in_the_file():
    groups = groups_of(pair([1], A, B), pair([2], A, C), pair([1], C, A, origin="file"))
    assert [[r.origin for r in g.rankings] for g in groups] == [["sampled", "file"], ["sampled"]]
    assert [len(g.answers) for g in groups] == [3, 2]


def test_pairs_without_a_prompt_stand_for_themselves():
    assert [len(g.rankings) for g in groups_of(pair([], A, B), pair([], A, C))] == [1, 1]


def test_an_answer_sampled_twice_is_ranked_once_and_no_order_is_no_ranking():
    found = answer_rankings([ranked([1], (A, 0.5), (B, 0.1), (A, 0.5)), ranked([2], (A, 1.0), (B, 1.0))])
    assert [([a.answer for a in r.answers], r.gold) for r in found] == [([A, B], [0.5, 0.1])]


def test_scores_go_to_the_places_of_their_answers_and_gradients_come_back():
    groups = grouped(
        pair_rankings([pair([1], B, A, 0.25), pair([1], B, C)])
        + answer_rankings([ranked([2], (A, 3.0), (C, 9.0), (D, 6.0))])
    )
    scores = torch.tensor([10.0, 11.0, 12.0, 20.0, 21.0, 22.0], requires_grad=True)
    found = table(groups, scores)
    assert found.mask.tolist() == [[True, True, False], [True, True, False], [True] * 3]
    assert found.scores[0, :2].tolist() == [10, 11]
    assert found.scores[1, :2].tolist() == [10, 12]
    assert found.scores[2].tolist() == [20, 21, 22]
    assert found.gold[found.mask].tolist() == [1, 0, 1, 0, 3, 9, 6]
    assert found.gap[0] == 0.25
    assert all(math.isnan(gap) for gap in found.gap[1:])
    found.scores[found.mask].sum().backward()
    assert scores.grad.tolist() == [2, 1, 1, 1, 1, 1]


def test_a_forward_pass_holds_whole_groups_longest_first():
    groups = groups_of(pair([1], A, C), pair([2], A, D), pair([3], A, B), pair([3], B, C), pair([4], A, B))
    assert [len(g.answers) for g in groups] == [2, 2, 3, 2]
    parts = list(packed(groups, 5))
    assert parts == [[1, 2], [3, 0]]
    assert sorted(i for part in parts for i in part) == [0, 1, 2, 3]


def test_pairs_alone_are_packed_as_by_length_packs_them():
    from tasks.language.batches import by_length

    groups = groups_of(*(pair([n], [1] * (n % 5 + 1), [2] * (n % 7 + 1)) for n in range(1, 30)))
    assert list(packed(groups, 8)) == list(by_length(groups, 4))


def test_a_group_larger_than_a_forward_pass_is_refused():
    with pytest.raises(UserError, match=r"3 answers .* reward.optimiser.micro_batch is 2, expected at least 3"):
        list(packed(groups_of(pair([1], A, B), pair([1], A, C)), 2))


def test_only_new_prompts_are_held_out():
    training = groups_of(pair([4], A, B), pair([], C, D))
    held_out = groups_of(pair([4], C, D), pair([5], A, B), pair([], D, A), pair([], A, B), pair([6], C, D))
    kept = [(g.answers[0].prompt, g.answers[0].answer) for g in unseen(held_out, training)]
    # The prompt [4] was trained on, and so was the text D; the prompt [4] is not the text A, though the ids are alike.
    assert kept == [([5], A), ([], A), ([6], C)]


def test_a_group_is_as_long_as_its_longest_answer():
    assert len(Group([Completion([1, 2], A), Completion([1, 2], D)], [], [])) == 5
