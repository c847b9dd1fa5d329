import itertools

import pytest

from partner import Agent, Partner

numbers = itertools.count()


@pytest.fixture
def partner():
    """Makes partners, and ends them."""
    made = []

    def make(name=None, *arguments, **params):
        made.append(Partner(name or f"partner-{next(numbers)}", *arguments, **params))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def agent():
    """Makes agents of this process."""

    def make(name=None, **config):
        return Agent(name or f"agent {next(numbers)}", **config)

    return make
