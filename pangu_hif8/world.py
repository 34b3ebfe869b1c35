"""A small invented world: people with attributes, and places. Text that no download is needed for.

The smoke profile's model learns two things in the prepare step: facts about people, each fact in several
phrasings, and what descriptions of places look like. The eight experiments then train on places, with now
and then a paragraph about a stranger (a person who is never asked for), and are asked about the people.
So the world shows in seconds what the paper looks for in days: whether knowledge outside the training
text survives. Places are drawn from large enough lists that their loss stays well above zero.

Everything is a pure function of a seed (Python's `random.Random`, seeded by text, is the same everywhere).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass


def _words(text: str) -> list[str]:
    return text.split()


_ONSETS = _words("B D F G K L M N P R S T V Z Br Dr Fl Gr Kl Pr St Tr")
_VOWELS = _words("a e i o u ai ea ou")
_CODAS = _words("l m n r s t nd rk lm st")

_VALUE_LISTS = {
    "home": "Oslo Lima Cairo Delhi Paris Quito Seoul Turin Dakar Minsk Porto Perth",
    "job": "baker pilot nurse judge miner tailor painter farmer sailor doctor singer smith",
    "pet": "cat dog parrot goat horse rabbit turtle falcon pony ferret canary lizard",
    "colour": "red green blue yellow violet orange white black silver golden purple grey",
}
VALUES: dict[str, tuple[str, ...]] = {kind: tuple(_words(text)) for kind, text in _VALUE_LISTS.items()}

PHRASINGS: dict[str, tuple[str, ...]] = {
    "home": ("{n} was born in {v}.", "The home of {n} is {v}.", "{n} comes from {v}."),
    "job": ("{n} works as a {v}.", "The job of {n} is {v}.", "{n} earns a living as a {v}."),
    "pet": ("{n} keeps a {v}.", "The pet of {n} is a {v}.", "At home {n} has a {v}."),
    "colour": ("{n} likes the colour {v}.", "The colour of {n} is {v}.", "{n} paints every door {v}."),
}
QUESTIONS = {kind: phrasings[1].split("{v}")[0].rstrip() for kind, phrasings in PHRASINGS.items()}

_PLACE_KINDS = _words("village town harbour castle market valley island forest")
_DIRECTIONS = _words("north south east west")
_THINGS = _words("wool salt cheese timber copper apples honey fish paper glass barley rope")
_SEASONS = _words("spring summer autumn winter")
_WEATHER = _words("rain snow fog wind sun frost hail mist")
_STATES = _words("muddy quiet crowded empty narrow steep flooded dusty safe cold")
_ROADS = _words("road bridge river square mill gate wall path")
STRANGER_SHARE = 0.02  # of fine-tuning paragraphs: about 15% of batches of eight hold one


@dataclass(frozen=True)
class Person:
    """A person and the value of each attribute in VALUES."""

    name: str
    attributes: dict[str, str]


def _name(rng: random.Random) -> str:
    first = rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
    second = rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) + rng.choice(_VOWELS)
    return f"{first} {second}"


def make_people(num_people: int, seed: int, group: str = "people") -> list[Person]:
    """`num_people` people with different names; `group` separates those asked for from strangers."""
    rng = random.Random(f"{group}:{seed}")
    names: list[str] = []
    while len(names) < num_people:
        name = _name(rng)
        if name not in names:
            names.append(name)
    return [Person(name, {kind: rng.choice(values) for kind, values in VALUES.items()}) for name in names]


def make_strangers(num_people: int, seed: int) -> list[Person]:
    """People of the fine-tuning text; none of them shares a name with someone who is asked for."""
    taken = {person.name for person in make_people(num_people, seed)}
    return [p for p in make_people(num_people, seed, group="strangers") if p.name not in taken]


def person_paragraph(person: Person, rng: random.Random) -> str:
    """All facts about a person, in random order and phrasing."""
    kinds = list(person.attributes)
    rng.shuffle(kinds)
    facts = (rng.choice(PHRASINGS[kind]).format(n=person.name, v=person.attributes[kind]) for kind in kinds)
    return " ".join(facts)


def place_paragraph(rng: random.Random) -> str:
    """A description of an invented place."""
    name, kind, other = _name(rng).split()[1], rng.choice(_PLACE_KINDS), _name(rng).split()[1]
    goods = rng.sample(_THINGS, 3)
    sentences = [
        f"{name} is a {kind} {rng.choice(_DIRECTIONS)} of {other}.",
        f"In {rng.choice(_SEASONS)} there is {rng.choice(_WEATHER)} "
        f"and the {rng.choice(_ROADS)} is {rng.choice(_STATES)}.",
        f"It sells {goods[0]} and {goods[1]}, and buys {goods[2]} from {other}.",
        f"The {rng.choice(_ROADS)} to {other} takes {rng.randint(2, 40)} hours.",
    ]
    return " ".join(sentences[: rng.randint(2, 4)])


def pretraining_text(num_people: int, seed: int) -> Iterator[str]:
    """Without end: paragraphs about people (every person in turn, reshuffled) and places, half and half."""
    rng = random.Random(f"pretraining:{seed}")
    people = make_people(num_people, seed)
    while True:
        for person in rng.sample(people, len(people)):
            yield person_paragraph(person, rng)
            yield place_paragraph(rng)


def finetuning_text(num_people: int, seed: int) -> Iterator[str]:
    """Without end: places, and in STRANGER_SHARE of the paragraphs a stranger."""
    rng = random.Random(f"finetuning:{seed}")
    strangers = make_strangers(num_people, seed)
    while True:
        is_stranger = rng.random() < STRANGER_SHARE
        yield person_paragraph(rng.choice(strangers), rng) if is_stranger else place_paragraph(rng)


def heldout_text(seed: int) -> Iterator[str]:
    """Without end: places as in the fine-tuning text, from another stream of chance."""
    rng = random.Random(f"heldout:{seed}")
    while True:
        yield place_paragraph(rng)


def people_text(num_people: int, seed: int) -> Iterator[str]:
    """Without end: paragraphs about the people who are asked for (the second domain)."""
    rng = random.Random(f"second domain:{seed}")
    people = make_people(num_people, seed)
    while True:
        for person in rng.sample(people, len(people)):
            yield person_paragraph(person, rng)


def people_items(num_people: int, seed: int) -> list[dict[str, object]]:
    """Every fact as a four-choice question: keys item_id, question, choices, answer (index)."""
    rng = random.Random(f"items:{seed}")
    items: list[dict[str, object]] = []
    for person in make_people(num_people, seed):
        for kind, value in person.attributes.items():
            choices = rng.sample([other for other in VALUES[kind] if other != value], 3)
            answer = rng.randrange(4)
            choices.insert(answer, value)
            question = QUESTIONS[kind].format(n=person.name)
            items.append(
                {
                    "item_id": f"{person.name}/{kind}",
                    "question": question,
                    "choices": choices,
                    "answer": answer,
                }
            )
    return items
