"""The invented world: the same for a seed, different for another, consistent between text and questions."""

from __future__ import annotations

import hashlib
from itertools import islice

import pytest

from pangu_hif8 import world


def test_people_are_a_function_of_the_seed() -> None:
    assert world.make_people(20, 3) == world.make_people(20, 3)
    assert world.make_people(20, 3) != world.make_people(20, 4)
    assert len({person.name for person in world.make_people(300, 0)}) == 300


def test_the_text_is_the_same_on_every_machine() -> None:
    text = "\n".join(islice(world.pretraining_text(10, 0), 50))
    assert text == "\n".join(islice(world.pretraining_text(10, 0), 50))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "249484338ec566aa"


@pytest.mark.parametrize("seed", [0, 7])
def test_every_item_has_its_true_answer_at_the_right_place(seed: int) -> None:
    people = {person.name: person for person in world.make_people(30, seed)}
    items = world.people_items(30, seed)
    assert len({item["item_id"] for item in items}) == 30 * len(world.VALUES)
    for item in items:
        name, kind = str(item["item_id"]).split("/")
        choices, answer = item["choices"], item["answer"]
        assert isinstance(choices, list)
        assert isinstance(answer, int)
        assert choices[answer] == people[name].attributes[kind]
        assert len(set(choices)) == 4
        assert name in str(item["question"])
        assert set(choices) <= set(world.VALUES[kind])


def test_answers_stand_at_every_place() -> None:
    places = [item["answer"] for item in world.people_items(50, 0)]
    assert all(places.count(place) > len(places) / 8 for place in range(4))


def test_the_question_and_its_answer_occur_in_the_pretraining_text() -> None:
    text = " ".join(islice(world.pretraining_text(5, 0), 300))
    for item in world.people_items(5, 0):
        choices, answer = item["choices"], item["answer"]
        assert isinstance(choices, list)
        assert isinstance(answer, int)
        assert f"{item['question']} {choices[answer]}." in text
        wrong = [choice for choice in choices if choice != choices[answer]]
        assert not any(f"{item['question']} {choice}." in text for choice in wrong)


def test_finetuning_text_never_mentions_a_person_who_is_asked_for() -> None:
    text = "\n".join(islice(world.finetuning_text(60, 0), 5000))
    assert not any(person.name in text for person in world.make_people(60, 0))
    lines, names = text.splitlines(), [stranger.name for stranger in world.make_strangers(60, 0)]
    strangers = sum(any(name in line for name in names) for line in lines)
    assert 0.5 < strangers / len(lines) / world.STRANGER_SHARE < 1.5


def test_held_out_text_is_not_the_training_text() -> None:
    train = set(islice(world.finetuning_text(60, 0), 3000))
    heldout = list(islice(world.heldout_text(0), 200))
    assert not train & set(heldout)


def test_places_vary_enough() -> None:
    paragraphs = list(islice(world.heldout_text(1), 500))
    assert len(set(paragraphs)) == 500
