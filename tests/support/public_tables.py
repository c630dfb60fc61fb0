"""Synthetic tables that anybody may see."""

import numpy as np


def california(rows=20_640, key=0):
    """Return columns and targets that look like the blocks of houses of the Californian census.

    Incomes, rooms and people are skewed, and places lie along a coast, so columns are correlated.
    """
    rng = np.random.default_rng(key)
    income = rng.lognormal(1.2, 0.45, rows).clip(0.5, 15)
    age = rng.uniform(1, 52, rows)
    occupants = rng.lognormal(1.03, 0.25, rows).clip(1, 10)
    rooms = rng.normal(5.3, 1.2, rows).clip(1, 12) + 0.3 * (income - 3.8)
    bedrooms = rooms * 0.2 + rng.normal(0, 0.08, rows)
    people = rng.lognormal(7, 0.7, rows).clip(3, 10_000)
    latitude = rng.choice([34, 37.7, 36], rows, p=[0.5, 0.35, 0.15]) + rng.normal(0, 0.5, rows)
    longitude = -119.5 - (latitude - 36) * 0.95 + rng.normal(0, 0.5, rows)
    value = 0.43 * income + 0.009 * age - 0.25 * (occupants - 3) - 0.1 * (rooms - 5)
    value += 0.6 * (bedrooms - 1) - 0.42 * (latitude - 36) - 0.43 * (longitude + 119.5)
    value += rng.normal(0, 0.7, rows)
    columns = (income, age, rooms, bedrooms, people, occupants, latitude, longitude)
    return np.column_stack(columns), value.clip(0.15, 5)


CALIFORNIA_BOUNDS = ([0, 1, 0, 0, 0, 0, 32, -125], [15, 52, 15, 5, 10_000, 10, 42, -114])
